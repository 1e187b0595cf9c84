"""How many tokens to draft for each request of a pass, for the best throughput of the batch.

Goodput is the number of generated tokens, over all live requests, per second of a pass (SmartSpec,
arXiv 2406.14066). One more token makes a pass longer, by a time that depends on its size. So drafts that pay
for a single request may slow a full batch down.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

_BANDWIDTH = 0.7
"""Kernel bandwidth for batches, whose sizes vary from pass to pass."""
_PLANE_WEIGHT = 0.02
"""Weight of the plane beside nearby measurements, in passes."""
_MAX_WEIGHT = 50.0
"""The most passes that a measurement of batches counts for."""
_MIN_SIZES = 2
_MAX_SIZES = 128
"""The most sizes of a pass whose time is evaluated; between them it is interpolated."""
_TOLERANCE = 0.05
"""Share of the best goodput that a larger pass may lose."""
_BISECTIONS = 24
ASSUMED_RATE = 0.7
"""Acceptance rate where the measured one must not be used, because it depends on other texts."""


class Measured(Protocol):
    """The mean time of passes with ``num_tokens`` new tokens of ``num_requests`` requests."""

    @property
    def num_tokens(self) -> float: ...

    @property
    def num_requests(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def count(self) -> float: ...


class BatchTime:
    """T(n, r): the seconds of a pass with n new tokens of r requests, fitted to measured passes.

    A plane with nonnegative slopes (least squares of relative errors) is multiplied by a kernel estimate of
    the ratio of measured to planar time: passes are often flat up to some size, and steep beyond it.
    ``bandwidth`` is that of the kernel, in log2 of tokens and of requests; ``max_weight`` bounds the passes
    that a measurement counts for.
    """

    def __init__(
        self, measured: Sequence[Measured], *, bandwidth: float = _BANDWIDTH, max_weight: float = _MAX_WEIGHT
    ) -> None:
        self._bandwidth = bandwidth
        sizes = np.array([[one.num_tokens, one.num_requests] for one in measured], dtype=np.float64)
        sizes = np.maximum(sizes.reshape(-1, 2), 1.0)
        seconds = np.array([one.seconds for one in measured], dtype=np.float64)
        counts = np.minimum([one.count for one in measured], max_weight)
        known = len(measured) > 0 and bool((seconds > 0).all())
        self.known = known and len({round(num_tokens) for num_tokens, _ in sizes.tolist()}) >= _MIN_SIZES
        """Whether the measurements show the cost of a token."""
        self._log_tokens, self._log_requests = np.log2(sizes.T)
        self._plane = np.zeros(3)
        ratios = np.ones(len(seconds))
        if known:
            from scipy.optimize import nnls

            columns = np.column_stack([np.ones(len(seconds)), sizes])
            # Relative errors count, not absolute ones.
            weights = np.sqrt(counts) / seconds
            self._plane, _ = nnls(columns * weights[:, None], seconds * weights)
            ratios = seconds / np.maximum(columns @ self._plane, 1e-12)
        self._corrections = np.column_stack([counts * ratios, counts])

    def seconds(self, num_tokens: npt.ArrayLike, num_requests: npt.ArrayLike) -> Floats:
        """Return T of each pair, which ascend by size; the times never decrease."""
        tokens = np.atleast_1d(np.asarray(num_tokens, np.float64))
        requests = np.atleast_1d(np.asarray(num_requests, np.float64))
        plane: Floats = self._plane[0] + self._plane[1] * tokens + self._plane[2] * requests
        if not len(self._corrections):
            return plane
        tokens_away = np.log2(tokens)[:, None] - self._log_tokens
        requests_away = np.log2(requests)[:, None] - self._log_requests
        # Far from all measurements the plane alone counts.
        near = np.exp((tokens_away**2 + requests_away**2) * (-0.5 / self._bandwidth**2))
        ratios, weights = (near @ self._corrections + _PLANE_WEIGHT).T
        longest: Floats = np.maximum.accumulate(plane * ratios / weights)
        return longest

    def of_one(self, num_tokens: float, num_requests: float) -> float:
        """Return T(n, r) of a single pass."""
        return float(self.seconds(num_tokens, num_requests)[0])


class TimeOfPass(Protocol):
    """T(n, r) for ascending sizes, as `BatchTime` has it."""

    def seconds(self, num_tokens: npt.ArrayLike, num_requests: npt.ArrayLike) -> Floats: ...


class Demand(NamedTuple):
    """The drafts that one live request could use.

    Attributes:
        token_rate: acceptance rate of a drafted token whose predecessors were accepted.
        max_tokens: the most drafted tokens of each position.
        step_rate: acceptance rate of a drafted step.
        max_depth: the most steps ahead; there are ``max_depth + 1`` positions.
    """

    token_rate: float
    max_tokens: int
    step_rate: float = 0.0
    max_depth: int = 0


class Share(NamedTuple):
    """A request's part of each pass: steps ahead, and drafted tokens of every position."""

    depth: int
    num_draft_tokens: int


