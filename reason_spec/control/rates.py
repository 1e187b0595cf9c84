"""What is learned from observations that fade: acceptance rates, and corrections of predicted speeds."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Self

_MOST = 100.0
"""The largest ratio of measured to predicted speed that is believed, and its inverse the smallest."""


@dataclass(slots=True)
class FadingRate:
    """A mean of observations, where each observation multiplies the weight of all earlier ones by
    ``memory``."""

    total: float = 0.0
    count: float = 0.0
    memory: float = 0.98

    @classmethod
    def assumed(cls, value: float, weight: float, memory: float = 0.98) -> Self:
        """Return a rate of ``value`` that counts for ``weight`` observations."""
        return cls(weight * value, weight, memory)

    def add(self, total: float, count: float = 1.0) -> None:
        """Take ``count`` observations with a sum of ``total``."""
        self.total = self.total * self.memory + total
        self.count = self.count * self.memory + count

    @property
    def value(self) -> float:
        """The mean; 0 without an observation."""
        return self.total / self.count if self.count > 0 else 0.0

    def beside(self, prior: float, weight: float) -> float:
        """Return the mean with a prior mean that counts for ``weight`` observations."""
        return (self.total + weight * prior) / (self.count + weight)


@dataclass(slots=True)
class PredictionCorrection:
    """The logarithm of measured over predicted speed: observations fade with time.

    ``half_life`` is in the unit of the times that are given, ``prior_weight`` in that of the weights: seconds
    for the load, answers for the planner.
    """

    prior_weight: float
    half_life: float
    total: float = 0.0
    weight: float = 0.0
    at: float = 0.0

    def add(self, measured: float, predicted: float, weight: float, now: float) -> None:
        """Take a measured speed and the one that was predicted for it."""
        faded = self._fade(now)
        log_ratio = log(min(max(measured / predicted, 1.0 / _MOST), _MOST))
        self.total = self.total * faded + weight * log_ratio
        self.weight = self.weight * faded + weight
        self.at = now

    def log_ratio(self, now: float, assumed: float = 0.0) -> float:
        """Return the correction now; without observations it is ``assumed``."""
        faded = self._fade(now)
        return (self.total * faded + self.prior_weight * assumed) / (self.weight * faded + self.prior_weight)

    def _fade(self, now: float) -> float:
        return float(0.5 ** (max(0.0, now - self.at) / self.half_life))
