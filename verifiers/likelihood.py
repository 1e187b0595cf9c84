"""``likelihood``: would the target have written this step? Read off one pass of it over the drafted step.

The target's log-probabilities of the drafted tokens cost one pass for the whole step, where writing it costs
one for every token or two. A wording that the target would choose seldom is still likely token by token
behind its first words; a number that does not follow is not. (SpecReason, arXiv 2504.07891, asks the target
for a score instead, and SpecGuard, arXiv 2604.15244, takes the least likely token.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import fmean
from typing import Final

from reason_spec.engines.base import Engine, has_digit
from reason_spec.types import Decision, LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

DEFAULT_THRESHOLD: Final = 0.9
REJECTED_BELOW: Final = 0.05
"""What is built on so unlikely a step is not worth going on with until the target's own is there."""
_UNLIKELY: Final = log(REJECTED_BELOW)
_UNLIKELY_DIGIT: Final = log(0.5)
"""There are many ways to go on in words, and one number that follows."""


class LikelihoodVerifier(Verifier):
    """Accepts steps that are likely enough under the target; of the others the unlikely are rejected.

    The target's own greedy step is accepted whatever its chances.

    ``score`` is the lower of two chances: the geometric mean over all tokens, and the least over those with
    a digit, on which the meaning of a step of arithmetic hangs.
    """

    name: str = "likelihood"
    loss_class: LossClass = "routed"
    judges_draft_only: bool = True
    runs_on_target: bool = True
    compares: bool = False

    def __init__(self, target: Engine, threshold: float | None = None, deadline_seconds: float = 5.0) -> None:
        super().__init__(deadline_seconds)
        self.threshold: float = self.checked_threshold(DEFAULT_THRESHOLD if threshold is None else threshold)
        self._target = target

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert context.target_prefix is not None, "the likelihood of a step needs the tokens before it"
        scored = await self._target.score(context.target_prefix, drafted.tokens)
        digits = [has_digit(self._target.tokenizer, token) for token in drafted.tokens]
        of_digits = [logprob for logprob, digit in zip(scored.logprobs, digits, strict=True) if digit]
        mean, least = exp(fmean(scored.logprobs)), exp(min(of_digits, default=0.0))
        score = min(mean, least)
        decision: Decision = "reject" if score < REJECTED_BELOW else "unknown"
        if score >= self.threshold or scored.best == drafted.tokens:
            decision = "accept"
        first_unlikely = None if decision == "accept" else _first_unlikely(scored.logprobs, digits)
        return Verdict(
            decision,
            score,
            cost_tokens=len(drafted.tokens),
            reason=f"chance of a token {mean:.3f}, of the least likely digit {least:.3f}",
            work=scored.usage,
            num_valid_tokens=first_unlikely,
            replacement=None if first_unlikely is None else scored.best[first_unlikely],
        )


def _first_unlikely(logprobs: Sequence[float], digits: Sequence[bool]) -> int | None:
    places = enumerate(zip(logprobs, digits, strict=True))
    unlikely = (i for i, (logprob, digit) in places if logprob < (_UNLIKELY_DIGIT if digit else _UNLIKELY))
    return next(unlikely, None)
