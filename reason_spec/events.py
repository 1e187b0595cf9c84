"""What happened while a problem was solved, in the order it happened, for timelines and counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from reason_spec.types import Origin, Plan, Step, Usage, Verdict

logger = logging.getLogger(__name__)
EventKind: TypeAlias = Literal[
    "started", "hinted", "written", "confirmed", "cancelled", "checked", "verified", "final"
]
"""``verified`` carries the verdict that decides about a drafted step, ``checked`` one that left it open.
``confirmed`` says of a run ahead that the target chose its first token too."""
Lane: TypeAlias = Literal["draft", "target", "cache", "verifier"]
Purpose: TypeAlias = Literal["step", "answer", "ahead", "token", "verdict"]
"""What a work is to bring: a step, a whole answer, the next tokens of a step that the target is writing, the
one token that mends a step, or a verdict."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was tried.

    ``at`` counts seconds from the start of the solution; ``step_index`` is the place in the
    solution that the work is for, ``branch`` tells apart the works for one place. ``origin`` says of
    final steps, and of steps with a verdict, who wrote them. ``work`` numbers what was begun: its start and
    all that comes of it have the same number. ``about`` is the work whose text is judged, or was handed over.
    """

    kind: EventKind
    lane: Lane
    at: float
    step_index: int
    branch: int
    text: str = ""
    num_tokens: int = 0
    verdict: Verdict | None = None
    origin: Origin | None = None
    work: int | None = None
    about: int | None = None
    purpose: Purpose | None = None


Listener: TypeAlias = Callable[[Event], None]
TextListener: TypeAlias = Callable[[int, str], None]
"""Called with a place in the answer, in characters, and text that is certain from there on."""


@dataclass(slots=True)
class Recorder:
    """Collects the events, work and final steps of one solution.

    ``target_usage`` and ``draft_usage`` hold all work of the solution, that of losing branches
    included, and are complete once the strategy's generator has ended. ``plan`` is what the planner
    chose, None without one. ``verdicts`` are all that decided about a proposed step, ``cache_verdicts`` those
    among them about steps of the suffix cache, which was asked ``num_cache_asked`` times for one.
    ``num_late_drafts`` counts drafts of a step that were still being written when the target had its own:
    they were cancelled without a verdict. ``num_held_drafts`` are those among them that the depth had held
    back until the target was already writing the step.
    ``num_held_back`` counts drafted steps behind which no position was opened, since as many as an answer
    may have were open.
    ``first_target_usage`` is the work of the first request that the target had, which read the prompt.
    ``on_text`` is told of text that is certain before its step is final, where a strategy knows such text.
    """

    listener: Listener | None = None
    on_text: TextListener | None = None
    events: list[Event] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    cache_verdicts: list[Verdict] = field(default_factory=list)
    num_cache_asked: int = 0
    num_late_drafts: int = 0
    num_held_drafts: int = 0
    num_held_back: int = 0
    target_usage: Usage = field(default_factory=Usage)
    draft_usage: Usage = field(default_factory=Usage)
    first_target_usage: Usage | None = None
    plan: Plan | None = None
    draft_failure: str | None = None
    """Why the draft's engine was of no more use, and the target went on alone."""
    num_works: int = 0
    started: float = field(default_factory=time.perf_counter)

    def start(
        self, lane: Lane, step_index: int, branch: int, purpose: Purpose, *, about: int | None = None
    ) -> int:
        """Note that a work begins; return its number."""
        work = self.num_works
        self.num_works += 1
        self.emit("started", lane, step_index, branch, work=work, about=about, purpose=purpose)
        return work

    def emit(
        self,
        kind: EventKind,
        lane: Lane,
        step_index: int,
        branch: int,
        *,
        text: str = "",
        num_tokens: int = 0,
        verdict: Verdict | None = None,
        origin: Origin | None = None,
        work: int | None = None,
        about: int | None = None,
        purpose: Purpose | None = None,
    ) -> None:
        at = time.perf_counter() - self.started
        made_by = (verdict, origin, work, about, purpose)
        event = Event(kind, lane, at, step_index, branch, text, num_tokens, *made_by)
        self.events.append(event)
        if verdict is not None and kind == "verified":
            self.verdicts.append(verdict)
            if origin == "cache":
                self.cache_verdicts.append(verdict)
        if self.listener is not None:
            self.listener(event)

    def add_step(self, step: Step) -> None:
        """Take a final step."""
        lane: Lane = step.origin if step.origin in ("draft", "cache") else "target"
        self.emit(
            "final",
            lane,
            len(self.steps),
            0,
            text=step.text,
            num_tokens=len(step.tokens),
            verdict=step.verdict,
            origin=step.origin,
        )
        self.steps.append(step)

    def add_work(self, lane: Literal["draft", "target"], usage: Usage, *, kept: bool) -> None:
        """Count one generation's work; where it was not ``kept`` its tokens were discarded."""
        if not kept:
            discarded = usage.num_discarded_tokens + usage.num_generated_tokens
            usage = replace(usage, num_discarded_tokens=discarded)
        if lane == "target":
            self.first_target_usage = self.first_target_usage or usage
            self.target_usage += usage
        else:
            self.draft_usage += usage

    def lose_draft(self, failure: Exception) -> None:
        """Note that the draft's engine failed; the answer goes on without it."""
        if self.draft_failure is None:
            self.draft_failure = str(failure)
            logger.warning("an answer goes on without its draft: %s", failure)

    @property
    def alpha_step(self) -> float | None:
        """Share of judged drafts that stood; None where none was judged."""
        if not self.verdicts:
            return None
        return self.num_accepted_steps / len(self.verdicts)

    @property
    def num_accepted_steps(self) -> int:
        return sum(verdict.accepted for verdict in self.verdicts)

    @property
    def num_proposed_steps(self) -> int:
        """All drafts of steps that were judged, or came too late to be."""
        return len(self.verdicts) + self.num_late_drafts

    @property
    def verifier_seconds(self) -> float:
        return sum(verdict.cost_seconds for verdict in self.verdicts)
