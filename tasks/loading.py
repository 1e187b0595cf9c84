"""Read problem files: JSON lines or a JSON array, plain or gzip, with errors that name the place."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from reason_spec.errors import DataError, SettingsError
from reason_spec.tasks.base import FieldError, Record, Task, get_task, shorten
from reason_spec.types import Problem

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".gz")
_GZIP_MAGIC = b"\x1f\x8b"
_PROBLEMS_WANTED = "one object a line with a question and an answer"
_SKIP_REMEDY = "Repair it, or go on without it: --skip-bad."


class BadLine(NamedTuple):
    """A line that could not be used: its number, counted from 1, and why."""

    line: int
    reason: str


class LoadedProblems(NamedTuple):
    """The problems of a file in its order, and the lines that were left out.

    ``num_repeated`` counts lines left out because an earlier one has the same question and answer.
    """

    problems: tuple[Problem, ...]
    bad_lines: tuple[BadLine, ...]
    num_repeated: int = 0


@dataclass(frozen=True, slots=True)
class JsonValue:
    """One JSON value of a file and where it stands; ``line`` counts items for a JSON array."""

    line: int
    value: Any


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """One JSON object of a file and where it stands; ``line`` counts items for a JSON array."""

    line: int
    value: dict[str, Any]


def load_problems(
    path: str | Path,
    task: str | Task = "auto",
    limit: int | None = None,
    skip_bad: bool = False,
    *,
    require_answer: bool = True,
    once: bool = False,
) -> LoadedProblems:
    """Read the problems of a file.

    Files are JSON lines or one JSON array (``.json``), with or without gzip; the rest is as
    `collect_problems` says.

    Raises:
        DataError: the file cannot be read, holds no usable problem, or has an unusable line.
        SettingsError: unknown task, or ``limit`` below 1.
    """
    return collect_problems(
        read_records(path), path, task, limit, skip_bad, require_answer=require_answer, once=once
    )


def collect_problems(
    records: Iterable[JsonRecord | BadLine],
    place: str | Path,
    task: str | Task = "auto",
    limit: int | None = None,
    skip_bad: bool = False,
    *,
    require_answer: bool = True,
    once: bool = False,
) -> LoadedProblems:
    """Turn records into problems.

    Ids come from the usual fields, else they are line numbers; a repeated id gets ``#2``, ``#3``, ...

    Args:
        place: where the records come from, for messages.
        limit: stop after this many problems; later lines are not looked at.
        skip_bad: collect unusable lines in ``bad_lines`` instead of raising.
        require_answer: a problem without a reference answer is unusable.
        once: leave out what has the question and the answer of an earlier problem.

    Raises:
        DataError: there is no usable problem, or an unusable line.
        SettingsError: unknown task, or ``limit`` below 1.
    """
    resolved = get_task(task)
    if limit is not None and limit < 1:
        raise SettingsError(f"limit is {limit}; give a number of problems of at least 1, or none for all.")
    problems: list[Problem] = []
    bad_lines: list[BadLine] = []
    ids = _UniqueIds()
    seen: set[tuple[str, str | None]] = set()
    num_repeated = 0
    for item in records:
        record = _read_record(item, resolved, require_answer)
        if isinstance(record, BadLine):
            if not skip_bad:
                raise DataError(bad_line_message(place, record))
            bad_lines.append(record)
            continue
        if once and (record.question, record.answer) in seen:
            num_repeated += 1
            continue
        seen.add((record.question, record.answer))
        unique_id = ids.take(record.id or str(item.line))
        problems.append(Problem(unique_id, record.question, record.answer, resolved.name, record.level))
        if limit is not None and len(problems) >= limit:
            break
    if not problems:
        raise DataError(_nothing_usable(place, bad_lines))
    return LoadedProblems(tuple(problems), tuple(bad_lines), num_repeated)


def read_records(path: str | Path) -> Iterator[JsonRecord | BadLine]:
    """Yield the objects of a file in order, and a ``BadLine`` for each line that is none.

    Blank lines are passed over. Damage that ends the file (truncated gzip) is one last ``BadLine``.

    Raises:
        DataError: the file is missing, a folder, of an unknown kind or not readable, or a JSON
            array is damaged.
    """
    for item in read_values(path, _PROBLEMS_WANTED):
        yield _as_record(item) if isinstance(item, JsonValue) else item


def read_values(path: str | Path, wanted: str) -> Iterator[JsonValue | BadLine]:
    """Yield the JSON values of a file in order, and a ``BadLine`` for each line that is none.

    Blank lines are passed over. Damage that ends the file (truncated gzip) is one last ``BadLine``.

    Args:
        wanted: what the file should hold, for the message about one of another kind.

    Raises:
        DataError: the file is missing, a folder, of an unknown kind or not readable, or a JSON
            array is damaged.
    """
    path = Path(path)
    _check_kind(path, wanted)
    try:
        with path.open("rb") as raw:
            stream = _decompressed(path, raw)
            if path.name.lower().removesuffix(".gz").endswith(".json") and _starts_array(path, stream):
                yield from _array_items(path, stream)
            else:
                yield from _lines(stream)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error


def bad_line_message(path: str | Path, bad: BadLine) -> str:
    """Return the error message for an unusable line: place, reason, remedy."""
    return f"{path}, line {bad.line}: {bad.reason}. {_SKIP_REMEDY}"


def check_unicode(field: str, text: str) -> None:
    """Refuse text with half a surrogate pair: no tokenizer and no UTF-8 file can hold it.

    Raises:
        FieldError: ``text`` holds one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FieldError(field, f"holds half a surrogate pair at character {error.start}") from None


