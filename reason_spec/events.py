"""Events of one solution in order of time, for timelines and counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from reason_spec.types import Origin, Plan, Step, Usage, Verdict

logger = logging.getLogger(__name__)
EventKind: TypeAlias = Literal[
    "started", "hinted", "written", "confirmed", "cancelled", "checked", "verified", "final", "exited"
]
"""``verified`` carries the verdict that decides a drafted step, ``checked`` one that leaves it undecided.
``confirmed``: the target chose the first token of tokens that were drafted ahead. ``exited``: a rule of early
exit ended the thinking; the text is the answer that it expects, the verdict's score the chance of it."""
Lane: TypeAlias = Literal["draft", "target", "cache", "verifier"]
Purpose: TypeAlias = Literal["step", "answer", "ahead", "token", "verdict", "probe"]
"""The aim of a piece of work: a step, a whole answer, draft tokens for the step that the target is writing,
the one token that corrects a step, a verdict, or a trial answer (`reason_spec.exit.probes`)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a timeline.

    ``at`` is in seconds from the start of the solution. ``step_index`` is the index of the step, and
    ``branch`` separates several pieces of work on one step. ``origin`` is the source of a final or verified
    step. ``work`` numbers the pieces of work: the events of one have the same number. ``about`` is the work
    whose text is verified or offered as a hint.
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
"""Called with an offset in the answer, in characters, and the final text that begins there."""
ThinkingEnd: TypeAlias = Literal["model", "tokens", "steps", "monitor"]
"""What ended a thinking: the model itself, a limit of tokens or steps, or a monitor."""


@dataclass(frozen=True, slots=True)
class ThinkingOutcome:
    """The size of a limited thinking, without its tags, and what ended it."""

    num_tokens: int
    num_steps: int
    ended_by: ThinkingEnd


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """Where a rule ended the thinking of an answer.

    ``num_steps`` are final before it. ``answer`` is what the rule expected, ``chance`` the policy's chance of
    it or the confidence of the trial answer.
    """

    rule: str
    num_steps: int
    answer: str
    chance: float


@dataclass(slots=True)
class Recorder:
    """Collects the events, work and final steps of one solution.

    ``target_usage`` and ``draft_usage`` hold all work, rejected branches included; they are complete once the
    strategy's generator has ended. ``plan`` is the planner's choice, None without a planner. ``verdicts``
    holds the deciding verdicts, ``cache_verdicts`` those on steps of the suffix cache, which was asked for
    a step ``num_cache_asked`` times. ``num_late_drafts`` counts drafts that were cancelled without a
    verdict because the target had finished the step first. ``num_drafted_positions`` had drafts that were
    judged or came too late, except for those that ``depth`` delayed until the target was already writing
    the step; at ``num_filled_positions`` of them a draft became the step. ``num_held_back`` counts drafted
    steps without a position after them because the limit of open positions was reached.
    ``first_target_usage`` is the work of the target's first request, which read the prompt. ``on_text``
    receives text that no longer changes, before its step is final, if the strategy knows such text.
    ``thinking`` is the outcome of a limited thinking, None without a limit.
    """

    listener: Listener | None = None
    on_text: TextListener | None = None
    events: list[Event] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    cache_verdicts: list[Verdict] = field(default_factory=list)
    num_cache_asked: int = 0
    num_late_drafts: int = 0
    num_drafted_positions: int = 0
    num_filled_positions: int = 0
    num_held_back: int = 0
    target_usage: Usage = field(default_factory=Usage)
    draft_usage: Usage = field(default_factory=Usage)
    first_target_usage: Usage | None = None
    plan: Plan | None = None
    early_exit: EarlyExit | None = None
    """None where the model itself, or a limit, ended the thinking."""
    num_probes: int = 0
    """Trial answers that were asked for, each model's counted."""
    num_probe_tokens: int = 0
    """Tokens of trial answers; they are part of the models' work, not of the answer."""
    thinking: ThinkingOutcome | None = None
    draft_failure: str | None = None
    """The error after which the target continued without the draft."""
    num_works: int = 0
    reader_seconds: float = 0.0
    """How long the reader of the steps did not ask for the next one, up to the last."""
    started: float = field(default_factory=lambda: time.perf_counter())  # noqa: PLW0108, the clock may be replaced

    def start(
        self, lane: Lane, step_index: int, branch: int, purpose: Purpose, *, about: int | None = None
    ) -> int:
        """Record that a piece of work starts; return its number."""
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
        """Record a final step."""
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

    def add_position(self, *, filled: bool) -> None:
        """Count a position with drafts, and whether one of them became its step."""
        self.num_drafted_positions += 1
        self.num_filled_positions += filled

    def add_work(self, lane: Literal["draft", "target"], usage: Usage, *, kept: bool) -> None:
        """Count the work of a generation; unless it is ``kept``, its tokens count as discarded."""
        if not kept:
            discarded = usage.num_discarded_tokens + usage.num_generated_tokens
            usage = replace(usage, num_discarded_tokens=discarded)
        if lane == "target":
            self.first_target_usage = self.first_target_usage or usage
            self.target_usage += usage
        else:
            self.draft_usage += usage

    def end_early(self, found: EarlyExit) -> None:
        """Record that a rule ends the thinking."""
        self.early_exit = found
        verdict = Verdict("accept", found.chance, reason=found.rule)
        self.emit("exited", "target", found.num_steps, 0, text=found.answer, verdict=verdict)

    def add_probe(self, lane: Literal["draft", "target"], usage: Usage) -> None:
        """Count the work of a trial answer."""
        self.num_probes += 1
        self.num_probe_tokens += usage.num_generated_tokens
        self.add_work(lane, usage, kept=True)

    def lose_draft(self, failure: Exception) -> None:
        """Record that the draft's engine failed; the answer continues without it."""
        if self.draft_failure is None:
            self.draft_failure = str(failure)
            logger.warning("an answer continues without its draft: %s", failure)

    @property
    def alpha_step(self) -> float | None:
        """Share of judged drafts that were accepted; None if none was judged."""
        if not self.verdicts:
            return None
        return self.num_accepted_steps / len(self.verdicts)

    @property
    def num_accepted_steps(self) -> int:
        return sum(verdict.accepted for verdict in self.verdicts)

    @property
    def num_proposed_steps(self) -> int:
        """Drafted steps, judged or too late for a verdict."""
        return len(self.verdicts) + self.num_late_drafts

    @property
    def verifier_seconds(self) -> float:
        return sum(verdict.cost_seconds for verdict in self.verdicts)
