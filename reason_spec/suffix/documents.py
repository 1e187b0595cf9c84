"""Documents, the unit in which a tenant's tokens are saved, merged, evicted, exported and imported."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from reason_spec.suffix.base import SOURCES, Source

_MIN_PREFIX: Final = 64
"""Tokens; shorter documents are kept even if another one begins with them."""
_BYTES_OF_DOCUMENT: Final = 24
_BYTES_OF_TOKEN: Final = 5


@dataclass(frozen=True, eq=False)
class Document:
    """A conversation, or a part of one. A match never crosses the start of a document."""

    tokens: npt.NDArray[np.int32]
    """At least one."""
    sources: npt.NDArray[np.uint8]
    """The source of each token, as an index into ``SOURCES``."""
    last_used: float
    """Time of the last write or proposal from it, in seconds since 1970."""
    usefulness: float
    """Number of accepted tokens that were proposed from it."""

    @cached_property
    def content_id(self) -> bytes:
        """A hash of tokens and sources."""
        digest = hashlib.blake2b(self.tokens.astype("<i4", copy=False).data, digest_size=16)
        digest.update(self.sources.data)
        return digest.digest()

    @property
    def segments(self) -> Iterator[tuple[Source, npt.NDArray[np.int32]]]:
        """The runs of tokens of one source, in order."""
        cuts = np.flatnonzero(np.diff(self.sources)) + 1
        starts = [0, *cuts.tolist()]
        for start, tokens in zip(starts, np.split(self.tokens, cuts), strict=True):
            yield SOURCES[self.sources[start]], tokens

    @property
    def num_bytes(self) -> int:
        """Size in a file."""
        return _BYTES_OF_DOCUMENT + _BYTES_OF_TOKEN * len(self.tokens)

    def staleness(self, now: float) -> float:
        return staleness(now - self.last_used, self.usefulness, len(self.tokens))


def make_document(
    segments: Sequence[tuple[Source, npt.ArrayLike]], *, last_used: float, usefulness: float = 0.0
) -> Document:
    """Return a document of these segments, which must hold at least one token."""
    parts = [np.asarray(tokens, np.int32) for _, tokens in segments]
    numbers = np.array([SOURCES.index(source) for source, _ in segments], np.uint8)
    tokens = np.concatenate(parts)
    assert len(tokens), "a document needs a token"
    return Document(tokens, np.repeat(numbers, [len(part) for part in parts]), last_used, usefulness)


def staleness(unused: float, usefulness: float, num_tokens: int) -> float:
    """Return the eviction priority: seconds since the last use, divided by 1 + accepted tokens per token."""
    return unused / (1.0 + usefulness / max(num_tokens, 1))


def content_ids(documents: Iterable[Document]) -> frozenset[bytes]:
    return frozenset(document.content_id for document in documents)


def merge(
    ours: Sequence[Document], theirs: Sequence[Document], known: Container[bytes] = ()
) -> list[Document]:
    """Return our documents and those of theirs that are not ``known``, the least recently used first.

    A document of both sides occurs as often as in ours. A document of 64 tokens or more that is a prefix of
    another one is left out, so that a conversation saved twice while it grew is stored once.
    """
    use: dict[bytes, Document] = {}
    for document in theirs:
        use[document.content_id] = _with_use_of(document, use.get(document.content_id, document))
    merged = [_with_use_of(document, use.get(document.content_id, document)) for document in ours]
    shared = content_ids(ours)
    merged += [
        document
        for document in theirs
        if document.content_id not in shared and document.content_id not in known
    ]
    return sorted(_without_prefixes(merged), key=lambda document: document.last_used)


def bounded(documents: Sequence[Document], max_bytes: int) -> list[Document]:
    """Drop the stalest documents until the rest takes at most ``max_bytes`` in a file; keep the order."""
    excess = sum(document.num_bytes for document in documents) - max_bytes
    now = max((document.last_used for document in documents), default=0.0)
    dropped: set[int] = set()
    for index in sorted(range(len(documents)), key=lambda index: -documents[index].staleness(now)):
        if excess <= 0:
            break
        excess -= documents[index].num_bytes
        dropped.add(index)
    return [document for index, document in enumerate(documents) if index not in dropped]


def _with_use_of(document: Document, other: Document) -> Document:
    if document is other or (other.last_used, other.usefulness) == (document.last_used, document.usefulness):
        return document
    # The maximum and not the sum: saving the same document twice must not count its use twice.
    return replace(
        document,
        last_used=max(document.last_used, other.last_used),
        usefulness=max(document.usefulness, other.usefulness),
    )


def _without_prefixes(documents: Sequence[Document]) -> list[Document]:
    # Big-endian bytes sort in the order of the tokens: a text precedes those that begin with it.
    keyed = sorted(
        ((document.tokens.astype(">i4").tobytes(), document) for document in documents),
        key=lambda pair: pair[0],
    )
    kept: list[Document] = []
    longer, longest = b"", -1
    for key, document in reversed(keyed):
        if not longer.startswith(key):
            longer, longest = key, len(kept)
            kept.append(document)
        elif len(key) == len(longer) or len(document.tokens) < _MIN_PREFIX:
            # Repeated short answers count as often as they were given.
            kept.append(document)
        else:
            kept[longest] = _with_use_of(kept[longest], document)
    return kept
