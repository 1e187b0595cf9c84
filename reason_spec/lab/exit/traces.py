"""Stored answers, split into thinking and conclusion, and read as an exit policy reads them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reason_spec.accelerator.thinking import OPENER
from reason_spec.errors import DataError
from reason_spec.exit.features import Candidate, ExitReader
from reason_spec.exit.reading import Value
from reason_spec.exit.reading_model import ReadingModel
from reason_spec.exit.statements import MOST_STATEMENTS
from reason_spec.jsonl import FieldError, JsonItem, parse_items, read_records
from reason_spec.segment import split_steps
from reason_spec.strategies.thinking import CLOSER
from reason_spec.tasks.base import Record, Task, get_task
from reason_spec.tasks.regrade import RESPONSE_FIELDS

GROUP_FIELDS: Final = ("group", "model")
SOLUTIONS_FIELD: Final = "solutions"
_WANTED: Final = "with question, answer and response"
_S1_OPENER: Final = "think\n"
_S1_CLOSER: Final = "\nanswer\n"
"""s1 marks its thinking by special tokens, of which decoding leaves these words."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A stored answer.

    ``thinking`` is the text that a policy may shorten, without its tags: all of ``response`` where no
    thinking is marked in it. ``problem`` is equal for answers to the same question.
    """

    id: str
    problem: str
    question: str
    answer: str
    response: str
    thinking: str
    group: str | None = None


def read_traces(path: Path, task: str | Task = "auto", *, groups: Iterable[str] = ()) -> tuple[Trace, ...]:
    """Read a file of answers.

    A line has ``question``, ``answer`` and either ``response`` (a text, or a list of texts) or ``solutions``
    (texts by model, which become the groups). ``group`` or ``model`` names the group of a ``response``.

    Args:
        groups: the groups to read; empty: all.

    Raises:
        DataError: the file or a line cannot be used; the message names file, line and field.
    """
    resolved, wanted = get_task(task), set(groups)
    records = read_records(path, f"one object a line {_WANTED}")

    def parse(item: JsonItem) -> list[Trace]:
        return list(_traces(item, resolved))

    found = [trace for line in parse_items(records, path, parse, [], skip_bad=None) for trace in line]
    if missing := wanted - {trace.group for trace in found}:
        names = ", ".join(sorted({trace.group for trace in found if trace.group}) or ("none",))
        raise DataError(f"{path}: no answers of {', '.join(sorted(missing))}. Its groups: {names}.")
    found = [trace for trace in found if not wanted or trace.group in wanted]
    if not found:
        raise DataError(f"{path}: holds no answers. Give one object a line {_WANTED}.")
    return tuple(found)


def _traces(item: JsonItem, task: Task) -> Iterator[Trace]:
    fields = item.value
    record = task.read_record(fields)
    assert record.answer is not None, "the task requires an answer"
    if isinstance(solutions := fields.get(SOLUTIONS_FIELD), dict):
        for group, text in solutions.items():
            yield _trace(SOLUTIONS_FIELD, record, item.line, text, str(group))
        return
    name = next((name for name in RESPONSE_FIELDS if fields.get(name) is not None), None)
    if name is None:
        raise FieldError("response", f"is missing (found {', '.join(fields) or 'no field at all'})")
    group = next((str(fields[name]) for name in GROUP_FIELDS if fields.get(name) is not None), None)
    texts = fields[name] if isinstance(fields[name], list) else [fields[name]]
    for text in texts:
        yield _trace(name, record, item.line, text, group)


def _trace(field: str, record: Record, line: int, text: Any, group: str | None) -> Trace:
    if not isinstance(text, str):
        raise FieldError(field, "holds something that is not text", text)
    assert record.answer is not None
    name = str(line) if record.id is None else record.id
    thinking = split_thinking(text)
    return Trace(name, record.question, record.question, record.answer, text, thinking, group)


def split_thinking(response: str) -> str:
    """Return the thinking of a response; the whole response where none is marked."""
    if CLOSER in response:
        return (
            response.partition(CLOSER)[0].partition(OPENER)[2]
            if OPENER in response
            else response.partition(CLOSER)[0]
        )
    if response.startswith(_S1_OPENER) and _S1_CLOSER in response:
        return response.partition(_S1_CLOSER)[0].removeprefix(_S1_OPENER)
    return response.replace(OPENER, "", 1)


class StatementState(NamedTuple):
    """A statement in step ``step`` (from 0), and the state of the small model behind it: ``[width]``."""

    step: int
    value: Value
    state: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """The steps of a thinking: their texts, where each ends, in characters, and the candidates after it.

    ``candidates`` is empty where a policy chose among them as the text was read; ``statements`` is, too, and
    where no small model read along.
    """

    trace: Trace
    steps: tuple[str, ...]
    ends: tuple[int, ...]
    candidates: tuple[tuple[Candidate, ...], ...]
    statements: tuple[StatementState, ...] = ()


def read_steps(
    traces: Iterable[Trace],
    advance: Callable[[], None] = lambda: None,
    *,
    reduce: Callable[[ReadTrace], ReadTrace] | None = None,
    model: ReadingModel | None = None,
) -> list[ReadTrace]:
    """Read the thinking of each answer step by step, as a policy does.

    Args:
        reduce: returns what is kept of each answer, since the candidates of many long texts fill the memory;
            None: all of it.
        model: reads the statements along.
    """
    found = []
    for trace in traces:
        reader, end = ExitReader(trace.question), 0
        reading = None if model is None else model.begin(trace.question)
        ends: list[int] = []
        statements: list[StatementState] = []
        candidates: list[tuple[Candidate, ...]] = []
        steps = split_steps(trace.thinking)
        for number, step in enumerate(steps):
            end += len(step)
            ends.append(end)
            candidates.append(tuple(map(_compact, reader.read(step))))
            if reading is not None and reader.statements:
                few = reader.statements[: MOST_STATEMENTS - len(statements)]
                states = reading.read([statement.line for statement in few])
                statements += [
                    StatementState(number, one.value, state) for one, state in zip(few, states, strict=False)
                ]
        read = ReadTrace(trace, tuple(steps), tuple(ends), tuple(candidates), tuple(statements))
        found.append(read if reduce is None else reduce(read))
        advance()
    return found


def _compact(candidate: Candidate) -> Candidate:
    """Return a candidate with features in single precision, in which models read them."""
    return candidate._replace(features=array("f", candidate.features))
