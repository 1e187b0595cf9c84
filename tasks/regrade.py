"""Grade a file of existing responses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from reason_spec.errors import DataError
from reason_spec.tasks.base import FieldError, Task, get_task
from reason_spec.tasks.grading import Grade, Grader
from reason_spec.tasks.loading import BadLine, JsonRecord, bad_line_message, read_records
from reason_spec.tasks.output import atomic_output

RESPONSE_FIELDS: Final = ("response", "completion", "generation", "generated_text", "model_output")


class GradeCounts(NamedTuple):
    """Responses by outcome; a record with several responses counts each of them."""

    num_records: int
    num_correct: int
    num_wrong: int
    num_ungraded: int
    num_without_answer: int
    """Responses in which no answer was found; they are among ``num_wrong``."""
    bad_lines: tuple[BadLine, ...]

    @property
    def num_responses(self) -> int:
        return self.num_correct + self.num_wrong + self.num_ungraded

    @property
    def accuracy(self) -> float | None:
        """Share of correct responses among all, the ungraded included; None where there are none."""
        return self.num_correct / self.num_responses if self.num_responses else None


def grade_file(
    input_path: str | Path,
    output_path: str | Path,
    task: str | Task = "auto",
    skip_bad: bool = False,
    *,
    grader: Grader | None = None,
    on_record: Callable[[list[Grade]], None] | None = None,
) -> GradeCounts:
    """Add ``prediction`` and ``correct`` to every record of a file of responses.

    Records keep their order and all their fields. ``response`` is a text, or a list of texts (the
    results are lists then). ``correct`` is null where grading could not decide. The output appears
    whole or not at all, and may be the input file.

    Args:
        skip_bad: leave unusable lines out of the output and return them in ``bad_lines``.
        grader: used instead of a grader of its own; stays open.
        on_record: called with the grades of each record, for progress.

    Raises:
        DataError: the input cannot be read or has an unusable line, or the output cannot be written.
        SettingsError: there is no such task.
    """
    resolved = get_task(task)
    tally = _Tally()
    with contextlib.ExitStack() as stack:
        active = grader if grader is not None else stack.enter_context(Grader())
        output = stack.enter_context(atomic_output(Path(output_path)))
        for item in read_records(input_path):
            grades = _grade_item(item, resolved, active)
            if isinstance(grades, BadLine):
                if not skip_bad:
                    raise DataError(bad_line_message(input_path, grades))
                tally.bad_lines.append(grades)
                continue
            assert isinstance(item, JsonRecord)
            output.write(_json_line(item.value))
            tally.add(grades)
            if on_record is not None:
                on_record(grades)
        if not tally.num_records:
            raise DataError(_nothing_graded(input_path, tally.bad_lines))
    return tally.counts()


def _grade_item(item: JsonRecord | BadLine, task: Task, grader: Grader) -> list[Grade] | BadLine:
    if isinstance(item, BadLine):
        return item
    try:
        return _grade_record(item.value, task, grader)
    except FieldError as error:
        return BadLine(item.line, str(error))


def _grade_record(record: dict[str, Any], task: Task, grader: Grader) -> list[Grade]:
    answer = task.read_answer(record)
    if answer is None:
        raise FieldError("answer", f"is missing or empty (found {', '.join(record) or 'no field at all'})")
    name, response = _response(record)
    responses = response if isinstance(response, list) else [response]
    for text in responses:
        if not isinstance(text, str):
            raise FieldError(name, "holds something that is not text", text)
    grades = [grader.grade(text, answer, task) for text in responses]
    if isinstance(response, list):
        record["prediction"] = [grade.prediction for grade in grades]
        record["correct"] = [grade.correct for grade in grades]
    else:
        record["prediction"], record["correct"] = grades[0].prediction, grades[0].correct
    return grades


class _Response(NamedTuple):
    field: str
    value: Any


def _response(record: dict[str, Any]) -> _Response:
    for name in RESPONSE_FIELDS:
        if record.get(name) is not None:
            return _Response(name, record[name])
    missing = "is null" if "response" in record else "is missing"
    raise FieldError("response", f"{missing} (found {', '.join(record) or 'no field at all'})")


class _Tally:
    def __init__(self) -> None:
        self.num_records = 0
        self.bad_lines: list[BadLine] = []
        self._grades: list[Grade] = []

    def add(self, grades: list[Grade]) -> None:
        self.num_records += 1
        self._grades.extend(grades)

    def counts(self) -> GradeCounts:
        verdicts = [grade.correct for grade in self._grades]
        return GradeCounts(
            num_records=self.num_records,
            num_correct=verdicts.count(True),
            num_wrong=verdicts.count(False),
            num_ungraded=verdicts.count(None),
            num_without_answer=sum(grade.prediction is None for grade in self._grades),
            bad_lines=tuple(self.bad_lines),
        )


def _json_line(record: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold as an escape only
        return (json.dumps(record) + "\n").encode("ascii")


def _nothing_graded(path: str | Path, bad_lines: list[BadLine]) -> str:
    if not bad_lines:
        return f"{path}: is empty; it needs one JSON object a line, with question, answer and response."
    first = bad_lines[0]
    return f"{path}: none of its {len(bad_lines)} lines can be graded; line {first.line}: {first.reason}."
