"""Converts an index to documents and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reason_spec.suffix.base import SOURCES
from reason_spec.suffix.documents import Document
from reason_spec.suffix.index import TokenIndex
from reason_spec.suffix.index_kernels import NONE
from reason_spec.suffix.rebuild import Piece


def snapshot(index: TokenIndex) -> list[Document]:
    """Return all tokens as documents; pieces that continue each other become one document."""
    documents = []
    for chain in _chains(index):
        runs = [slice(piece.start, piece.stop) for piece in chain]
        tokens = np.concatenate([index.log[run] for run in runs])
        if not len(tokens):
            continue
        sources = np.concatenate([index.sources[run] for run in runs])
        last_used = max(piece.last_used for piece in chain)
        usefulness = sum(piece.usefulness for piece in chain)
        documents.append(Document(tokens, sources, last_used, usefulness))
    return documents


def restore(index: TokenIndex, documents: Sequence[Document]) -> None:
    """Add documents to an index."""
    index.reserve([document.tokens for document in documents])
    for document in documents:
        length = len(document.tokens)
        writer = index.open_writer()
        writer.make_room(length)
        writer.text[:length] = document.tokens
        for source, tokens in document.segments:
            index.write(writer, writer.length + len(tokens), SOURCES.index(source))
        places = writer.places[:length]
        index.date(places[places != NONE], document.last_used, document.usefulness)
        index.close_writer(writer)


def _chains(index: TokenIndex) -> Iterator[list[Piece]]:
    by_start = {piece.start: piece for piece in index.pieces}
    following: dict[int, Piece] = {}
    for piece in index.pieces:
        after = by_start.get(-2 - int(index.log[piece.stop]))
        if after is not None and index.log[after.start - 1] == -2 - (piece.stop - 1):
            following[piece.start] = after
    heads = by_start.keys() - {piece.start for piece in following.values()}
    for start in sorted(heads):
        chain = [by_start[start]]
        while chain[-1].start in following:
            chain.append(following[chain[-1].start])
        yield chain
