"""For analysis: both models write every step, and the better one stands."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar

from reason_spec.events import Recorder
from reason_spec.strategies.base import RoutedStrategy, SolveRequest
from reason_spec.strategies.search import Search
from reason_spec.strategies.specreason import check_judges_alone
from reason_spec.types import Decision, LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier


class Oracle(RoutedStrategy):
    """The oracle of Arbitrage (arXiv 2512.05033, section 4.1): what any router could win at the most.

    The target writes every step, so that nothing is saved: this is a bound, not a way to answer sooner. It is
    as good as its verifier, a reward model by default.
    """

    name: ClassVar[str] = "oracle"
    default_verifier: ClassVar[str | None] = "reward"

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        check_judges_alone(cls.name, verifier)

    def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        judge = _Better(self.verifier)
        return Search(
            self.target, self.draft, judge, self.settings, request, recorder, known_steps=False
        ).steps()


class _Better(Verifier):
    """Lets a drafted step stand that is worth as much as the target's own."""

    name: str = "oracle"
    loss_class: LossClass = "routed"

    def __init__(self, judge: Verifier) -> None:
        # Both steps have its deadline.
        super().__init__(2 * judge.deadline_seconds)
        self._judge_alone = judge

    def _judge_by_rules(self, drafted: Step, target: Step | None) -> Verdict | None:
        same = target is not None and (drafted.text, drafted.finish) == (target.text, target.finish)
        return Verdict("accept", 1.0, reason="the same step") if same else None

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None, "the oracle compares"
        first = await self._judge_alone.verify(context, drafted)
        second = (await self._judge_alone.verify(context, target)).after(first)
        if first.score is None or second.score is None:
            return Verdict("unknown", reason=f"{first.reason}; {second.reason}").after(second)
        decision: Decision = "accept" if first.score >= second.score else "reject"
        reason = f"{first.score:.3f} for the draft's, {second.score:.3f} for the target's"
        return Verdict(decision, first.score, reason=reason).after(second)
