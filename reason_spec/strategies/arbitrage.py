"""Arbitrage (arXiv 2512.05033): a router says beforehand which steps the target would write better."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar

from reason_spec.engines.base import Engine, has_digit
from reason_spec.events import Recorder
from reason_spec.routers.base import Router
from reason_spec.routers.features import StepFeatures
from reason_spec.strategies.autoregressive import whole_answer
from reason_spec.strategies.base import RoutedStrategy, SolveRequest
from reason_spec.strategies.gated import write_gated
from reason_spec.strategies.search import Search
from reason_spec.types import Decision, LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier


class Arbitrage(RoutedStrategy):
    """The draft writes; the target writes the steps that the router escalates, and judges none.

    What the draft wrote before such a step the target reads then, as a prompt.
    """

    name: ClassVar[str] = "arbitrage"
    needs_router: ClassVar[bool] = True

    def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        writer = whole_answer(self.settings, self.target, self.draft)
        return write_gated(
            lambda left: self._search(left, recorder),
            lambda left: writer._write_steps(left, recorder),
            request,
            recorder,
            self.target,
            self.draft,
        )

    def _search(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        return Search(
            self.target,
            self.draft,
            _Routed(self.router, self.draft),
            self.settings,
            request,
            recorder,
            alone=True,
            by_target=self.settings.first_by_target,
            # The router judges by how sure the draft was, which of another's step nobody knows.
            known_steps=False,
            hands_over=True,
        ).steps()


class _Routed(Verifier):
    """A router in the place of a verifier: to let a step stand is to accept it."""

    name: str = "router"
    loss_class: LossClass = "routed"
    judges_alone: bool = True
    compares: bool = False

    def __init__(self, router: Router, draft: Engine) -> None:
        super().__init__()
        self._router = router
        self._tokenizer = draft.tokenizer

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        route = self._router.route(self._features(context, drafted))
        decision: Decision = "accept" if route.writer == "draft" else "reject"
        return Verdict(decision, 1.0 - route.score, reason=route.reason)

    def _features(self, context: VerificationContext, drafted: Step) -> StepFeatures:
        logprobs, tokens = drafted.logprobs or (), drafted.tokens
        if drafted.tokenizer_id != self._tokenizer.tokenizer_id:
            tokens = self._tokenizer.encode(drafted.text)
        digits = [has_digit(self._tokenizer, token) for token in tokens]
        if len(digits) != len(logprobs):
            # Its text is cut into other tokens by itself than the draft wrote: no digit is told apart.
            digits = [False] * len(logprobs)
        return StepFeatures.of_step(
            drafted.text,
            logprobs,
            digits,
            question=context.question,
            text_before=context.prefix_text,
            step_index=context.step_index,
            num_prefix_tokens=len(context.target_prefix or ()),
            ends_text=drafted.ends_text,
        )
