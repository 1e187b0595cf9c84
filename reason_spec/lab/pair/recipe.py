"""The schedule of a training: phases, depth and learning rate by the share of the training that is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reason_spec.lab.pair.data import Phase
from reason_spec.lab.pair.optimizer import trapezoid
from reason_spec.pair.model import SHAPES, Role, Shape

DEFAULT_TOKENS: Mapping[Role, int] = {"target": 34_000_000, "draft": 12_000_000, "judge": 42_000_000}
"""About what the shipped models were trained on; the draft is short of training, so that it errs often."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a training; all progress is in 0..1.

    From ``judge_at`` on, new layers after the first ones learn to judge, while the first ones train at
    ``trunk_rate`` of the rate: to see that a number is wrong takes layers after those that compute it. From
    ``settle_at`` on, all layers train mostly on solutions, at a rate that falls from ``settle_rate``. At
    ``grow_at`` the model gets its full depth.
    """

    role: Role
    shape: Shape
    seed: int
    tokens: int
    judge_at: float = 0.80
    settle_at: float = 0.895
    grow_at: float = 0.99
    trunk_rate: float = 0.1
    settle_rate: float = 0.3
    matrix_rate: float = 0.02
    vector_rate: float = 0.004
    warm_up: float = 0.01
    decay: float = 0.4
    grown_rate: float = 0.1

    @classmethod
    def of(cls, role: Role, seed: int = 0, tokens: int | None = None) -> Recipe:
        return cls(role, SHAPES[role], seed, tokens or DEFAULT_TOKENS[role])

    @property
    def judges(self) -> bool:
        return self.shape.judge_layers > 0

    def phase_at(self, progress: float) -> Phase:
        if not self.judges or progress < self.judge_at:
            return "solving"
        return "judging" if progress < self.settle_at else "settling"

    def layers_at(self, progress: float) -> int:
        if progress >= self.grow_at:
            return self.shape.layers
        return self.shape.start_layers + self.shape.judge_layers * (progress >= self.judge_at)

    def rate_at(self, progress: float) -> float:
        """Return the share of the full learning rate.

        It falls to ``grown_rate`` before the model grows, and then to zero: the shallow model settles before
        the many layers, which train slowly, are adjusted. New layers that learn to judge start at the full
        rate.
        """
        if self.shape.start_layers == self.shape.layers:
            return trapezoid(progress, self.warm_up, self.decay)
        if progress >= self.grow_at:
            return self.grown_rate * (1 - progress) / (1 - self.grow_at)
        if self.phase_at(progress) == "settling":
            left = (self.grow_at - progress) / (self.grow_at - self.settle_at)
            return self.grown_rate + left * (self.settle_rate - self.grown_rate)
        begin, end = 0.0, self.judge_at if self.judges else self.grow_at
        if progress >= end:
            begin, end = self.judge_at, self.settle_at
        done = (progress - begin) / (end - begin)
        return min(1.0, done / self.warm_up, max((1 - done) / self.decay, self.grown_rate))
