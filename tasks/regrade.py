"""Grades a file of existing responses."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from reason_spec.errors import DataError
from reason_spec.jsonl import BadLine, FieldError, JsonItem, atomic_output, parse_items, read_records
from reason_spec.tasks.base import Task, get_task
from reason_spec.tasks.grading import Grade, Grader
from reason_spec.tasks.loading import nothing_usable

RESPONSE_FIELDS: Final = ("response", "completion", "generation", "generated_text", "model_output")
_WANTED: Final = "with question, answer and response"


class GradeCounts(NamedTuple):
    """Responses by outcome; a record with several responses counts each of them."""

    num_records: int
    num_correct: int
    num_wrong: int
    num_ungraded: int
    num_without_answer: int
    """Responses in which no answer was found; ``num_wrong`` includes them."""
    bad_lines: tuple[BadLine, ...]
    shares: tuple[float, ...]
    """The share of correct responses to each question, whether one record holds them or several do."""

    @property
    def num_responses(self) -> int:
        return self.num_correct + self.num_wrong + self.num_ungraded

    @property
    def accuracy(self) -> float | None:
        """Share of correct responses among all, the ungraded included; None if there are none."""
        return self.num_correct / self.num_responses if self.num_responses else None


def grade_file(
    input_path: str | Path,
    output_path: str | Path,
    task: str | Task = "auto",
    skip_bad: bool = False,
    *,
    grader: Grader | None = None,
) -> GradeCounts:
    """Add ``prediction`` and ``correct`` to every record of a file of responses.

    Records keep their order and all their fields. ``response`` is a text, or a list of texts (the
    results are lists then). ``correct`` is null if grading could not decide. The output is written
    atomically and may be the input file.

    Args:
        skip_bad: leave unusable lines out of the output and return them in ``bad_lines``.
        grader: used instead of a new grader; stays open.

    Raises:
        DataError: the input cannot be read or has an unusable line, or the output cannot be written.
        SettingsError: there is no such task.
    """
    resolved = get_task(task)
    num_records = 0
    grades_of: dict[str | int, list[Grade]] = {}
    bad_lines: list[BadLine] = []
    with contextlib.ExitStack() as stack:
        active = grader if grader is not None else stack.enter_context(Grader())
        output = stack.enter_context(atomic_output(Path(output_path)))

        def grade(item: JsonItem) -> list[Grade]:
            found = _grade_record(item.value, resolved, active)
            output.write(_json_line(item.value))
            grades_of.setdefault(_question_of(item, resolved), []).extend(found)
            return found

        records = read_records(input_path, f"one object a line {_WANTED}")
        for _ in parse_items(records, input_path, grade, bad_lines, skip_bad=skip_bad):
            num_records += 1
        if not num_records:
            raise DataError(nothing_usable(input_path, bad_lines, _WANTED))
    grades = [grade for group in grades_of.values() for grade in group]
    verdicts = [grade.correct for grade in grades]
    return GradeCounts(
        num_records=num_records,
        num_correct=verdicts.count(True),
        num_wrong=verdicts.count(False),
        num_ungraded=verdicts.count(None),
        num_without_answer=sum(grade.prediction is None for grade in grades),
        bad_lines=tuple(bad_lines),
        shares=tuple(fmean(one.correct is True for one in group) for group in grades_of.values() if group),
    )


def _question_of(item: JsonItem, task: Task) -> str | int:
    """Return the question of a record; its line where it has none."""
    try:
        return task.read_record(item.value, require_answer=False).question
    except FieldError:
        return item.line


def _grade_record(record: dict[str, Any], task: Task, grader: Grader) -> list[Grade]:
    answer = task.read_answer(record)
    if answer is None:
        raise FieldError("answer", f"is missing or empty (found {', '.join(record) or 'no field at all'})")
    name = next((name for name in RESPONSE_FIELDS if record.get(name) is not None), None)
    if name is None:
        missing = "is null" if "response" in record else "is missing"
        raise FieldError("response", f"{missing} (found {', '.join(record) or 'no field at all'})")
    response = record[name]
    responses = response if isinstance(response, list) else [response]
    for text in responses:
        if not isinstance(text, str):
            raise FieldError(name, "holds something that is not text", text)
    grades = [grader.grade(text, answer, task) for text in responses]
    predictions, verdicts = [grade.prediction for grade in grades], [grade.correct for grade in grades]
    several = isinstance(response, list)
    record["prediction"] = predictions if several else predictions[0]
    record["correct"] = verdicts if several else verdicts[0]
    return grades


def _json_line(record: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair: JSON can hold it as an escape only
        return (json.dumps(record) + "\n").encode("ascii")
