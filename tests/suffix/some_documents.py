"""Documents for the tests, and a check of an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from reason_spec.suffix.base import SOURCES, Source
from reason_spec.suffix.documents import Document, make_document
from reason_spec.suffix.index import TokenIndex
from reason_spec.suffix.index_kernels import ENTRIES, LOG_END, NONE
from reason_spec.suffix.store import SuffixStore, files_of_tenant
from reason_spec.suffix.tenant_file import StoreKey

KEY = StoreKey("sha256 abc", "0123456789abcdef")
ROOMY = 1 << 30

segments = st.lists(
    st.tuples(st.sampled_from(SOURCES), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)
any_document = st.builds(
    lambda parts, last_used, usefulness: make_document(parts, last_used=last_used, usefulness=usefulness),
    segments,
    st.floats(0, 1e10),
    st.floats(0, 1e6),
)
any_documents = st.lists(any_document, max_size=8)


def one(tokens: Sequence[int], source: Source = "output", last_used: float = 1.0) -> Document:
    return make_document([(source, tokens)], last_used=last_used)


def documents_of(*tokens: Sequence[int], last_used: float = 1.0) -> list[Document]:
    return [one(each, last_used=last_used) for each in tokens]


def contents(documents: Sequence[Document]) -> set[tuple[int, ...]]:
    """The tokens of the documents, in no order."""
    return {tuple(document.tokens.tolist()) for document in documents}


def num_tokens(documents: Sequence[Document]) -> int:
    return sum(len(document.tokens) for document in documents)


def assert_equal(first: Sequence[Document], second: Sequence[Document]) -> None:
    assert len(first) == len(second)
    for ours, theirs in zip(first, second, strict=True):
        assert ours.content_id == theirs.content_id
        assert (ours.last_used, ours.usefulness) == (theirs.last_used, theirs.usefulness)
        for name in ("tokens", "sources"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype


def random_documents(num_tokens: int, length: int, seed: int = 0) -> list[Document]:
    """Documents of one length in runs of several sources, each token drawn at random."""
    random = np.random.default_rng(seed)
    made = []
    for start in range(0, num_tokens, length):
        tokens = random.integers(0, 130_000, min(length, num_tokens - start))
        cuts = range(max(length // 20, 1), len(tokens), max(length // 20, 1))
        parts = [(SOURCES[random.integers(0, len(SOURCES))], part) for part in np.split(tokens, cuts)]
        last_used, usefulness = random.random() * 1e5, random.random() * 10
        made.append(make_document(parts, last_used=last_used, usefulness=usefulness))
    return made


def check_index(index: TokenIndex, max_bytes: int = ROOMY) -> None:
    """Assert that log, pieces and table are consistent."""
    end = 0
    for piece in index.pieces:
        assert end < piece.start <= piece.stop <= piece.limit < len(index.log)
        assert (index.log[piece.start : piece.stop] >= 0).all()
        assert index.log[piece.start - 1] < 0
        assert index.log[piece.stop] < 0
        end = piece.limit
    assert index.meta[LOG_END] == (end + 1 if index.pieces else 0)
    assert int((index.table != NONE).sum()) == index.meta[ENTRIES]
    assert index.num_bytes <= max_bytes


def open_store(path: Path, key: StoreKey = KEY, max_bytes: int = ROOMY) -> SuffixStore:
    return SuffixStore(path, key, max_bytes=max_bytes)


def the_file(path: Path, tenant: str = "a") -> Path:
    (file,) = [file for file in files_of_tenant(path, tenant) if file.suffix == ".suffix"]
    return file
