"""A position of a solution under search, and the drafts tried at it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from reason_spec.engines.base import Generation
from reason_spec.segment import OpenBlocks
from reason_spec.strategies.draft_ahead import DraftAhead
from reason_spec.types import Prefix, Step, Verdict

MOST_BRANCHES: Final = 32
"""Positions of one answer that are open at once, or ``depth`` and one where that is more.

Without a bound they are ``width`` to the power of ``depth``, each with a request to the target.
"""


@dataclass(eq=False, slots=True)
class Draft:
    """One attempt at a position, of the draft or of the suffix cache, and the branch that trusts it.

    What the cache knows needs no generation: its step is there from the start.
    """

    generation: Generation | None
    begun: tuple[int, ...] = ()
    """Tokens of the step that were there before this attempt: sound ones of an earlier, and one mended."""
    step: Step | None = None
    verdict: Verdict | None = None
    successor: Branch | None = None
    judging: asyncio.Task[None] | None = None
    work: int | None = None
    """Its number in the timeline."""
    settled: bool = False
    """Written, and judged where steps are judged alone; or of no use."""


@dataclass(eq=False, slots=True)
class Branch:
    """A position of the solution: what is assumed before it, and the steps written for it."""

    number: int
    step_index: int
    target_prefix: Prefix
    draft_prefix: Prefix
    num_tokens_left: int
    previous: Step | None
    text_before: str
    begins_in: OpenBlocks
    decision: asyncio.Future[Step]
    distance: int
    """Undecided positions of its solution that it stands behind."""
    generations: list[Generation] = field(default_factory=list)
    target_generation: Generation | None = None
    ahead: DraftAhead | None = None
    target_step: Step | None = None
    drafts: list[Draft] = field(default_factory=list)
    target_started: bool = False
    drafting_started: bool = False
    held_back: bool = False
    """Whether the depth limit delayed the draft until the target was writing."""
    chosen: Draft | None = None
    successor: Branch | None = None
    dropped: bool = False

    @property
    def decided(self) -> bool:
        return self.decision.done()

    def descendants(self) -> Iterator[Branch]:
        """Yield the branches behind this one: behind the chosen step, or behind every draft."""
        behind = [self.successor] if self.decided else [draft.successor for draft in self.drafts]
        for branch in behind:
            if branch is not None:
                yield branch
                yield from branch.descendants()
