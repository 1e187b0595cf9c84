"""Routers without training: the draft's confidence or entropy, a random share, and two constant ones."""

from __future__ import annotations

import hashlib
from math import exp

from reason_spec.routers.base import Router
from reason_spec.routers.features import StepFeatures, likely


class ThresholdRouter(Router):
    """Scores a step by the draft's least likely token, or least likely digit where the step has digits.

    A step without log-probabilities is scored 1.
    """

    name: str = "threshold"

    def score(self, features: StepFeatures) -> float:
        if not features.num_tokens:
            return 1.0
        least = features.least_digit_logprob if features.num_digits else features.least_logprob
        return 1.0 - likely(least)


class GlimpRouter(Router):
    """Scores a step by the entropy H of the draft before the first token of the step (arXiv 2601.05110).

    The score is ``1 - exp(-H)``, so a threshold tau of the paper, in nats, is ``1 - exp(-tau)`` here. The
    default is the tau of 1.0 of the authors' example; the paper sets it so that the target writes 20 to 30 %
    of the steps.

    Raises:
        ValueError: the draft's engine reported no entropy.
    """

    name: str = "glimp"
    reads_entropy = True

    def score(self, features: StepFeatures) -> float:
        if features.first_entropy is None:
            raise ValueError("the draft's engine reported no entropy")
        return 1.0 - exp(-features.first_entropy)


class RandomRouter(Router):
    """Escalates a random share of ``1 - threshold`` of the steps: the baseline for every router.

    The draw is a function of the step, its place and the seed, so that a run can be repeated.
    """

    name: str = "random"

    def __init__(self, threshold: float, seed: int = 0) -> None:
        super().__init__(threshold)
        self._seed = seed

    def score(self, features: StepFeatures) -> float:
        text = f"{self._seed}\n{features.step_index}\n{features.key}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


class DraftRouter(Router):
    """Escalates nothing: the draft writes the answer."""

    name: str = "draft"

    def __init__(self) -> None:
        super().__init__(1.0)

    def score(self, features: StepFeatures) -> float:
        return 0.0


class TargetRouter(Router):
    """Escalates everything: the target writes the answer, with drafted steps as hints."""

    name: str = "target"

    def __init__(self) -> None:
        super().__init__(0.0)

    def score(self, features: StepFeatures) -> float:
        return 1.0
