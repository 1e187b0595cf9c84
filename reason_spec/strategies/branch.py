"""One open position of an answer, and the drafts of its step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from reason_spec.strategies.answer_work import TimelineRow, TrackedGeneration
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.target_hints import TargetHints
from reason_spec.types import Step, Verdict


class BranchState(Enum):
    OPEN = auto()
    """Draft or target write, or the drafts are judged alone."""
    VERIFYING = auto()
    """The target has written its own step; drafts are compared with it."""
    DECIDED = auto()
    """Its step is known. It becomes final when all steps before it are."""
    DROPPED = auto()
    """It assumed a draft that was rejected."""


class DraftState(Enum):
    WRITING = auto()
    WRITTEN = auto()
    """Complete, without a verdict."""
    UNDECIDED = auto()
    """Judged alone without a result: it is to be compared with the target's own step."""
    ACCEPTED = auto()
    REJECTED = auto()
    LOST = auto()
    """Too late, equal to another draft, or its engine failed."""


@dataclass(eq=False, slots=True)
class Draft:
    """One drafted step, of the draft model or of the suffix cache, and the branch that assumes it."""

    number: int
    """The number of its work in the timeline."""
    work: TrackedGeneration | None = None
    """None where the suffix cache proposed the step."""
    step_prefix: tuple[int, ...] = ()
    """Tokens of the step before this generation: those of an earlier draft, the last one corrected."""
    prefix_works: tuple[TrackedGeneration, ...] = ()
    """The generations that wrote them."""
    state: DraftState = DraftState.WRITING
    step: Step | None = None
    verdict: Verdict | None = None
    successor: Branch | None = None


@dataclass(eq=False, slots=True)
class Branch:
    """A position of an answer: the steps that are assumed before it, and those written for it."""

    row: TimelineRow
    request: SolveRequest
    """The rest of the answer after the assumed steps."""
    previous: Step | None
    decision: asyncio.Future[Step]
    distance: int
    """Positions between it and the first one that is not final; the priority of its requests."""
    held_back: bool
    """Whether it was opened too far ahead for the draft to begin at once."""
    is_late: bool = False
    """Whether a draft was not ready when the target had finished the step."""
    state: BranchState = BranchState.OPEN
    drafts: list[Draft] = field(default_factory=list)
    target: TrackedGeneration | None = None
    target_step: Step | None = None
    hints: TargetHints | None = None
    works: list[TrackedGeneration] = field(default_factory=list)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    chosen: Draft | None = None
    successor: Branch | None = None
    """The position after the decided step."""

    @property
    def step_index(self) -> int:
        return self.row.step_index

    def drafts_in(self, state: DraftState) -> list[Draft]:
        return [draft for draft in self.drafts if draft.state is state]

    def descendants(self) -> Iterator[Branch]:
        """Yield the branches after the decided step, or after every draft."""
        decided = self.state is BranchState.DECIDED
        for branch in [self.successor] if decided else [draft.successor for draft in self.drafts]:
            if branch is not None:
                yield branch
                yield from branch.descendants()
