"""Turns the records of files and data sets into problems."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from reason_spec.errors import DataError, SettingsError
from reason_spec.jsonl import BadLine, JsonItem, check_unicode, parse_items, read_records
from reason_spec.tasks.base import Record, Task, get_task
from reason_spec.types import Problem


class LoadedProblems(NamedTuple):
    """The problems of a file in its order, and the lines that were left out.

    ``num_repeated`` counts lines left out because an earlier one has the same question and answer.
    """

    problems: tuple[Problem, ...]
    bad_lines: tuple[BadLine, ...]
    num_repeated: int = 0


def load_problems(
    path: str | Path,
    task: str | Task = "auto",
    limit: int | None = None,
    skip_bad: bool = False,
    *,
    require_answer: bool = True,
    once: bool = False,
) -> LoadedProblems:
    """Read the problems of a file: JSON lines or one JSON array (``.json``), plain or gzip.

    See `collect_problems` for the other arguments.

    Raises:
        DataError: the file cannot be read, holds no usable problem, or has an unusable line.
        SettingsError: unknown task, or ``limit`` below 1.
    """
    records = read_records(path, "one object a line with a question and an answer")
    return collect_problems(records, path, task, limit, skip_bad, require_answer=require_answer, once=once)


def collect_problems(
    records: Iterable[JsonItem | BadLine],
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
        place: the source of the records, for messages.
        limit: stop after this many problems and read no further.
        skip_bad: collect unusable lines in ``bad_lines`` instead of raising.
        require_answer: treat a problem without a reference answer as unusable.
        once: leave out a problem whose question and answer equal those of an earlier one.

    Raises:
        DataError: there is no usable problem, or an unusable line.
        SettingsError: unknown task, or ``limit`` below 1.
    """
    resolved = get_task(task)
    if limit is not None and limit < 1:
        raise SettingsError(f"limit is {limit}; give a number of problems of at least 1, or none for all.")

    def parse(item: JsonItem) -> tuple[int, Record]:
        record = resolved.read_record(item.value, require_answer=require_answer)
        for field in ("id", "question", "answer", "category", "level"):
            check_unicode(field, getattr(record, field) or "")
        return item.line, record

    problems: list[Problem] = []
    bad_lines: list[BadLine] = []
    ids = _UniqueIds()
    seen: set[tuple[str, str | None]] = set()
    num_repeated = 0
    for line, record in parse_items(records, place, parse, bad_lines, skip_bad=skip_bad):
        if once and (record.question, record.answer) in seen:
            num_repeated += 1
            continue
        seen.add((record.question, record.answer))
        unique_id = ids.take(record.id or str(line))
        named = f"{resolved.name}/{record.category}" if record.category else resolved.name
        problems.append(Problem(unique_id, record.question, record.answer, named, record.level))
        if limit is not None and len(problems) >= limit:
            break
    if not problems:
        raise DataError(nothing_usable(place, bad_lines, "with a question and an answer"))
    return LoadedProblems(tuple(problems), tuple(bad_lines), num_repeated)


def nothing_usable(place: str | Path, bad_lines: list[BadLine], fields: str) -> str:
    """Return the error message for a file without any usable line."""
    if not bad_lines:
        return f"{place}: is empty; it needs one JSON object a line, {fields}."
    first = bad_lines[0]
    return f"{place}: none of its {len(bad_lines)} lines can be used; line {first.line}: {first.reason}."


class _UniqueIds:
    """Numbers repeated ids, the same way each time a file is read."""

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
