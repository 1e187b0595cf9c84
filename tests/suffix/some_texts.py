"""Texts of tenants for the tests of what is kept on disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from reason_spec.suffix.base import SOURCES, Source
from reason_spec.suffix.file_format import StoreKey
from reason_spec.suffix.merging import Document, join, make_document, split
from reason_spec.suffix.texts import TenantTexts

KEY = StoreKey("sha256 abc", "0123456789abcdef")
ROOMY = 1 << 30

segments = st.lists(
    st.tuples(st.sampled_from(SOURCES), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)
documents = st.builds(
    lambda parts, last_used, usefulness: make_document(parts, last_used=last_used, usefulness=usefulness),
    segments,
    st.floats(0, 1e10),
    st.floats(0, 1e6),
)
many_texts = st.lists(documents, max_size=8).map(join)


def one(tokens: Sequence[int], source: Source = "output", last_used: float = 1.0) -> Document:
    return make_document([(source, tokens)], last_used=last_used)


def texts_of(*tokens: Sequence[int], last_used: float = 1.0) -> TenantTexts:
    return join([one(each, last_used=last_used) for each in tokens])


def contents(texts: TenantTexts) -> set[tuple[int, ...]]:
    """The documents of a tenant, whatever their order."""
    return {tuple(document.tokens.tolist()) for document in split(texts)}


def assert_equal(first: TenantTexts, second: TenantTexts) -> None:
    for name in TenantTexts.__slots__:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        assert getattr(first, name).dtype == getattr(second, name).dtype


def random_texts(num_tokens: int, length: int, seed: int = 0) -> TenantTexts:
    """Texts of documents of one length, each token drawn at random."""
    random = np.random.default_rng(seed)
    starts = np.arange(0, num_tokens, length)
    runs = np.unique(np.concatenate([starts, np.arange(0, num_tokens, max(length // 20, 1))]))
    return TenantTexts(
        tokens=random.integers(0, 130_000, num_tokens).astype(np.int32),
        document_starts=starts,
        segment_starts=runs,
        segment_sources=random.integers(0, len(SOURCES), len(runs)).astype(np.uint8),
        last_used=random.random(len(starts)) * 1e5,
        usefulness=random.random(len(starts)) * 10,
    )