def _read_record(item: JsonRecord | BadLine, task: Task, require_answer: bool) -> Record | BadLine:
    if isinstance(item, BadLine):
        return item
    try:
        record = task.read_record(item.value, require_answer=require_answer)
        for field in ("question", "answer", "level"):
            check_unicode(field, getattr(record, field) or "")
    except FieldError as error:
        return BadLine(item.line, str(error))
    return record


def _check_kind(path: Path, wanted: str) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it ({', '.join(SUFFIXES[:4])}).")
    if not path.exists():
        raise DataError(f"{path}: there is no such file.")
    name = path.name.lower()
    if path.is_file() and path.suffix and not name.endswith(SUFFIXES):
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


def _lines(stream: BinaryIO) -> Iterator[JsonValue | BadLine]:
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
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield _parse_line(number, line)


def _parse_line(number: int, line: bytes) -> JsonValue | BadLine:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadLine(number, f"is not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1})")
    except json.JSONDecodeError as error:
        shown = shorten(line.decode("utf-8", "replace").strip())
        return BadLine(number, f"is not valid JSON ({error.msg} at column {error.colno}): {shown}")
    except (RecursionError, ValueError) as error:
        return BadLine(number, f"is not usable JSON ({type(error).__name__}: {shorten(str(error))})")
    return JsonValue(number, value)


def _as_record(item: JsonValue) -> JsonRecord | BadLine:
    if not isinstance(item.value, dict):
        return BadLine(item.line, f"is not a JSON object with fields: {shorten(item.value)}")
    return JsonRecord(item.line, item.value)


def _starts_array(path: Path, stream: BinaryIO) -> bool:
    try:
        head = cast("io.BufferedReader", stream).peek(64)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the gzip data is damaged or cut off ({error}).") from error
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _array_items(path: Path, stream: BinaryIO) -> Iterator[JsonValue]:
    try:
        items = json.loads(stream.read().decode("utf-8-sig"))
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
    for number, value in enumerate(items, start=1):
        yield JsonValue(number, value)


def _nothing_usable(path: str | Path, bad_lines: list[BadLine]) -> str:
    if not bad_lines:
        return f"{path}: is empty; it needs one JSON object a line, with a question and an answer."
    first = bad_lines[0]
    return f"{path}: none of its {len(bad_lines)} lines can be used; line {first.line}: {first.reason}."


class _UniqueIds:
    """Makes repeated ids unique by a count behind them, the same way each time a file is read."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        unique = wanted
        while unique in self._taken:
            self._counts[wanted] = self._counts.get(wanted, 1) + 1
            unique = f"{wanted}#{self._counts[wanted]}"
        self._taken.add(unique)
        return unique
