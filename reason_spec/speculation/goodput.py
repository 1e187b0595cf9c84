"""How much to draft for each of several requests that share a pass: as much as makes the batch faster.

Goodput is tokens that become certain, of all live requests together, over the seconds of a pass (SmartSpec,
arXiv 2406.14066). A token more in a pass makes it longer; how much longer depends on what else is in it, so
that what pays for one request alone slows a full batch down.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

_NEAR = 0.7
"""How far a measurement tells of its surroundings, in doublings of tokens and of requests."""
_FIT_WEIGHT = 0.02
"""Passes that the straight line counts for beside measurements at hand."""
_MOST_PASSES = 50.0
"""Passes that a measurement counts for at the most."""
_FEWEST_SIZES = 2
_NUM_ASKED = 128
"""Sizes of a pass whose time is asked for at the most."""
_NEARLY = 0.05
"""What a larger pass may fall short of the best goodput: each costs more than T shows, and drafts wait."""
ASSUMED_RATE = 0.7
"""How often a drafted token is right where it must not count how often they were."""


class Measured(Protocol):
    """What passes of about one size took: ``num_tokens`` new tokens of ``num_requests`` requests."""

    @property
    def num_tokens(self) -> float: ...

    @property
    def num_requests(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def count(self) -> float: ...


class BatchTime:
    """T(n, r): the seconds of a pass over n new tokens of r requests, from passes that were measured.

    A plane with slopes of no less than zero is laid through the measurements, and bent to them where there
    are any nearby: passes are often flat up to some size, and steep beyond it.
    """

    def __init__(self, measured: Sequence[Measured]) -> None:
        sizes = np.array([[one.num_tokens, one.num_requests] for one in measured], dtype=np.float64)
        sizes = np.maximum(sizes.reshape(-1, 2), 1.0)
        seconds = np.array([one.seconds for one in measured], dtype=np.float64)
        counts = np.minimum([one.count for one in measured], _MOST_PASSES)
        known = len(measured) > 0 and bool((seconds > 0).all())
        self.known = known and len({round(num_tokens) for num_tokens, _ in sizes.tolist()}) >= _FEWEST_SIZES
        """Whether there is enough to tell what a token more costs."""
        self._log_tokens, self._log_requests = np.log2(sizes.T)
        self._plane = np.zeros(3)
        ratios = np.ones(len(seconds))
        if known:
            from scipy.optimize import nnls

            columns = np.column_stack([np.ones(len(seconds)), sizes])
            # Each measurement is to be met by the same share of itself.
            weights = np.sqrt(counts) / seconds
            self._plane, _ = nnls(columns * weights[:, None], seconds * weights)
            ratios = seconds / np.maximum(columns @ self._plane, 1e-12)
        self._bends = np.column_stack([counts * ratios, counts])

    def seconds(self, num_tokens: npt.ArrayLike, num_requests: npt.ArrayLike) -> Floats:
        """Return T for each pair, sizes ascending: a larger pass never counts as the faster one."""
        tokens = np.atleast_1d(np.asarray(num_tokens, np.float64))
        requests = np.atleast_1d(np.asarray(num_requests, np.float64))
        plane: Floats = self._plane[0] + self._plane[1] * tokens + self._plane[2] * requests
        if not len(self._bends):
            return plane
        tokens_away = np.log2(tokens)[:, None] - self._log_tokens
        requests_away = np.log2(requests)[:, None] - self._log_requests
        # Far from all that was measured the plane alone tells.
        near = np.exp((tokens_away**2 + requests_away**2) * (-0.5 / _NEAR**2))
        ratios, weights = (near @ self._bends + _FIT_WEIGHT).T
        longest: Floats = np.maximum.accumulate(plane * ratios / weights)
        return longest

    def of_one(self, num_tokens: float, num_requests: float) -> float:
        """Return T(n, r) of a single pass."""
        return float(self.seconds(num_tokens, num_requests)[0])


class TimeOfPass(Protocol):
    """T(n, r) for ascending sizes, as `BatchTime` has it."""

    def seconds(self, num_tokens: npt.ArrayLike, num_requests: npt.ArrayLike) -> Floats: ...


class Demand(NamedTuple):
    """What one live request could use.

    Behind right ones a drafted token is right with chance ``token_rate``, and a drafted step stands with
    chance ``step_rate``. At most ``max_tokens`` are drafted in each of at most ``max_depth + 1`` places.
    """

    token_rate: float
    max_tokens: int
    step_rate: float = 0.0
    max_depth: int = 0


class Share(NamedTuple):
    """What a request may use of each pass: steps ahead, and drafted tokens in every place."""

    depth: int
    num_draft_tokens: int


class Allotment(NamedTuple):
    """The shares of all requests, the tokens of a pass, and how many of them should become certain."""

    shares: tuple[Share, ...]
    num_tokens: int
    certain: float
    seconds: float

    @property
    def goodput(self) -> float:
        """Certain tokens a second, over all requests."""
        return self.certain / self.seconds if self.seconds > 0 else 0.0


def allot(demands: Sequence[Demand], time: TimeOfPass, *, draft_seconds: float = 0.0) -> Allotment:
    """Return the shares with nearly the highest goodput; every request keeps the token it writes itself.

    Token m of the place j steps ahead is of use with chance ``step_rate ** j * token_rate ** m``. Of any
    size, the best pass holds the likeliest tokens, whosesoever they are: all sizes are looked at, and the
    largest of those that are nearly the best is taken, but none that is slower than no drafts at all. No
    token is drafted in the place of another request's own.

    Args:
        draft_seconds: what one token for one request takes the draft model, which writes for all of them at
            once: a pass holds no more drafts than are written during it. 0: drafts cost nothing.
    """
    num_requests = len(demands)
    if not num_requests:
        return Allotment((), 0, 0.0, 0.0)
    if not any(demand.max_tokens or demand.max_depth for demand in demands):
        alone = float(time.seconds(num_requests, num_requests)[0])
        return Allotment((Share(0, 0),) * num_requests, num_requests, float(num_requests), alone)
    chances, depths, places, owners = _drafts(demands)
    added = np.arange(len(chances) + 1)
    opened = np.concatenate([[0], np.cumsum(places == 0)])
    certain = num_requests + np.concatenate([[0.0], np.cumsum(chances)])
    asked = _asked(len(added))
    asked_seconds = time.seconds(num_requests + added[asked], num_requests + opened[asked])
    seconds = np.interp(added, added[asked], asked_seconds)
    goodput = np.divide(certain, seconds, out=np.zeros_like(certain), where=seconds > 0)
    goodput[1:][added[1:] * draft_seconds > seconds[1:]] = 0.0
    enough = max(goodput[0], (1.0 - _NEARLY) * goodput.max())
    best = int(np.flatnonzero(goodput >= enough)[-1])
    shares = np.zeros((2, num_requests), np.int64)
    np.maximum.at(shares[0], owners[:best], depths[:best])
    np.maximum.at(shares[1], owners[:best], places[:best])
    return Allotment(
        tuple(Share(*share) for share in shares.T.tolist()),
        num_requests + best,
        float(certain[best]),
        float(seconds[best]),
    )


@lru_cache(maxsize=256)
def _asked(num_sizes: int) -> npt.NDArray[np.int64]:
    """Return the sizes to ask T for; between sizes this close it is straight enough."""
    if num_sizes <= _NUM_ASKED:
        return np.arange(num_sizes)
    return np.unique(np.geomspace(1, num_sizes, _NUM_ASKED).astype(np.int64)) - 1


def draft_limits(demands: Sequence[Demand], time: BatchTime) -> list[int]:
    """Return how many drafts of each request are worth their place; all, where that is not known."""
    if not time.known:
        return [demand.max_tokens for demand in demands]
    return [share.num_draft_tokens for share in allot(demands, time).shares]


def uniform_limit(num_requests: int, max_tokens: int, token_rate: float, time: BatchTime) -> int:
    """Return the limit of each of so many equal requests: it tells of their number alone."""
    limits = draft_limits([Demand(token_rate, max_tokens)] * num_requests, time)
    return min(limits, default=max_tokens)


class _Drafts(NamedTuple):
    """All tokens that could be drafted, the likeliest first."""

    chances: Floats
    depths: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]


def _drafts(demands: Sequence[Demand]) -> _Drafts:
    token_rates, max_tokens, step_rates, max_depths = np.array(demands, dtype=np.float64).T
    depths, places, _ = np.ogrid[: int(max_depths.max()) + 1, : int(max_tokens.max()) + 1, : len(demands)]
    # [depths, places, requests]: among equals the nearest comes first, so that all get one before any gets
    # two.
    chances = step_rates ** depths.astype(float) * token_rates ** places.astype(float)
    wanted = (depths <= max_depths) & (places <= max_tokens)
    # The first of all is no draft: the request writes it in any case.
    wanted[0, 0] = False
    order = np.argsort(-chances[wanted], kind="stable")
    found = [indices[order] for indices in np.nonzero(wanted)]
    return _Drafts(chances[wanted][order], *found)
