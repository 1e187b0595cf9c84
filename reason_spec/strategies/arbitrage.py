"""Arbitrage (arXiv 2512.05033): a router says beforehand which steps the target would write better."""

from __future__ import annotations

from math import isnan
from typing import ClassVar

from reason_spec.engines.base import Engine, has_digit
from reason_spec.routers.base import Router, StepRoute
from reason_spec.routers.features import StepFeatures
from reason_spec.strategies.answer_work import AnswerWork
from reason_spec.strategies.base import RoutedStrategy
from reason_spec.strategies.gated import GatedStrategy
from reason_spec.strategies.routed import judge_by
from reason_spec.strategies.specreason import SpecReasonLoop
from reason_spec.strategies.step_loop import LoopOptions
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.types import Step
from reason_spec.verifiers.base import VerificationContext


class Arbitrage(RoutedStrategy, GatedStrategy):
    """Algorithm 1 (appendix D): the draft writes, and the target writes the steps that the router escalates.

    Unlike in the authors' program the target writes nothing for an accepted step. It reads the drafted steps
    before an escalated one as a prompt.
    """

    name: ClassVar[str] = "arbitrage"
    needs_router: ClassVar[bool] = True

    def _loop(self, answer: AnswerWork) -> SpecReasonLoop:
        return SpecReasonLoop(
            answer,
            judge_by(_ByFeatures(self.router, self.draft)),
            # The router reads the draft's log-probabilities, which a step of the suffix cache has not got.
            LoopOptions(proposes_known_steps=False, hands_over=True),
            first_by_target=self.settings.first_by_target,
        )


class _ByFeatures:
    """Asks a router about the features of a drafted step."""

    def __init__(self, router: Router, draft: Engine) -> None:
        self._router = router
        self._draft = draft

    def route(self, context: VerificationContext, drafted: Step) -> StepRoute:
        logprobs = drafted.logprobs or ()
        digits = [has_digit(self._draft.tokenizer, token) for token in tokens_for(drafted, self._draft)]
        if len(digits) != len(logprobs):
            # Encoded again, the text has other tokens than the draft wrote: which had a digit is not known.
            digits = [False] * len(logprobs)
        if logprobs and isnan(logprobs[-1]):
            # A server may omit the token that ends the text.
            logprobs, digits = logprobs[:-1], digits[:-1]
        features = StepFeatures.of_step(
            drafted.text,
            logprobs,
            digits,
            question=context.question,
            text_before=context.prefix_text,
            step_index=context.step_index,
            num_prefix_tokens=len(context.target_prefix or ()),
            ends_text=drafted.ends_text,
            first_entropy=drafted.first_entropy,
        )
        return self._router.route(features)
