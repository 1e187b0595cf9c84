"""Means over problems with their uncertainty; the samples of one problem belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reason_spec.evaluation.statistics import (
    TAIL,
    Z_ONE_SIDED_95,
    Z_TWO_SIDED_95,
    Floats,
    Interval,
    Strata,
    exact_interval,
    paired_gain_interval,
    paired_loss_upper,
    t_quantile,
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its two-sided 95 % interval; of a mean also its standard error, clustered by problem.

    Both are None for a single problem, which has no variance.
    """

    value: float
    interval: Interval | None
    standard_error: float | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference of accuracies, and the upper end of the one-sided 95 % interval of the loss."""

    estimate: Estimate
    loss_upper: float


def clustered_standard_error(values: Sequence[float] | Floats, strata: Strata | None = None) -> float | None:
    """Return the standard error of the mean of problems, each with the mean of its samples.

    With as many samples of every problem it is the standard error clustered by problem (Miller, arXiv
    2411.00640, section 2.2): all that samples of one problem have in common is in its mean. Strata are tasks:
    how they differ from each other does not count, since the run has as many problems of each as it has. None
    where a stratum has a single problem.
    """
    values = np.asarray(values, dtype=float)
    groups = [values] if strata is None else [values[strata == name] for name in np.unique(strata)]
    if min(map(len, groups)) < 2:
        return None
    squares = sum(len(group) * float(group.var(ddof=1)) for group in groups)
    return float(squares**0.5 / len(values))


def estimate_mean(values: Sequence[float] | Floats, strata: Strata | None = None) -> Estimate:
    """Return the mean of amounts that are never below zero, with Student's interval."""
    values = np.asarray(values, dtype=float)
    mean, error = float(values.mean()), clustered_standard_error(values, strata)
    if error is None:
        return Estimate(mean, None)
    half = -_tail_quantile(len(values), strata) * error
    return Estimate(mean, Interval(max(0.0, mean - half), mean + half), error)


def estimate_ratio(
    above: Sequence[float] | Floats, below: Sequence[float] | Floats, strata: Strata | None = None
) -> Estimate:
    """Return the ratio of two means over problems, with Student's interval of its linearisation.

    The variance is that of a ratio estimator (Cochran, Sampling Techniques, 1977, section 6.4).
    """
    above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    mean = float(below.mean())
    ratio = float(above.mean()) / mean
    error = clustered_standard_error(above - ratio * below, strata)
    if error is None:
        return Estimate(ratio, None)
    half = -_tail_quantile(len(above), strata) * error / mean
    return Estimate(ratio, Interval(max(0.0, ratio - half), ratio + half), error / mean)


def estimate_pooled_share(
    parts: Sequence[float] | Floats, wholes: Sequence[float] | Floats, strata: Strata | None = None
) -> Estimate:
    """Return the share of all items of all problems that have a property: `estimate_ratio` within [0, 1].

    Args:
        parts: items of each problem that have it.
        wholes: items of each problem.
    """
    found = estimate_ratio(parts, wholes, strata)
    if found.interval is None:
        return found
    return replace(found, interval=Interval(found.interval.low, min(1.0, found.interval.high)))


def estimate_share(
    shares: Sequence[float] | Floats, num_draws: float | None = None, strata: Strata | None = None
) -> Estimate:
    """Return the mean of shares of problems, each in [0, 1].

    The interval is the exact one for an effective number of trials: as many independent answers as have the
    clustered variance, fewer by what Student's distribution asks for (Korn and Graubard, Survey Methodology
    24, 1998, 193-201). That number is at least the number of problems, since shares in [0, 1]
    cannot vary more than answers that are right or wrong, and at most ``num_draws``. It so stays honest
    for few problems and for shares near 0 or 1, where the normal interval shrinks to nothing.

    Args:
        num_draws: independent samples of all problems together; without it one for each.
    """
    shares = np.asarray(shares, dtype=float)
    # Sums of thirds come out a little above the number of problems.
    mean, count = min(1.0, float(shares.mean())), len(shares)
    error = clustered_standard_error(shares, strata)
    spread = mean * (1 - mean)
    num_effective = _num_effective(spread, error, count, num_draws or count, strata)
    return Estimate(mean, exact_interval(mean * num_effective, num_effective), error)


def estimate_gain(
    differences: Sequence[float] | Floats, num_samples: int = 1, strata: Strata | None = None
) -> Gain:
    """Return the mean of paired differences of accuracy, each in [-1, 1].

    The interval is Tango's score interval, which does not shrink to nothing where no pair differs. With
    several samples the sums of gains and of losses stand for the counts of pairs, scaled to the effective
    number of pairs as in ``estimate_share``.
    """
    differences = np.asarray(differences, dtype=float)
    mean, count = float(differences.mean()), len(differences)
    won, lost = float(differences.clip(min=0).mean()), float(-differences.clip(max=0).mean())
    error = clustered_standard_error(differences, strata)
    spread = won + lost - mean**2
    pairs = _num_effective(spread, error, count, count * num_samples, strata)
    interval = paired_gain_interval(won * pairs, lost * pairs, pairs)
    upper = paired_loss_upper(lost * pairs, won * pairs, pairs, Z_ONE_SIDED_95)
    return Gain(Estimate(mean, interval, error), upper)


def _num_effective(
    spread: float, error: float | None, count: int, num_draws: float, strata: Strata | None
) -> float:
    """Return how many independent draws with a variance of ``spread`` have this standard error."""
    if error is None or num_draws <= count:
        return count
    if error <= 1e-12:
        # All equal: the correlation of samples of one problem is unknown.
        return count
    student = Z_TWO_SIDED_95 / _tail_quantile(count, strata)
    return float(np.clip(spread / error**2 * student**2, count, num_draws))


def _tail_quantile(count: int, strata: Strata | None) -> float:
    num_strata = 1 if strata is None else len(np.unique(strata))
    return t_quantile(TAIL, count - num_strata)
