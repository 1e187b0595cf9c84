"""What passes and verdicts cost on this machine, for one request and for many."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log2
from operator import itemgetter
from typing import NamedTuple

from reason_spec.control.constants import COST_CONSTANTS, CostConstants
from reason_spec.engines.stats import PassTime
from reason_spec.speculation.goodput import BatchTime

_SIZE = itemgetter(0)
_NEAR = 0.5
"""Distance, in log2(tokens), within which recent passes replace a measurement of the start."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """T(n): the seconds of a pass with n new tokens of one request. ``points`` are (n, seconds), n
    ascending."""

    points: tuple[tuple[int, float], ...]

    def seconds(self, num_tokens: float) -> float:
        """Return T(n), on straight lines between what was measured and beyond the last of it."""
        points = self.points
        if len(points) == 1 or num_tokens <= points[0][0]:
            return points[0][1]
        right = min(bisect_left(points, num_tokens, key=_SIZE), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return y0 + (y1 - y0) * (num_tokens - x0) / (x1 - x0)

    def remeasured(self, times: Sequence[PassTime], constants: CostConstants = COST_CONSTANTS) -> PassCost:
        """Return T(n) fitted to this measurement and to recent passes of the engine.

        Sizes without recent passes keep their measurement, scaled by the drift of all passes since.
        """
        if not times:
            return self
        count = sum(time.count for time in times)
        expected = sum(self.seconds(time.num_tokens) * time.count for time in times)
        ratio = sum(time.seconds * time.count for time in times) / expected
        weight = constants.start_weight
        drift = (weight + count * ratio) / (weight + count)
        at_start = [
            PassTime(size, seconds * drift, weight)
            for size, seconds in self.points
            if not any(time.count >= weight and _is_near(time.num_tokens, size) for time in times)
        ]
        fitted = BatchTime([*at_start, *times], bandwidth=constants.size_bandwidth, max_weight=inf)
        sizes = [size for size, _ in self.points]
        return PassCost(tuple(zip(sizes, fitted.seconds(sizes, [1] * len(sizes)).tolist(), strict=True)))


def _is_near(num_tokens: float, size: int) -> bool:
    return abs(log2(num_tokens / size)) <= _NEAR


@dataclass(frozen=True, slots=True)
class Costs:
    """What both models and a verdict cost for one answer at a time.

    ``draft_token`` is the seconds of one token in a run of the draft, ``draft`` the time of its passes
    when that was measured (None: not known), ``verdict`` the seconds of one verdict.
    """

    target: PassCost
    draft_token: float
    draft: PassCost | None = None
    verdict: float = 0.0

    @property
    def c(self) -> float:
        """The time of a draft token over that of a target token."""
        return self.draft_token / self.target.seconds(1)

    def remeasured(self, target: Sequence[PassTime], draft: Sequence[PassTime]) -> Costs:
        """Return the costs fitted to recent passes of both models as well."""
        draft_token = self.draft_token
        if self.draft is not None:
            draft_token *= self.draft.remeasured(draft).seconds(1) / self.draft.seconds(1)
        return replace(self, target=self.target.remeasured(target), draft_token=draft_token)


class BatchCosts(NamedTuple):
    """T(n, r) for batches of requests.

    ``shared`` is the target beside a draft that has cores of its own, ``alone`` the target on all cores;
    the same object where there is nothing to share. ``draft`` is the draft model.
    """

    shared: BatchTime
    alone: BatchTime
    draft: BatchTime

    @classmethod
    def of(
        cls, target: Sequence[PassTime], draft: Sequence[PassTime], shared_threads: int, all_threads: int
    ) -> BatchCosts:
        """Fit the pass times of both engines. Where all cores were not measured, the shared ones stand for
        them."""
        shared = BatchTime([time for time in target if time.num_threads == shared_threads])
        alone = BatchTime([time for time in target if time.num_threads == all_threads])
        return cls(shared, alone if alone.known else shared, BatchTime(draft))

    @property
    def known(self) -> bool:
        return self.shared.known
