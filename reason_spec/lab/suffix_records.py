"""Texts of a tenant as JSON lines that another machine can import, and that people can read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from reason_spec.errors import DataError
from reason_spec.jsonl import (
    BadLine,
    FieldError,
    JsonItem,
    atomic_output,
    parse_items,
    read_values,
)
from reason_spec.suffix.base import SOURCES, Source
from reason_spec.suffix.documents import Document, make_document
from reason_spec.suffix.tenant_file import StoreKey

MARK: Final = "reason_spec_suffix"
"""The field that tells an export from other files; its value is the version of the format."""
VERSION: Final = 1

_WANTED: Final = "what 'reason-spec cache export' wrote"


@dataclass(frozen=True, slots=True)
class ExportHeader:
    """The first line of an export."""

    tenant: str
    key: StoreKey
    num_documents: int


class Export(NamedTuple):
    """What an export holds, and the lines that were left out."""

    header: ExportHeader
    documents: tuple[Document, ...]
    bad_lines: tuple[BadLine, ...]


def export_lines(
    header: ExportHeader, documents: Sequence[Document], decode: Callable[[Sequence[int]], str] | None
) -> Iterator[str]:
    """Yield the lines of an export.

    Args:
        decode: adds the text of each segment for people to read; None leaves texts out.
    """
    about = {"tenant": header.tenant, "model": header.key.model, "tokenizer": header.key.tokenizer}
    yield json.dumps({MARK: VERSION, **about, "documents": header.num_documents})
    for document in documents:
        segments = []
        for source, run in document.segments:
            tokens = run.tolist()
            segment: dict[str, Any] = {"source": source, "tokens": tokens}
            if decode is not None:
                segment["text"] = decode(tokens)
            segments.append(segment)
        use = {"last_used": document.last_used, "usefulness": document.usefulness}
        yield json.dumps({**use, "segments": segments}, ensure_ascii=False)


def write_export(path: Path, lines: Iterator[str]) -> None:
    """Write an export as a whole, for its owner alone (0600); a name that ends in ``.gz`` compresses it.

    Raises:
        DataError: the file cannot be written; what stood there before still does.
    """
    with atomic_output(path, mode=0o600) as output:
        for line in lines:
            output.write(f"{line}\n".encode())


def is_export(path: Path) -> bool:
    """Tell whether a file is an export; one that cannot be read is none.

    Raises:
        DataError: the file is missing, a folder, or of an unknown kind.
    """
    first = next(iter(read_values(path, _WANTED)), None)
    return isinstance(first, JsonItem) and isinstance(first.value, dict) and MARK in first.value


def read_export(path: Path, key: StoreKey, vocab_size: int, *, skip_bad: bool = False) -> Export:
    """Read an export for a model with the same vocabulary.

    Args:
        vocab_size: larger token ids are refused: a model asked about one would fail.

    Raises:
        DataError: the file cannot be read, is of another vocabulary or version, or has an unusable line.
    """
    values = iter(read_values(path, _WANTED))
    header = _read_header(path, next(values, None))
    if header.key.tokenizer != key.tokenizer:
        raise DataError(
            f"{path}: holds tokens of the vocabulary {header.key.tokenizer}, and the model's is "
            f"{key.tokenizer}: tokens of one mean nothing to the other. Name the model they belong to with "
            "--target, or import the conversations that they were learnt from."
        )
    bad_lines: list[BadLine] = []
    parsed = parse_items(
        values, path, lambda item: _read_document(item.value, vocab_size), bad_lines, skip_bad=skip_bad
    )
    documents = tuple(parsed)
    if not skip_bad and len(documents) != header.num_documents:
        raise DataError(
            f"{path}: holds {len(documents)} of {header.num_documents} documents: it was cut off. Export it "
            "again, or take what is there: --skip-bad."
        )
    return Export(header, documents, tuple(bad_lines))


def _read_header(path: Path, item: JsonItem | BadLine | None) -> ExportHeader:
    fields = item.value if isinstance(item, JsonItem) else None
    if not isinstance(fields, dict) or MARK not in fields:
        raise DataError(f"{path}: is not {_WANTED}.")
    if fields[MARK] != VERSION:
        raise DataError(
            f"{path}: is an export of format {fields[MARK]!r}, and this program reads {VERSION}. Use the "
            "version of reason-spec that wrote it."
        )
    names = [fields.get(name) for name in ("tenant", "model", "tokenizer")]
    number = fields.get("documents")
    if not all(isinstance(name, str) for name in names) or not isinstance(number, int):
        raise DataError(f"{path}, line 1: lacks tenant, model, tokenizer or documents. Export it again.")
    tenant, model, tokenizer = map(str, names)
    return ExportHeader(tenant, StoreKey(model, tokenizer), number)


def _read_document(fields: object, vocab_size: int) -> Document:
    if not isinstance(fields, dict) or not isinstance(fields.get("segments"), list):
        raise FieldError("segments", "is missing or no list")
    segments = [_read_segment(index, value, vocab_size) for index, value in enumerate(fields["segments"])]
    if not any(tokens for _, tokens in segments):
        raise FieldError("segments", "hold no tokens")
    used, useful = (_read_number(name, fields.get(name, 0)) for name in ("last_used", "usefulness"))
    return make_document(segments, last_used=used, usefulness=useful)


def _read_segment(index: int, value: object, vocab_size: int) -> tuple[Source, list[int]]:
    place = f"segments[{index}]"
    if not isinstance(value, dict):
        raise FieldError(place, "is no object")
    source, tokens = value.get("source"), value.get("tokens")
    if source not in SOURCES:
        raise FieldError(f"{place}.source", f"is none of {', '.join(SOURCES)}", source)
    if not isinstance(tokens, list):
        raise FieldError(f"{place}.tokens", "is no list")
    if not all(type(token) is int and 0 <= token < vocab_size for token in tokens):
        raise FieldError(f"{place}.tokens", f"holds something else than token ids below {vocab_size}")
    return source, tokens


def _read_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value) or value < 0:
        raise FieldError(name, "is no number of at least 0", value)
    return float(value)
