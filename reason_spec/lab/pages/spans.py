"""From marks to spans: what models, cache and verifier did, for how long, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from reason_spec.evaluation.timeline import Mark, Timeline
from reason_spec.events import Lane, Purpose
from reason_spec.types import Decision, Origin

State: TypeAlias = Literal["stands", "compared", "refused", "open", "unused", "cancelled"]
"""``stands``: is part of the answer, or was a verdict that accepts. ``compared``: the target's own step, in
whose place a drafted one that says the same stands. ``refused``: a verdict was against it. ``open``: the
verdict could not tell. ``unused``: came to its end and was of no use, because something else stood there, or
what it trusted did not stand. ``cancelled``: was stopped before its end."""

LANES: tuple[Lane, ...] = get_args(Lane)
_STATE_OF: dict[Decision, State] = {"accept": "stands", "reject": "refused", "unknown": "open"}
_ENDS = ("written", "cancelled", "checked", "verified")
_DIGITS = 1e-9


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work in seconds from the start of the answer; ``row`` keeps spans of a lane apart.

    A work that brings one step is one span. One that brings a whole answer has a span for each step of it.
    ``about`` is the work that a verdict is about.
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
class Final:
    """When a step became final, and who had written it."""

    at: float
    step_index: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Picture:
    """What a timeline shows: spans by their start, final steps in order, and the length in seconds."""

    spans: tuple[Span, ...]
    finals: tuple[Final, ...]
    seconds: float

    def num_rows(self, lane: Lane) -> int:
        """Return how many rows a lane needs so that no two of its spans overlap."""
        return max((span.row + 1 for span in self.spans if span.lane == lane), default=0)


def picture(timeline: Timeline) -> Picture:
    """Derive the spans of an answer. What was still under way when it was complete counts as cancelled then.

    Marks without a number of their work, but for final steps, are passed over.
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
    shown = tuple(Final(mark.at, mark.step_index, mark.origin or "target") for mark in finals)
    return Picture(tuple(_in_rows(spans)), shown, seconds)


def _spans_of(marks: Sequence[Mark], finals: Sequence[Mark], seconds: float) -> Iterator[Span]:
    """Yield the pieces of one work; their states are only known as far as the work itself tells."""
    begun = next((mark for mark in marks if mark.kind == "started"), None)
    if begun is None or begun.work is None:
        return
    purpose: Purpose = begun.purpose or "step"
    ends = [mark for mark in marks if mark.kind in _ENDS and mark.at >= begun.at]
    if purpose == "answer" and begun.lane == "target":
        # The steps of a whole answer are cut from its stream, and are final as they come.
        ends = [mark for mark in finals if mark.lane == "target" and mark.at >= begun.at]
    elif purpose != "answer":
        ends = ends[:1]
    if not ends:
        ends = [replace(begun, kind="cancelled", at=seconds)]
    confirmed = any(mark.kind == "confirmed" for mark in marks)
    start = begun.at
    for mark in ends:
        state: State = "unused"
        if mark.kind == "cancelled":
            state = "cancelled"
        elif mark.decision is not None and begun.lane == "verifier":
            state = _STATE_OF[mark.decision]
        elif mark.kind == "final" or (purpose == "ahead" and confirmed):
            state = "stands"
        place = (begun.work, begun.lane, purpose, mark.step_index, begun.branch)
        judged = (begun.about, mark.score, mark.reason) if begun.lane == "verifier" else (begun.about,)
        yield Span(*place, start, mark.at, state, mark.text, mark.num_tokens, *judged)
        start = mark.at


def _with_states(spans: Sequence[Span], finals: Sequence[Mark], verdicts: dict[int, Mark]) -> list[Span]:
    """Say what became of written steps: which of them stand, and what was said against the others."""
    standing = {_wrote(final, spans, verdicts) for final in finals}
    agreed = {(spans[number].step_index, spans[number].branch) for number in standing if number is not None}
    origins = {final.step_index: final.origin for final in finals}
    placed = []
    for number, span in enumerate(spans):
        verdict = verdicts.get(span.work)
        if span.lane == "verifier" or span.state != "unused" or span.purpose == "ahead":
            placed.append(span)
        elif number in standing:
            placed.append(_judged(span, "stands", verdict))
        elif span.purpose == "token":
            # The draft went on behind the mended token.
            stands = origins.get(span.step_index) == "draft"
            placed.append(replace(span, state="stands" if stands else "unused"))
        elif span.lane == "target" and (span.step_index, span.branch) in agreed:
            placed.append(replace(span, state="compared"))
        elif verdict is not None and verdict.decision not in (None, "accept"):
            placed.append(_judged(span, _STATE_OF[verdict.decision], verdict))
        else:
            placed.append(_judged(span, "unused", verdict))
    return placed


def _judged(span: Span, state: State, verdict: Mark | None) -> Span:
    if verdict is None:
        return replace(span, state=state)
    return replace(span, state=state, score=verdict.score, reason=verdict.reason)


def _wrote(final: Mark, spans: Sequence[Span], verdicts: dict[int, Mark]) -> int | None:
    """Return which span wrote a final step: of equal texts the accepted one, of several of these the last."""
    same = [
        (_accepts(verdicts.get(span.work)), span.end, number)
        for number, span in enumerate(spans)
        if (span.lane, span.step_index) == (final.lane, final.step_index)
        and span.purpose in ("step", "answer")
        and span.state != "cancelled"
        and span.end <= final.at + _DIGITS
        and final.text in (span.text, _whole_text(span, verdicts))
    ]
    return max(same, default=(False, 0.0, None))[2]


def _accepts(verdict: Mark | None) -> bool:
    return verdict is not None and verdict.decision == "accept"


def _whole_text(span: Span, verdicts: dict[int, Mark]) -> str:
    """Return a drafted step whole: one that was mended was written from the mended token on."""
    verdict = verdicts.get(span.work)
    return verdict.text if verdict is not None else span.text


def _in_rows(spans: Iterable[Span]) -> Iterator[Span]:
    """Give each span the first row of its lane that is free when it starts."""
    free_from: dict[Lane, list[float]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end, span.work)):
        rows = free_from.setdefault(span.lane, [])
        row = next((row for row, end in enumerate(rows) if end <= span.start), len(rows))
        rows[row : row + 1] = [span.end]
        yield replace(span, row=row)
