"""The open positions of one answer: assumed steps, running work and cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeAlias

from reason_spec.engines.generation import EngineRequest
from reason_spec.events import Purpose
from reason_spec.strategies.answer_work import AnswerWork, ModelLane, TimelineRow, TrackedGeneration
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.branch import Branch, BranchState, Draft, DraftState
from reason_spec.types import Step

logger = logging.getLogger(__name__)
MOST_BRANCHES: Final = 32
"""Positions of one answer that are open at once, or ``depth`` and one where that is more.

Without a bound they are ``width`` to the power of ``depth``, each with a request to the target.
"""
WritePosition: TypeAlias = Callable[[Branch], Coroutine[None, None, None]]


class StepTree:
    """The branches of one answer, from the first position that is not final (the root) on.

    Args:
        write: writes a position and ends with `decide`; started as a task when the position is opened, and
            cancelled when it is dropped.
    """

    def __init__(self, answer: AnswerWork, write: WritePosition) -> None:
        self._answer = answer
        self._request = answer.request
        self._write = write
        self._num_opened = 0
        self._most_open = max(MOST_BRANCHES, answer.settings.depth + 1)
        self._root_moved = asyncio.Event()
        self._root: Branch | None = None
        self._root_index = answer.request.num_steps_before

    @property
    def root(self) -> Branch:
        assert self._root is not None, "no position was opened"
        return self._root

    @property
    def depth(self) -> int:
        """How many steps ahead the draft may be now."""
        return min(self._answer.settings.depth, self._request.budget.depth)

    @property
    def is_stopped(self) -> bool:
        """Whether the load controller allows no steps ahead now."""
        return self._request.budget.depth == 0

    def open_root(self) -> Branch:
        self._root = self._open(self._request, None)
        return self._root

    def advance(self) -> Branch:
        """Make the position after the decided root the root, and let the draft look further ahead."""
        root = self.root
        self._root_index += 1
        if root.successor is None:
            root.successor = self._open_after(root, root.decision.result())
        self._root = root.successor
        for branch in [self._root, *self._root.descendants()]:
            branch.distance = branch.step_index - self._root_index
            for work in branch.works:
                work.generation.set_priority(branch.distance)
            if branch.hints is not None:
                branch.hints.set_priority(branch.distance)
            self._open_next(branch)
        self._root_moved.set()
        self._root_moved = asyncio.Event()
        return self._root

    async def may_draft(self, branch: Branch) -> bool:
        """Wait until a position is less than ``depth`` behind the root; False where nothing is drafted."""
        prompt = branch.request.draft_prompt
        if prompt is None or len(prompt) >= self._answer.draft.max_context:
            return False
        while (depth := self.depth) > 0 and branch.step_index - self._root_index >= depth:
            await self._root_moved.wait()
        return depth > 0

    def look_ahead(self, branch: Branch, draft: Draft) -> None:
        """Open the position after a drafted step, unless the draft repeats itself or the text ends."""
        assert draft.step is not None
        repeats = branch.previous is not None and branch.previous.text == draft.step.text
        if repeats or self.is_last(branch, draft.step):
            return
        if self._has_room:
            draft.successor = self._open_after(branch, draft.step)
        else:
            # It is opened once the step is accepted.
            self._answer.recorder.num_held_back += 1

    def decide(self, branch: Branch, *, saved: bool = True) -> None:
        """Take the accepted draft, else the target's step; cancel the other drafts and what assumes them.

        Args:
            saved: an accepted draft has saved something; False where the target wrote the step itself.
        """
        branch.chosen = next(iter(branch.drafts_in(DraftState.ACCEPTED)), None)
        filled = saved and branch.chosen is not None
        is_judged = any(draft.verdict is not None for draft in branch.drafts)
        if is_judged or (branch.is_late and not branch.held_back):
            self._answer.recorder.add_position(filled=filled)
        if is_judged:
            self._answer.request.budget.record_position(filled=filled)
        for draft in branch.drafts:
            if draft is not branch.chosen:
                self.cancel_draft(draft)
                self.drop_after(draft)
        if branch.chosen is not None and branch.chosen.step is not None:
            step = replace(branch.chosen.step, verdict=branch.chosen.verdict)
            branch.successor = branch.chosen.successor
        else:
            assert branch.target_step is not None, "a position was decided without a step"
            verdicts = (draft.verdict for draft in branch.drafts if draft.verdict is not None)
            step = replace(branch.target_step, verdict=next(verdicts, None))
        branch.state = BranchState.DECIDED
        branch.decision.set_result(step)
        self._open_next(branch)

    def drop_after(self, draft: Draft) -> None:
        """Cancel everything that assumes a drafted step."""
        if draft.successor is None:
            return
        for branch in [draft.successor, *draft.successor.descendants()]:
            branch.state = BranchState.DROPPED
            if branch.hints is not None:
                branch.hints.stop()
            for work in branch.works:
                self._answer.cancel(work)
            for task in branch.tasks:
                task.cancel()
        draft.successor = None

    def cancel_draft(self, draft: Draft) -> None:
        if draft.work is not None:
            self._answer.cancel(draft.work)

    def submit(
        self, lane: ModelLane, branch: Branch, request: EngineRequest, purpose: Purpose = "step"
    ) -> TrackedGeneration:
        work = self._answer.submit(lane, branch.row, request, purpose)
        branch.works.append(work)
        return work

    def spawn(self, branch: Branch, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._answer.spawn(work)
        branch.tasks.append(task)
        return task

    @staticmethod
    def is_last(branch: Branch, step: Step) -> bool:
        """Whether the answer ends with this step."""
        return step.ends_text or branch.request.max_tokens <= len(step.tokens)

    def warn_of_bound(self) -> None:
        """Log where the bound on open positions held drafts back."""
        recorder, settings = self._answer.recorder, self._answer.settings
        if recorder.num_held_back:
            logger.warning(
                "no position was opened behind %d drafted steps: an answer has at most %d open positions, "
                "and width %d with depth %d wants more; set a smaller width or depth",
                recorder.num_held_back,
                self._most_open,
                settings.width,
                settings.depth,
            )

    @property
    def _has_room(self) -> bool:
        return sum(1 for _ in self.root.descendants()) + 1 < self._most_open

    def _open_next(self, branch: Branch) -> None:
        """Open the position after a decided one, ahead of its turn where the depth allows it.

        The root's successor is opened by `advance`, when the suffix cache has learned the root's step.
        """
        if branch is self._root or branch.state is not BranchState.DECIDED or branch.successor is not None:
            return
        step = branch.decision.result()
        within = branch.step_index - self._root_index < self.depth
        if within and self._has_room and not self.is_last(branch, step):
            branch.successor = self._open_after(branch, step)

    def _open_after(self, branch: Branch, step: Step) -> Branch:
        request = branch.request.after((step,), self._answer.target, self._answer.draft)
        return self._open(request, step)

    def _open(self, request: SolveRequest, previous: Step | None) -> Branch:
        distance = request.num_steps_before - self._root_index
        # A decided root moves on at once.
        moves = self._root is not None and self._root.state is BranchState.DECIDED
        branch = Branch(
            TimelineRow(request.num_steps_before, self._num_opened),
            request,
            previous,
            asyncio.get_running_loop().create_future(),
            distance,
            held_back=distance - moves >= self.depth,
        )
        self._num_opened += 1
        self.spawn(branch, self._write(branch))
        return branch
