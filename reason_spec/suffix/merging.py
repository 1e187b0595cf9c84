"""Texts put together and cut down: what two processes learnt becomes one tenant's texts again."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from reason_spec.suffix.base import SOURCES, Source
from reason_spec.suffix.file_format import num_bytes_of
from reason_spec.suffix.texts import TenantTexts, staleness

_MIN_BEGINNING: Final = 64
"""Tokens of a document that is taken for the beginning of another, at the least."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One document by itself; ``segment_starts`` counts from its own beginning."""

    tokens: npt.NDArray[np.int32]
    segment_starts: npt.NDArray[np.int64]
    segment_sources: npt.NDArray[np.uint8]
    last_used: float
    usefulness: float

    @property
    def content_id(self) -> bytes:
        """Equal for documents of the same tokens from the same sources."""
        digest = hashlib.blake2b(self.tokens.astype("<i4", copy=False).data, digest_size=16)
        digest.update(self.segment_starts.astype("<i8").data)
        digest.update(self.segment_sources.data)
        return digest.digest()

    @property
    def segments(self) -> Iterator[tuple[Source, npt.NDArray[np.int32]]]:
        """Its runs of tokens of one source, in order."""
        ends = [*self.segment_starts[1:].tolist(), len(self.tokens)]
        for start, end, source in zip(self.segment_starts, ends, self.segment_sources, strict=True):
            yield SOURCES[source], self.tokens[start:end]


def make_document(
    segments: Sequence[tuple[Source, Sequence[int]]], *, last_used: float, usefulness: float = 0.0
) -> Document:
    """Make a document of segments; there must be one token or more."""
    parts = [(SOURCES.index(source), np.asarray(tokens, np.int32)) for source, tokens in segments]
    filled = [(source, tokens) for source, tokens in parts if len(tokens)]
    assert filled, "a document needs a token"
    lengths = [len(tokens) for _, tokens in filled]
    return Document(
        np.concatenate([tokens for _, tokens in filled]),
        np.cumsum([0, *lengths[:-1]], dtype=np.int64),
        np.array([source for source, _ in filled], np.uint8),
        last_used,
        usefulness,
    )


def split(texts: TenantTexts) -> list[Document]:
    """Return the documents of a tenant in their order."""
    starts = texts.document_starts
    ends = np.append(starts[1:], len(texts.tokens))
    first = np.searchsorted(texts.segment_starts, starts)
    last = np.append(first[1:], len(texts.segment_starts))
    bounds = np.stack([starts, ends[: len(starts)], first, last[: len(starts)]], axis=1).tolist()
    return [
        Document(
            texts.tokens[start:end],
            texts.segment_starts[segment:behind] - start,
            texts.segment_sources[segment:behind],
            float(texts.last_used[index]),
            float(texts.usefulness[index]),
        )
        for index, (start, end, segment, behind) in enumerate(bounds)
    ]


def join(documents: Sequence[Document]) -> TenantTexts:
    """Return the texts that consist of these documents."""
    if not documents:
        return TenantTexts.empty()
    lengths = [len(document.tokens) for document in documents]
    starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
    moved = [document.segment_starts + start for document, start in zip(documents, starts, strict=True)]
    return TenantTexts(
        tokens=np.concatenate([document.tokens for document in documents]),
        document_starts=starts,
        segment_starts=np.concatenate(moved),
        segment_sources=np.concatenate([document.segment_sources for document in documents]),
        last_used=np.array([document.last_used for document in documents], np.float64),
        usefulness=np.array([document.usefulness for document in documents], np.float64),
    )


def content_ids(texts: TenantTexts) -> frozenset[bytes]:
    """Return the ids of all documents."""
    return frozenset(document.content_id for document in split(texts))


def merge(ours: TenantTexts, theirs: TenantTexts, known: Container[bytes] = ()) -> TenantTexts:
    """Return our documents and those of theirs that are not ``known``, the least recently used first.

    What both have is there as often as in ours. A document of 64 tokens or more that another one begins
    with is left out: a conversation that was saved half way and is complete now stands there once.
    """
    use: dict[bytes, Document] = {}
    for document in split(theirs):
        identity = document.content_id
        use[identity] = _with_use_of(document, use.get(identity, document))
    kept = [_with_use_of(document, use.get(document.content_id, document)) for document in split(ours)]
    shared = {document.content_id for document in kept}
    others = ((document.content_id, document) for document in split(theirs))
    kept += [document for identity, document in others if identity not in shared and identity not in known]
    return join(sorted(_without_beginnings(kept), key=lambda document: document.last_used))


def bounded(texts: TenantTexts, max_bytes: int) -> TenantTexts:
    """Leave documents out, the oldest and least useful first, until a file of them has that size."""
    excess = num_bytes_of(texts) - max_bytes
    if excess <= 0:
        return texts
    documents = split(texts)
    gone: set[int] = set()
    now = float(texts.last_used.max())
    stale = [staleness(now - one.last_used, one.usefulness, len(one.tokens)) for one in documents]
    for index in sorted(range(len(documents)), key=lambda index: -stale[index]):
        if excess <= 0:
            break
        excess -= num_bytes_of(join([documents[index]]))
        gone.add(index)
    return join([document for index, document in enumerate(documents) if index not in gone])


def _with_use_of(document: Document, other: Document) -> Document:
    # Saving twice must not count twice, hence the larger number and no sum.
    return replace(
        document,
        last_used=max(document.last_used, other.last_used),
        usefulness=max(document.usefulness, other.usefulness),
    )


def _without_beginnings(documents: Sequence[Document]) -> list[Document]:
    # Big-endian bytes sort as the tokens do, and behind a text stand those that begin with it.
    keyed = sorted(
        ((document.tokens.astype(">i4").tobytes(), document) for document in documents),
        key=lambda pair: pair[0],
    )
    kept: list[Document] = []
    behind, longest = b"", -1
    for key, document in reversed(keyed):
        if not behind.startswith(key):
            behind, longest = key, len(kept)
            kept.append(document)
        elif len(key) == len(behind) or len(document.tokens) < _MIN_BEGINNING:
            # Short answers are given again and again; how often counts.
            kept.append(document)
        else:
            kept[longest] = _with_use_of(kept[longest], document)
    return kept
