"""Intervals and tests for shares and paired shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

# scipy.special holds the distribution functions of scipy.stats, and loads in a fraction of its time.
from scipy import special

Floats: TypeAlias = npt.NDArray[np.float64]
Strata: TypeAlias = npt.NDArray[np.intp]
"""The number of the task of each problem: ``[num_problems]``."""

TAIL = 0.025
"""Probability that a two-sided 95 % interval leaves on either side."""
POWER = 0.8
Z_TWO_SIDED_95 = float(special.ndtri(1 - TAIL))
Z_ONE_SIDED_95 = float(special.ndtri(0.95))


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def mcnemar_exact(num_better: int, num_worse: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: a sign test on the discordant pairs."""
    if num_better < 0 or num_worse < 0:
        raise ValueError(f"{num_better} better and {num_worse} worse pairs")
    discordant = num_better + num_worse
    if not discordant:
        return 1.0
    return min(1.0, 2 * binomial_cdf(min(num_better, num_worse), discordant, 0.5))


def binomial_cdf(num_successes: int, num_trials: int, share: float) -> float:
    """Return the probability of at most ``num_successes`` in trials of probability ``share``."""
    if num_trials < 1 or not 0 <= num_successes <= num_trials or not 0 <= share <= 1:
        raise ValueError(f"{num_successes} successes in {num_trials} trials of chance {share}")
    return float(special.bdtr(num_successes, num_trials, share))


def clopper_pearson_upper(num_successes: float, num_trials: float, confidence: float) -> float:
    """Return the exact upper confidence bound of a share (Clopper and Pearson, Biometrika 26, 1934).

    The bound is the share under which at most ``num_successes`` has probability ``1 - confidence``.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} does not lie between 0 and 1")
    num_failures = num_trials - num_successes
    return float(special.betaincinv(num_successes + 1, num_failures, confidence)) if num_failures > 0 else 1.0


def exact_interval(num_successes: float, num_trials: float, tail: float = TAIL) -> Interval:
    """Return the Clopper-Pearson interval of a share. It is exact, and rather too wide than too narrow.

    Both numbers may be fractions, as the effective ones of dependent samples are: the binomial tails are
    those of the beta distribution (Korn and Graubard, Survey Methodology 24, 1998, 193-201).
    """
    num_failures = num_trials - num_successes
    if num_trials <= 0 or num_successes < 0 or num_failures < 0:
        raise ValueError(f"{num_successes} successes in {num_trials} trials")
    low = float(special.betaincinv(num_successes, num_failures + 1, tail)) if num_successes > 0 else 0.0
    return Interval(low, clopper_pearson_upper(num_successes, num_trials, 1 - tail))


def _last_where(holds: Callable[[float], bool], low: float, high: float = 1.0) -> float:
    """Return the end of the range, from ``low`` on, in which a condition holds, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return high


def paired_loss_upper(num_lost: float, num_won: float, num_pairs: float, z: float = Z_ONE_SIDED_95) -> float:
    """Return the upper end of the one-sided interval of a difference of paired shares.

    The difference is ``(num_lost - num_won) / num_pairs``. This is Tango's score interval
    (Statistics in Medicine 17, 1998, 891-908): unlike the normal interval it does not shrink to
    nothing where no pair differs. The variance is that of the difference under the bound itself,
    with the nuisance share at its maximum likelihood, so the bound is found by bisection.
    """
    if num_pairs <= 0 or num_lost < 0 or num_won < 0 or num_lost + num_won > num_pairs + 1e-9:
        raise ValueError(f"{num_lost} lost and {num_won} won of {num_pairs} pairs")
    return _last_where(
        lambda loss: _tango_score(num_lost, num_won, num_pairs, loss) > -z, (num_lost - num_won) / num_pairs
    )


def paired_gain_interval(num_won: float, num_lost: float, num_pairs: float) -> Interval:
    """Return Tango's two-sided 95 % interval of ``(num_won - num_lost) / num_pairs``."""
    return Interval(
        -paired_loss_upper(num_lost, num_won, num_pairs, Z_TWO_SIDED_95),
        paired_loss_upper(num_won, num_lost, num_pairs, Z_TWO_SIDED_95),
    )


def _tango_score(b: float, c: float, n: float, delta: float) -> float:
    """Tango's T(delta), with b, c the discordant counts; falls in delta."""
    q = _restricted_share(b, c, n, delta)
    variance = n * (2 * q + delta * (1 - delta))
    if variance <= 0:
        return 0.0 if b - c == n * delta else math.copysign(math.inf, b - c - n * delta)
    return (b - c - n * delta) / math.sqrt(variance)


def _restricted_share(b: float, c: float, n: float, delta: float) -> float:
    """Maximum-likelihood share of the pairs counted by c where the difference is delta."""
    linear = -b - c + (2 * n - b + c) * delta
    constant = -c * delta * (1 - delta)
    root = math.sqrt(max(0.0, linear * linear - 8 * n * constant))
    return max(0.0, (root - linear) / (4 * n))


def smallest_paired_difference(squares: float, num_pairs: int, num_samples: int = 1) -> float:
    """Return the difference of paired shares that ``num_pairs`` detect with a power of 80 %.

    It solves ``sqrt(n) d = z sqrt(q) + z' sqrt(q - d^2)`` with z of a two-sided test at 5 % and z' of
    the power (Connor, Biometrics 43, 1987, 207-211; Miettinen, Biometrics 24, 1968, 339-352).

    Args:
        squares: q, the mean square of the differences: with one sample the share of discordant pairs.
        num_pairs: n, the problems.
        num_samples: of each problem. Differences are then multiples of its inverse, so q is at least
            d / samples, for any observation: pairs that all agree do not give power.

    Returns:
        the difference, 1 where none can be detected.
    """
    if num_pairs < 1 or num_samples < 1 or not 0 <= squares <= 1:
        raise ValueError(f"a mean square of {squares} in {num_pairs} pairs of {num_samples} samples")
    z_power = float(special.ndtri(POWER))

    def is_missed(difference: float) -> bool:
        q = max(squares, difference / num_samples, difference**2)
        needed = Z_TWO_SIDED_95 * math.sqrt(q) + z_power * math.sqrt(q - difference**2)
        return math.sqrt(num_pairs) * difference < needed

    return 1.0 if is_missed(1.0) else _last_where(is_missed, 0.0)


def median_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of a median by the sign test; None for fewer than six values.

    Its ends are order statistics, so it holds for any distribution, and rather too wide than too narrow.
    """
    ordered, count = sorted(values), len(values)
    num_below = next(rank for rank in range(count) if binomial_cdf(rank, count, 0.5) > TAIL)
    return Interval(ordered[num_below - 1], ordered[count - num_below]) if num_below else None


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's distribution."""
    return float(special.stdtrit(degrees_of_freedom, probability))
