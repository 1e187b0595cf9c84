"""``likelihood`` and ``confidence``: how likely a drafted step is, to the target and to the draft itself.

``likelihood`` takes the target's log-probabilities of the drafted tokens, from one pass over the step.
Writing the step would cost the target a pass for every token or two. After its first words a rare wording is
still likely token by token; a wrong number is not. (SpecReason, arXiv 2504.07891, asks the target
for a score instead, and SpecGuard, arXiv 2604.15244, takes the least likely token.)

``confidence`` takes the draft's own, which cost nothing: steps that the draft is sure of stand, and the
others are left to the next verifier (ConfSpec, arXiv 2602.18447).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import fmean
from typing import Final

from reason_spec.engines.base import Engine, has_digit
from reason_spec.types import Decision, LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

DEFAULT_THRESHOLD: Final = 0.95
"""Under ``hybrid`` on the demonstration pair at most 0.76 points of answers are lost at it, 1.72 at 0.9."""
REJECTED_BELOW: Final = 0.05
"""Score below which a step is rejected: work after so unlikely a step is mostly lost."""
DEFAULT_CONFIDENCE: Final = 0.9
_UNLIKELY: Final = log(REJECTED_BELOW)
_UNLIKELY_DIGIT: Final = log(0.5)
"""Higher than for words: a sentence has many continuations, a calculation one result."""


class LikelihoodVerifier(Verifier):
    """Accepts steps that are likely under the target and rejects very unlikely ones.

    The target's own greedy step is always accepted.

    ``score`` is the lower of two probabilities: the geometric mean over all tokens, and the least over tokens
    with a digit, which decide the meaning of a calculation.
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
        assert context.target_prefix is not None, "likelihood needs the tokens before the step"
        scored = await self._target.score(context.target_prefix, drafted.tokens)
        digits = [has_digit(self._target.tokenizer, token) for token in drafted.tokens]
        of_digits = [logprob for logprob, digit in zip(scored.logprobs, digits, strict=True) if digit]
        mean, least = exp(fmean(scored.logprobs)), exp(min(of_digits, default=0.0))
        score = min(mean, least)
        decision: Decision = "reject" if score < REJECTED_BELOW else "unknown"
        if score >= self.threshold or scored.best == drafted.tokens:
            decision = "accept"
        # What the target prefers itself is no mistake, however unsure it is.
        is_own = [best == token for best, token in zip(scored.best, drafted.tokens, strict=True)]
        first_unlikely = None if decision == "accept" else _first_unlikely(scored.logprobs, digits, is_own)
        return Verdict(
            decision,
            score,
            cost_tokens=len(drafted.tokens),
            reason=f"chance of a token {mean:.3f}, of the least likely digit {least:.3f}",
            work=scored.usage,
            num_valid_tokens=first_unlikely,
            replacement=None if first_unlikely is None else scored.best[first_unlikely],
        )


class ConfidenceVerifier(Verifier):
    """Accepts steps whose tokens were all likely to the draft that wrote them; leaves the others open.

    ``score`` is the probability of the least likely token: a step is as sure as its least sure place.
    """

    name: str = "confidence"
    loss_class: LossClass = "routed"
    judges_draft_only: bool = True
    compares: bool = False

    def __init__(self, threshold: float | None = None, deadline_seconds: float = 5.0) -> None:
        super().__init__(deadline_seconds)
        self.threshold: float = self.checked_threshold(DEFAULT_CONFIDENCE if threshold is None else threshold)

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        if not drafted.logprobs:
            return Verdict("unknown", reason="the step has no probabilities of the draft")
        score = exp(min(0.0, *drafted.logprobs))
        decision: Decision = "accept" if score >= self.threshold else "unknown"
        return Verdict(decision, score, reason=f"the draft's least likely token has a chance of {score:.3f}")


def _first_unlikely(logprobs: Sequence[float], digits: Sequence[bool], is_own: Sequence[bool]) -> int | None:
    for place, (logprob, digit, own) in enumerate(zip(logprobs, digits, is_own, strict=True)):
        if not own and logprob < (_UNLIKELY_DIGIT if digit else _UNLIKELY):
            return place
    return None
