"""Lookahead Reasoning (arXiv 2506.19830): draft steps ahead, let the target write several at once, verify."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeAlias

from reason_spec.control.answer_model import StepForm
from reason_spec.errors import SettingsError
from reason_spec.strategies.answer_work import AnswerWork
from reason_spec.strategies.branch import Branch, BranchState, Draft, DraftState
from reason_spec.strategies.gated import GatedStrategy
from reason_spec.strategies.step_loop import LoopOptions, StepLoop
from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

Compare: TypeAlias = Callable[[VerificationContext, Step, Step], Awaitable[Verdict]]
"""Decides whether a drafted step (the second argument) may replace the target's own (the third)."""


class LookaheadLoop(StepLoop):
    """Algorithm 1 (section 3.1) in its asynchronous form, with ``depth`` for the paper's gamma.

    The positions from the root on are written in parallel: the draft's step opens the next position as soon
    as it is there. In the paper the draft writes one step beyond the last that the target works on; here the
    target works one step beyond the draft's last, so that ``depth`` drafts serve ``depth`` + 1 target steps.
    Several drafts of a step (``width``) make it a tree. Added to the paper: drafted steps are hints for the
    target's tokens (`TargetHints`), and a position that was decided ahead of its turn continues from there.
    """

    _streams_drafts: ClassVar[bool] = True

    def __init__(self, answer: AnswerWork, compare: Compare, options: LoopOptions) -> None:
        super().__init__(answer, options)
        self._compare = compare

    async def _write_position(self, branch: Branch) -> None:
        own = await self._write_both(branch)
        if own is None:
            return
        self._give_up_late_drafts(branch)
        # Verify: take the first draft that matches the target's step, else the target's own.
        drafts = branch.drafts_in(DraftState.WRITTEN)
        await asyncio.gather(*(self._verify(branch, draft, own) for draft in drafts))
        self._tree.decide(branch)

    async def _write_both(self, branch: Branch) -> Step | None:
        """Let draft and target write the position at the same time; return the target's step."""
        self._tree.spawn(branch, self._draft(branch))
        own: Step | None = await self._tree.spawn(branch, self._write_target(branch))
        return own

    async def _draft(self, branch: Branch) -> list[asyncio.Task[bool]]:
        """Draft the step when the position is near enough; each draft opens the next position."""
        if not await self._tree.may_draft(branch) or branch.state is not BranchState.OPEN:
            return []
        return [
            self._tree.spawn(branch, self._write_draft(branch, draft)) for draft in self._begin_drafts(branch)
        ]

    async def _verify(self, branch: Branch, draft: Draft, own: Step) -> None:
        assert draft.step is not None
        judging = self._compare(branch.request.context, draft.step, own)
        await self._take_verdict(branch, draft, judging, DraftState.REJECTED)

    def _give_up_late_drafts(self, branch: Branch) -> None:
        """Cancel drafts that are slower than the target: they have nothing left to save."""
        for draft in branch.drafts_in(DraftState.WRITING):
            self._tree.cancel_draft(draft)
            draft.state = DraftState.LOST
            branch.is_late = True
            self._recorder.num_late_drafts += 1


class Lookahead(GatedStrategy):
    """The target writes every step; drafted steps that are the same let it write several at once."""

    name: ClassVar[str] = "lookahead"
    default_verifier: ClassVar[str | None] = "semantic"
    planned: ClassVar[StepForm | None] = "compared"

    @property
    def loss_class(self) -> LossClass:
        return "exact" if self.settings.depth == 0 else self.verifier.loss_class

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        if not verifier.compares:
            raise SettingsError(
                f"strategy {cls.name} compares steps, and verifier {verifier.name} judges them alone: use "
                "strategy specreason, or a verifier that compares (semantic)"
            )

    def _loop(self, answer: AnswerWork) -> StepLoop:
        options = LoopOptions(is_exact=self.verifier.loss_class == "exact", hands_over=True)
        return LookaheadLoop(answer, self.verifier.verify, options)