class Allotment(NamedTuple):
    """The shares of all requests, the tokens of a pass, and how many it is expected to generate."""

    shares: tuple[Share, ...]
    num_tokens: int
    num_generated: float
    seconds: float

    @property
    def goodput(self) -> float:
        """Generated tokens a second, over all requests."""
        return self.num_generated / self.seconds if self.seconds > 0 else 0.0


def allot(demands: Sequence[Demand], time: TimeOfPass, *, draft_seconds: float = 0.0) -> Allotment:
    """Return the shares with nearly the best goodput; every request keeps its own next token.

    Token m of the position j steps ahead is accepted with chance ``step_rate ** j * token_rate ** m``. A
    pass of a given size takes the most likely draft tokens across all requests. Of all sizes, the largest
    within `_TOLERANCE` of the best goodput is taken, but none that is slower than no drafts.

    Args:
        draft_seconds: the time of one draft token of one request, where the draft model serves all requests
            at once: a pass takes no more drafts than are generated during it. 0: drafts are free.
    """
    num_requests = len(demands)
    if not num_requests:
        return Allotment((), 0, 0.0, 0.0)
    if not any(demand.max_tokens or demand.max_depth for demand in demands):
        alone = float(time.seconds(num_requests, num_requests)[0])
        return Allotment((Share(0, 0),) * num_requests, num_requests, float(num_requests), alone)
    chances, depths, positions, owners = _drafts(demands)
    added = np.arange(len(chances) + 1)
    opened = np.concatenate([[0], np.cumsum(positions == 0)])
    generated = num_requests + np.concatenate([[0.0], np.cumsum(chances)])
    sizes = _evaluated_sizes(len(added))
    seconds_of_sizes = time.seconds(num_requests + added[sizes], num_requests + opened[sizes])
    seconds = np.interp(added, added[sizes], seconds_of_sizes)
    goodput = np.divide(generated, seconds, out=np.zeros_like(generated), where=seconds > 0)
    goodput[1:][added[1:] * draft_seconds > seconds[1:]] = 0.0
    enough = max(goodput[0], (1.0 - _TOLERANCE) * goodput.max())
    best = int(np.flatnonzero(goodput >= enough)[-1])
    shares = np.zeros((2, num_requests), np.int64)
    np.maximum.at(shares[0], owners[:best], depths[:best])
    np.maximum.at(shares[1], owners[:best], positions[:best])
    return Allotment(
        tuple(Share(*share) for share in shares.T.tolist()),
        num_requests + best,
        float(generated[best]),
        float(seconds[best]),
    )


@lru_cache(maxsize=256)
def _evaluated_sizes(num_sizes: int) -> npt.NDArray[np.int64]:
    if num_sizes <= _MAX_SIZES:
        return np.arange(num_sizes)
    return np.unique(np.geomspace(1, num_sizes, _MAX_SIZES).astype(np.int64)) - 1


def draft_limits(demands: Sequence[Demand], time: BatchTime) -> list[int]:
    """Return the best number of draft tokens of each request; all, if the cost of a token is unknown."""
    if not time.known:
        return [demand.max_tokens for demand in demands]
    return [share.num_draft_tokens for share in allot(demands, time).shares]


def mean_rate(chances: Sequence[float]) -> float:
    """Return the acceptance rate at which as many tokens of a chain are expected as with these chances.

    The r with r + r^2 + ... + r^n = sum of the n chances; 0 where there are none.
    """
    expected, num_tokens = sum(chances), len(chances)
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        rate = (low + high) / 2
        if rate * (1.0 - rate**num_tokens) < expected * (1.0 - rate):
            low = rate
        else:
            high = rate
    return low


def uniform_limit(num_requests: int, max_tokens: int, token_rate: float, time: BatchTime) -> int:
    """Return the limit of each of ``num_requests`` equal requests, which depends on their number alone."""
    limits = draft_limits([Demand(token_rate, max_tokens)] * num_requests, time)
    return min(limits, default=max_tokens)


class _Drafts(NamedTuple):
    """All tokens that could be drafted, the most likely first."""

    chances: Floats
    depths: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]


def _drafts(demands: Sequence[Demand]) -> _Drafts:
    token_rates, max_tokens, step_rates, max_depths = np.array(demands, dtype=np.float64).T
    depths, positions, _ = np.ogrid[: int(max_depths.max()) + 1, : int(max_tokens.max()) + 1, : len(demands)]
    # [depths, positions, requests]: ties go to the nearest position; each request gets one before a second.
    chances = step_rates ** depths.astype(float) * token_rates ** positions.astype(float)
    wanted = (depths <= max_depths) & (positions <= max_tokens)
    # The first token is not a draft: the request generates it in any case.
    wanted[0, 0] = False
    order = np.argsort(-chances[wanted], kind="stable")
    found = [indices[order] for indices in np.nonzero(wanted)]
    return _Drafts(chances[wanted][order], *found)
