"""Reads JSON lines and JSON arrays with errors that name file and line; writes files atomically."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from reason_spec.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".gz")
DOCUMENT_SUFFIXES = (".traj", ".traj.gz")
"""Files that hold one JSON value, over many lines."""
Parsed = TypeVar("Parsed")
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FieldError(ValueError):
    """A record lacks a field or holds an unusable value: ``field`` and ``value``."""

    def __init__(self, field: str, problem: str, value: object = None) -> None:
        shown = "" if value is None else f": {shorten(value)}"
        super().__init__(f"field {field!r} {problem}{shown}")
        self.field = field
        self.value = value


class BadLine(NamedTuple):
    """An unusable line: its number, counted from 1, and the reason."""

    line: int
    reason: str

    def message(self, path: str | Path, *, can_skip: bool = True) -> str:
        """Return the error message: place, reason, remedy."""
        remedy = "Repair it, or skip such lines with --skip-bad" if can_skip else "Repair or remove it"
        return f"{path}, line {self.line}: {self.reason}. {remedy}."


class JsonItem(NamedTuple):
    """One JSON value of a file; ``line`` counts lines, or the items of a JSON array."""

    line: int
    value: Any


def read_records(path: str | Path, wanted: str) -> Iterator[JsonItem | BadLine]:
    """Yield the JSON objects of a file, and a ``BadLine`` for any other value; see `read_values`."""
    for item in read_values(path, wanted):
        if isinstance(item, JsonItem) and not isinstance(item.value, dict):
            yield BadLine(item.line, f"is not a JSON object with fields: {shorten(item.value)}")
        else:
            yield item


def is_document(path: Path) -> bool:
    """Whether a file of this name holds one JSON value."""
    return path.name.lower().endswith(DOCUMENT_SUFFIXES)


def read_values(path: str | Path, wanted: str) -> Iterator[JsonItem | BadLine]:
    """Yield the JSON values of a file in order, and a ``BadLine`` for each line without one.

    Skips blank lines. Truncated gzip data yields one last ``BadLine``.

    Args:
        wanted: describes the lines of a valid file, for the error about an unknown kind of file.

    Raises:
        DataError: the file is missing, a folder, of an unknown kind or not readable, or a JSON
            array is damaged.
    """
    path = Path(path)
    _check_kind(path, wanted)
    try:
        with path.open("rb") as raw:
            stream = _decompressed(path, raw)
            if is_document(path):
                yield JsonItem(1, _whole_value(path, stream))
            elif path.name.lower().removesuffix(".gz").endswith(".json") and _starts_array(path, stream):
                items = _whole_value(path, stream)
                yield from (JsonItem(number, value) for number, value in enumerate(items, start=1))
            else:
                yield from _lines(stream)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error


def parse_items(
    items: Iterable[JsonItem | BadLine],
    place: str | Path,
    parse: Callable[[JsonItem], Parsed],
    bad_lines: list[BadLine],
    *,
    skip_bad: bool | None,
) -> Iterator[Parsed]:
    """Yield ``parse`` of each item; an item for which it raises `FieldError` is an unusable line.

    Args:
        place: the source of the items, for messages.
        bad_lines: takes the unusable lines if ``skip_bad`` is set.
        skip_bad: None for a command that has no such option.

    Raises:
        DataError: a line is unusable and ``skip_bad`` is not set.
    """
    for item in items:
        bad = item
        if isinstance(item, JsonItem):
            try:
                yield parse(item)
                continue
            except FieldError as error:
                bad = BadLine(item.line, str(error))
        assert isinstance(bad, BadLine)
        if not skip_bad:
            raise DataError(bad.message(place, can_skip=skip_bad is not None))
        bad_lines.append(bad)


def check_unicode(field: str, text: str) -> None:
    """Reject text with half a surrogate pair, which neither tokenizers nor UTF-8 files can hold.

    Raises:
        FieldError: ``text`` holds one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FieldError(field, f"holds half a surrogate pair at character {error.start}") from None


def shorten(value: object, limit: int = 60) -> str:
    """Return the ``repr`` of a value on one line, cut to ``limit`` characters, for messages."""
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@contextlib.contextmanager
def atomic_output(path: Path, mode: int | None = None, *, remedy: str = "") -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends, and is removed when it fails.

    Compresses the content if ``path`` ends in ``.gz``.

    Args:
        mode: permissions of the file; None: those of the file that is replaced, or of any new file.
        remedy: a sentence for the error message.

    Raises:
        DataError: the file cannot be written; an earlier file is unchanged.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is not a regular file; name a file to write.")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        remedy = remedy or "Name a folder that exists."
        raise DataError(f"{path}: cannot be written ({error.strerror}). {remedy}") from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            if path.name.endswith(".gz"):
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        temporary.chmod(_mode_of(path) if mode is None else mode)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            text = f"{path}: cannot be written ({error.strerror or error}). {remedy}"
            raise DataError(text.strip()) from error
        raise


def _mode_of(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _check_kind(path: Path, wanted: str) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it ({', '.join(SUFFIXES[:4])}).")
    if not path.exists():
        raise DataError(f"{path}: there is no such file.")
    if path.is_file() and path.suffix and not path.name.lower().endswith((*SUFFIXES, *DOCUMENT_SUFFIXES)):
        raise DataError(
            f"{path}: files of the kind {path.suffix!r} are not read. Give JSON lines: {wanted}, "
            f"named {', '.join(SUFFIXES[:3])} (also .gz)."
        )


def _decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    buffered = io.BufferedReader(cast("io.RawIOBase", raw))
    if buffered.peek(2)[:2] == _GZIP_MAGIC:
        return cast("BinaryIO", gzip.GzipFile(fileobj=buffered))
    if path.name.lower().endswith(".gz") and buffered.peek(1):
        raise DataError(f"{path}: is named .gz, but is not a gzip file.")
    return buffered


def _lines(stream: BinaryIO) -> Iterator[JsonItem | BadLine]:
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield BadLine(number, f"the gzip data is damaged or cut off here ({error})")
            return
        if not line:
            return
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.strip():
            yield _parse_line(number, line)


def _parse_line(number: int, line: bytes) -> JsonItem | BadLine:
    try:
        return JsonItem(number, json.loads(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return BadLine(number, f"is not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1})")
    except json.JSONDecodeError as error:
        shown = shorten(line.decode("utf-8", "replace").strip())
        return BadLine(number, f"is not valid JSON ({error.msg} at column {error.colno}): {shown}")
    except (RecursionError, ValueError) as error:
        return BadLine(number, f"is not usable JSON ({type(error).__name__}: {shorten(str(error))})")


def _starts_array(path: Path, stream: BinaryIO) -> bool:
    try:
        head = cast("io.BufferedReader", stream).peek(64)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the gzip data is damaged or cut off ({error}).") from error
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] == b"["


def _whole_value(path: Path, stream: BinaryIO) -> Any:
    try:
        return json.loads(stream.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 (byte {error.start + 1} of the file).") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}, column {error.colno}: is not valid JSON ({error.msg}). "
            "A damaged array cannot be read in part; repair it, or write one object a line (.jsonl)."
        ) from error
    except (EOFError, zlib.error, RecursionError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as a JSON array ({type(error).__name__}: {error})."
        ) from error
