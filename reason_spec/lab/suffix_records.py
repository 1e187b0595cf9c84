"""Exports of a tenant's documents: JSON lines for people, and for import on another machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reason_spec.errors import DataError, first_mistake
from reason_spec.jsonl import BadLine, FieldError, JsonItem, atomic_output, parse_items, read_values
from reason_spec.suffix.base import Source
from reason_spec.suffix.documents import Document, make_document
from reason_spec.suffix.tenant_file import StoreKey

MARK: Final = "reason_spec_suffix"
"""The field that identifies an export; its value is the version of the format."""
VERSION: Final = 1

_WANTED: Final = "what 'reason-spec cache export' wrote"


@dataclass(frozen=True, slots=True)
class ExportHeader:
    """The first line of an export."""

    tenant: str
    key: StoreKey
    num_documents: int


class Export(NamedTuple):
    """The documents of an export, and the lines that were left out."""

    header: ExportHeader
    documents: tuple[Document, ...]
    bad_lines: tuple[BadLine, ...]


class _HeaderLine(BaseModel):
    tenant: str
    model: str
    tokenizer: str
    documents: int


class _Segment(BaseModel):
    model_config = ConfigDict(strict=True)

    source: Source
    tokens: list[Annotated[int, Field(ge=0)]]


class _DocumentLine(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    last_used: Annotated[float, Field(ge=0)] = 0.0
    usefulness: Annotated[float, Field(ge=0)] = 0.0
    segments: list[_Segment]


def export_lines(
    header: ExportHeader, documents: Sequence[Document], decode: Callable[[Sequence[int]], str] | None
) -> Iterator[str]:
    """Yield the lines of an export.

    Args:
        decode: adds the text of each segment for people to read; None adds no text.
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
    """Write an export atomically, readable by its owner alone; a name ending in ``.gz`` compresses it.

    Raises:
        DataError: the file cannot be written; an earlier file is unchanged.
    """
    with atomic_output(path, mode=0o600) as output:
        for line in lines:
            output.write(f"{line}\n".encode())


def is_export(path: Path) -> bool:
    """Whether a file is an export; False if its first line cannot be read.

    Raises:
        DataError: the file is missing, a folder, or of an unknown kind.
    """
    first = next(iter(read_values(path, _WANTED)), None)
    return isinstance(first, JsonItem) and isinstance(first.value, dict) and MARK in first.value


def read_export(path: Path, key: StoreKey, vocab_size: int, *, skip_bad: bool = False) -> Export:
    """Read an export for a model with the same tokenizer.

    Args:
        vocab_size: larger token ids are refused, because the model would fail on them.

    Raises:
        DataError: the file cannot be read, is of another tokenizer or version, or has an unusable line.
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
            "again, or import the complete ones: --skip-bad."
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
    try:
        line = _HeaderLine.model_validate(fields)
    except ValidationError as error:
        raise DataError(f"{path}, line 1: {first_mistake(error)}. Export it again.") from None
    return ExportHeader(line.tenant, StoreKey(line.model, line.tokenizer), line.documents)


def _read_document(fields: object, vocab_size: int) -> Document:
    try:
        line = _DocumentLine.model_validate(fields)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "line"
        raise FieldError(place, f"is unusable ({error.errors()[0]['msg']})") from None
    segments = [(segment.source, segment.tokens) for segment in line.segments]
    largest = max((token for _, tokens in segments for token in tokens), default=None)
    if largest is None:
        raise FieldError("segments", "hold no tokens")
    if largest >= vocab_size:
        raise FieldError("segments", f"hold a token id that is not below {vocab_size}", largest)
    return make_document(segments, last_used=line.last_used, usefulness=line.usefulness)
