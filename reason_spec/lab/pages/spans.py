"""Derive spans from the events of an answer: each piece of work, its duration, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from reason_spec.evaluation.timeline import Mark, Timeline
from reason_spec.events import Lane, Purpose
from reason_spec.types import Decision, Origin

State: TypeAlias = Literal["kept", "matched", "rejected", "undecided", "unused", "cancelled"]
"""``kept``: part of the answer, or a verdict that accepts. ``matched``: the target's own step, where an
equivalent draft was kept instead. ``rejected``: a verdict was against it. ``undecided``: the verdict was
"unknown". ``unused``: finished, but another step was kept at its place. ``cancelled``: stopped early."""

LANES: tuple[Lane, ...] = get_args(Lane)
_STATE_OF: dict[Decision, State] = {"accept": "kept", "reject": "rejected", "unknown": "undecided"}
_ENDS = ("written", "cancelled", "checked", "verified")
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work, in seconds from the start of the answer.

    Work that brings one step is one span; work that brings a whole answer has a span for each step. ``row``
    separates spans of a lane that overlap. ``about`` is the number of the work that a verdict judges.
    """

    work: int
    lane: Lane
    purpose: Purpose
    step_index: int
    branch: int
    start: float
    end: float
    state: State
    text: str = ""
    num_tokens: int = 0
    about: int | None = None
    score: float | None = None
    reason: str = ""
    row: int = 0


@dataclass(frozen=True, slots=True)
class FinalStep:
    """The moment at which a step became final, and who wrote it."""

    at: float
    step_index: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The spans of an answer by their start, its final steps in order, and its length in seconds."""

    spans: tuple[Span, ...]
    finals: tuple[FinalStep, ...]
    seconds: float

    def num_rows(self, lane: Lane) -> int:
        """Return how many rows a lane needs so that no two of its spans overlap."""
        return max((span.row + 1 for span in self.spans if span.lane == lane), default=0)


def view_of(timeline: Timeline) -> TimelineView:
    """Derive the spans of an answer. Work under way at its end counts as cancelled then.

    Marks without a work number are ignored, except those of final steps.
    """
    marks = sorted(timeline.marks, key=lambda mark: mark.at)
    seconds = max((mark.at for mark in marks), default=0.0)
    by_work: dict[int, list[Mark]] = {}
    for mark in marks:
        if mark.work is not None:
            by_work.setdefault(mark.work, []).append(mark)
    finals = [mark for mark in marks if mark.kind == "final"]
    verdicts = {
        mark.about: mark
        for mark in marks
        if mark.kind in ("checked", "verified") and mark.about is not None and mark.decision is not None
    }
    spans = [span for work in by_work.values() for span in _spans_of(work, finals, seconds)]
    spans = _with_states(spans, finals, verdicts)
    steps = tuple(FinalStep(mark.at, mark.step_index, mark.origin or "target") for mark in finals)
    return TimelineView(tuple(_in_rows(spans)), steps, seconds)


def _spans_of(marks: Sequence[Mark], finals: Sequence[Mark], seconds: float) -> Iterator[Span]:
    """Yield the spans of one work, with the states that its own marks determine."""
    first = next((mark for mark in marks if mark.kind == "started"), None)
    if first is None or first.work is None:
        return
    purpose: Purpose = first.purpose or "step"
    ends = [mark for mark in marks if mark.kind in _ENDS and mark.at >= first.at]
    if purpose == "answer" and first.lane == "target":
        # The steps of a whole answer are cut from its stream and are final at once.
        ends = [mark for mark in finals if mark.lane == "target" and mark.at >= first.at]
    elif purpose != "answer":
        ends = ends[:1]
    if not ends:
        ends = [replace(first, kind="cancelled", at=seconds)]
    confirmed = any(mark.kind == "confirmed" for mark in marks)
    start = first.at
    for mark in ends:
        state: State = "unused"
        if mark.kind == "cancelled":
            state = "cancelled"
        elif mark.decision is not None and first.lane == "verifier":
            state = _STATE_OF[mark.decision]
        elif mark.kind == "final" or (purpose == "ahead" and confirmed):
            state = "kept"
        place = (first.work, first.lane, purpose, mark.step_index, first.branch)
        judged = (first.about, mark.score, mark.reason) if first.lane == "verifier" else (first.about,)
        yield Span(*place, start, mark.at, state, mark.text, mark.num_tokens, *judged)
        start = mark.at


def _with_states(spans: Sequence[Span], finals: Sequence[Mark], verdicts: dict[int, Mark]) -> list[Span]:
    """Set the states of written steps from the final steps and the verdicts about them."""
    kept = {_author(final, spans, verdicts) for final in finals}
    kept_places = {(spans[number].step_index, spans[number].branch) for number in kept if number is not None}
    origins = {final.step_index: final.origin for final in finals}
    found = []
    for number, span in enumerate(spans):
        verdict = verdicts.get(span.work)
        state: State = "unused"
        if span.lane == "verifier" or span.state != "unused" or span.purpose == "ahead":
            found.append(span)
            continue
        if number in kept:
            state = "kept"
        elif span.purpose == "token":
            # The draft continued after the corrected token.
            state = "kept" if origins.get(span.step_index) == "draft" else "unused"
            verdict = None
        elif span.lane == "target" and (span.step_index, span.branch) in kept_places:
            state, verdict = "matched", None
        elif verdict is not None and verdict.decision not in (None, "accept"):
            state = _STATE_OF[verdict.decision]
        score, reason = (verdict.score, verdict.reason) if verdict is not None else (span.score, span.reason)
        found.append(replace(span, state=state, score=score, reason=reason))
    return found


def _author(final: Mark, spans: Sequence[Span], verdicts: dict[int, Mark]) -> int | None:
    """Return which span wrote a final step: of equal texts an accepted one, of several of these the last."""

    def accepted(span: Span) -> bool:
        return span.work in verdicts and verdicts[span.work].decision == "accept"

    def texts(span: Span) -> set[str]:
        # A corrected step was only written from the corrected token on; its verdict has the whole text.
        return {span.text, verdicts[span.work].text if span.work in verdicts else span.text}

    same = [
        (accepted(span), span.end, number)
        for number, span in enumerate(spans)
        if (span.lane, span.step_index) == (final.lane, final.step_index)
        and span.purpose in ("step", "answer")
        and span.state != "cancelled"
        and span.end <= final.at + _TOLERANCE
        and final.text in texts(span)
    ]
    return max(same, default=(False, 0.0, None))[2]


def _in_rows(spans: Iterable[Span]) -> Iterator[Span]:
    """Give each span the first row of its lane that is free at its start."""
    free_from: dict[Lane, list[float]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end, span.work)):
        rows = free_from.setdefault(span.lane, [])
        row = next((row for row, end in enumerate(rows) if end <= span.start), len(rows))
        rows[row : row + 1] = [span.end]
        yield replace(span, row=row)
