"""The oracle of Arbitrage (arXiv 2512.05033, section 4.1), for analysis: it takes the better of two steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import ClassVar

from reason_spec.events import Recorder
from reason_spec.strategies.answer_work import AnswerWork
from reason_spec.strategies.base import RoutedStrategy, SolveRequest, check_judges_alone
from reason_spec.strategies.branch import Branch
from reason_spec.strategies.lookahead import LookaheadLoop
from reason_spec.strategies.step_loop import LoopOptions
from reason_spec.types import Decision, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier


class _OracleLoop(LookaheadLoop):
    """Lets the target write after the drafts: one that is slower than the target may be the better step."""

    async def _write_both(self, branch: Branch) -> Step | None:
        await asyncio.gather(*await self._draft(branch))
        own: Step | None = await self._tree.spawn(branch, self._write_target(branch))
        return own


class Oracle(RoutedStrategy):
    """Both models write every step, and the better one is taken: an upper bound for routers.

    It saves no work of the target. It is as good as its verifier, a reward model by default.
    """

    name: ClassVar[str] = "oracle"
    default_verifier: ClassVar[str | None] = "reward"

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        check_judges_alone(cls.name, verifier)

    def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        answer = AnswerWork(self.target, self.draft, self.settings, request, recorder)
        return _OracleLoop(answer, self._choose, LoopOptions(proposes_known_steps=False)).steps()

    async def _choose(self, context: VerificationContext, drafted: Step, own: Step) -> Verdict:
        """Score both steps; take the draft's if its score is as high (tau = 0 in the paper)."""
        if (drafted.text, drafted.finish) == (own.text, own.finish):
            return Verdict("accept", 1.0, reason="the same step")
        first = await self.verifier.verify(context, drafted)
        second = (await self.verifier.verify(context, own)).with_costs_of(first)
        if first.score is None or second.score is None:
            return Verdict("unknown", reason=f"{first.reason}; {second.reason}").with_costs_of(second)
        decision: Decision = "accept" if first.score >= second.score else "reject"
        reason = f"{first.score:.3f} for the draft's, {second.score:.3f} for the target's"
        return Verdict(decision, first.score, reason=reason).with_costs_of(second)
