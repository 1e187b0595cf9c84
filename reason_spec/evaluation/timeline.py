"""Timelines of answers, stored beside the results for pictures of single answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from reason_spec.errors import DataError
from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.records import read_records
from reason_spec.events import Event, EventKind, Lane, Purpose, Recorder
from reason_spec.types import Decision, Origin

TIMELINES = "timelines.jsonl"
"""A timeline is written before its answer. After a kill between the two the answer is generated again, so its
last timeline counts."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event as it is stored; ``at`` counts seconds from the start of the answer.

    ``work`` numbers what was begun, ``about`` the work whose text is judged or was handed over; see `Event`.
    """

    kind: EventKind
    lane: Lane
    at: float
    step_index: int
    branch: int
    num_tokens: int = 0
    text: str = ""
    origin: Origin | None = None
    decision: Decision | None = None
    score: float | None = None
    reason: str = ""
    seconds: float = 0.0
    """Seconds of the verdict, if there is one."""
    work: int | None = None
    about: int | None = None
    purpose: Purpose | None = None

    @classmethod
    def of(cls, event: Event) -> Self:
        verdict = event.verdict
        return cls(
            event.kind,
            event.lane,
            round(event.at, 6),
            event.step_index,
            event.branch,
            event.num_tokens,
            event.text,
            event.origin,
            decision=None if verdict is None else verdict.decision,
            score=None if verdict is None else verdict.score,
            reason="" if verdict is None else verdict.reason,
            seconds=0.0 if verdict is None else round(verdict.cost_seconds, 6),
            work=event.work,
            about=event.about,
            purpose=event.purpose,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: most marks have few."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in values if value != field.default}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The marks of one answer, in order of time."""

    key: UnitKey
    marks: tuple[Mark, ...]

    @classmethod
    def of(cls, key: UnitKey, recorder: Recorder) -> Self:
        return cls(key, tuple(map(Mark.of, recorder.events)))

    def to_json(self) -> str:
        """Return the timeline as one line of JSON."""
        marks = [mark.to_dict() for mark in self.marks]
        return json.dumps({**self.key._asdict(), "marks": marks}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line that ``to_json`` wrote.

        Raises:
            ValueError: the line is not one.
        """
        record = json.loads(line)
        try:
            key = UnitKey(record["problem_id"], record["sample"], record["strategy"])
            return cls(key, tuple(Mark(**mark) for mark in record["marks"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"is no timeline ({error})") from None


def read_timelines(folder: Path) -> Iterator[Timeline]:
    """Yield the timelines of a run's folder, none where it stored none. The last one of an answer counts.

    Raises:
        DataError: a line is damaged; the message names it.
    """
    for _, timeline in read_records(folder / TIMELINES, Timeline.from_json, DataError, "Remove the line."):
        yield timeline
