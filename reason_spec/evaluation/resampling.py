"""The bootstrap over problems, within each task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from reason_spec.evaluation.statistics import Interval, t_quantile

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95

Floats = npt.NDArray[np.float64]
Strata = npt.NDArray[np.intp]
"""The number of the task of each problem: ``[num_problems]``."""
Counts = npt.NDArray[np.int32]
"""How often each problem is in each resample: ``[num_resamples, num_problems]``."""

_CHUNK_ELEMENTS = 1 << 20


def stratum_of_each(tasks: Sequence[str]) -> Strata:
    """Number the tasks of problems, so that a resample has as many problems of a task as the sample.

    Where a task has one problem only, all are one stratum: alone it would seem not to vary.
    """
    _, strata, sizes = np.unique(np.asarray(tasks), return_inverse=True, return_counts=True)
    return strata if sizes.min(initial=2) > 1 else np.zeros_like(strata)


def resampled_counts(strata: Strata, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Iterator[Counts]:
    """Draw problems with replacement within strata; yields the counts of some resamples at a time."""
    generator = np.random.default_rng(seed)
    num_problems = len(strata)
    members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    for start in range(0, num_resamples, step := max(1, _CHUNK_ELEMENTS // num_problems)):
        rows = min(step, num_resamples - start)
        offsets = np.arange(rows)[:, None] * num_problems
        drawn = [places[generator.integers(len(places), size=(rows, len(places)))] for places in members]
        cells = (np.concatenate(drawn, axis=1) + offsets).ravel()
        counts = np.bincount(cells, minlength=rows * num_problems).astype(np.int32)
        yield counts.reshape(rows, num_problems)


def weighted_means(counts: Counts, values: Floats) -> Floats:
    """Return the mean of ``values`` ``[num_problems, ...]`` in each resample: ``[num_resamples, ...]``."""
    means: Floats = counts.astype(np.float64) @ values / len(values)
    return means


def weighted_medians(counts: Counts, values: Floats, problems: npt.NDArray[np.intp]) -> Floats:
    """Return the median of ``values`` in each resample, where ``problems[i]`` is the problem of value i."""
    order = np.argsort(values)
    by_rank, ascending = problems[order], values[order]
    # Medians of resamples lie around that of the sample: only there is the rank of every value needed.
    margin = 10 * math.isqrt(len(values)) + 10
    first, last = max(0, len(values) // 2 - margin), min(len(values), len(values) // 2 + margin)
    num_below = _num_drawn(counts, by_rank[:first])
    total = num_below + _num_drawn(counts, by_rank[first:])
    lower, upper = (total - 1) // 2, total // 2
    ranks = np.cumsum(counts[:, by_rank[first:last]], axis=1, dtype=np.int32) + num_below[:, None]
    if (lower < num_below).any() or (upper >= ranks[:, -1]).any():
        first, ranks = 0, np.cumsum(counts[:, by_rank], axis=1, dtype=np.int32)
    low = first + np.count_nonzero(ranks <= lower[:, None], axis=1)
    high = first + np.count_nonzero(ranks <= upper[:, None], axis=1)
    medians: Floats = (ascending[low] + ascending[high]) / 2
    return medians


def _num_drawn(counts: Counts, problems: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    """Return how many of the values of these problems are in each resample."""
    drawn: npt.NDArray[np.int32] = counts @ np.bincount(problems, minlength=counts.shape[1]).astype(np.int32)
    return drawn


def bootstrap(
    statistic: Callable[[Counts], Floats],
    strata: Strata,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Return a statistic of each resample; it may have several columns."""
    return np.concatenate([statistic(counts) for counts in resampled_counts(strata, num_resamples, seed)])


def percentile_interval(resampled: Floats, num_problems: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the expanded percentile interval of a bootstrapped statistic.

    The plain percentile interval of a mean is that of a normal distribution whose variance has n in the
    place of n - 1, so it is too narrow for few problems. The percentiles are moved outwards until it would
    be Student's (Hesterberg, The American Statistician 69, 2015, 371-386).
    """
    if num_problems < 2:
        raise ValueError(f"{num_problems} problem has no variance between problems")
    widening = (num_problems / (num_problems - 1)) ** 0.5
    tail = float(ndtr(widening * t_quantile((1 - confidence) / 2, num_problems - 1)))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(float(low), float(high))
