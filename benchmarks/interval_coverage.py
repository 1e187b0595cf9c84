"""Draw runs whose truth is known, and count how many of the intervals hold it.

    python benchmarks/interval_coverage.py [--runs 2000] [--seed 0] [--json [FILE]]

The intervals are those of an evaluation (docs/reference/statistics.md), two-sided, 95 %. Rows, each for 10,
30 and 200 problems:

- ``accuracy``: of 50, 90 and 99 %, with one sample of each problem and with four. Their chances of being
  right differ between problems by a beta distribution; ``likeness`` is the correlation of two samples of one;
- ``difference``: paired, where some problems are lost and some won; with four samples each of them in nine
  answers of ten;
- ``speed-up``, ``paired speed-up`` and ``seconds``: problems differ lognormally (sigma 0.6), and so does
  every answer (sigma 0.3).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import exp
from pathlib import Path
from typing import Final

import numpy as np
from arms import write_rows
from rich.console import Console
from rich.table import Table

from reason_spec.evaluation.estimates import estimate_gain, estimate_mean, estimate_ratio, estimate_share
from reason_spec.evaluation.statistics import Floats, Interval, median_interval

NUM_PROBLEMS: Final = (10, 30, 200)
ACCURACIES: Final = (0.5, 0.9, 0.99)
LOST_AND_WON: Final = ((0.0, 0.0), (0.02, 0.02), (0.1, 0.03))
SPEEDUP: Final = 1.5
_SIGMA_PROBLEM, _SIGMA_ANSWER = 0.6, 0.3


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of runs whose interval holds the truth."""

    what: str
    truth: str
    num_problems: int
    num_samples: int
    runs: int
    held: float


def draw_shares(
    generator: np.random.Generator,
    runs: int,
    num_problems: int,
    num_samples: int,
    accuracy: float,
    likeness: float,
) -> Floats:
    """Draw shares of right samples ``[runs, num_problems]``; those of a problem correlate by ``likeness``."""
    size = (runs, num_problems)
    if likeness == 0:
        chances = np.full(size, accuracy)
    elif likeness == 1:
        chances = (generator.random(size) < accuracy).astype(float)
    else:
        scale = 1 / likeness - 1
        chances = generator.beta(accuracy * scale, (1 - accuracy) * scale, size)
    shares: Floats = generator.binomial(num_samples, chances) / num_samples
    return shares


def accuracy_coverage(
    num_problems: int, num_samples: int, accuracy: float, likeness: float, runs: int, seed: int = 0
) -> float:
    """Return the share of intervals of accuracy that hold it."""

    @lru_cache(None)
    def interval(shares: tuple[float, ...]) -> Interval | None:
        return estimate_share(shares, num_problems * num_samples).interval

    generator = np.random.default_rng(seed)
    drawn = np.sort(draw_shares(generator, runs, num_problems, num_samples, accuracy, likeness))
    return _held((interval(tuple(shares)) for shares in drawn), accuracy)


def difference_coverage(
    num_problems: int, num_samples: int, lost: float, won: float, runs: int, seed: int = 0
) -> float:
    """Return the share of intervals of a paired difference that hold it."""
    generator = np.random.default_rng(seed)
    kinds = generator.choice(3, p=[lost, won, 1 - lost - won], size=(runs, num_problems))
    if num_samples == 1:
        return _held(
            (estimate_gain(row).estimate.interval for row in np.choose(kinds, [-1.0, 1.0, 0.0])), won - lost
        )
    base, own = (
        generator.binomial(num_samples, np.choose(kinds, chances)) / num_samples
        for chances in ([0.9, 0.1, 0.8], [0.1, 0.9, 0.8])
    )
    intervals = (estimate_gain(row, num_samples).estimate.interval for row in own - base)
    return _held(intervals, 0.8 * (won - lost))


def seconds_coverage(num_problems: int, runs: int, seed: int = 0) -> Mapping[str, float]:
    """Return the shares of intervals that hold the speed-up, the paired one, and the mean seconds."""
    generator = np.random.default_rng(seed)
    speedups, paired, means = [], [], []
    for _ in range(runs):
        problem = generator.lognormal(0, _SIGMA_PROBLEM, num_problems)
        base, own = (
            factor * problem * generator.lognormal(0, _SIGMA_ANSWER, num_problems) for factor in (SPEEDUP, 1)
        )
        speedups.append(estimate_ratio(base, own).interval)
        paired.append(median_interval((base / own).tolist()))
        means.append(estimate_mean(own).interval)
    return {
        "speed-up": _held(speedups, SPEEDUP),
        "paired speed-up": _held(paired, SPEEDUP),
        "seconds": _held(means, exp((_SIGMA_PROBLEM**2 + _SIGMA_ANSWER**2) / 2)),
    }


def _held(intervals: Iterable[Interval | None], truth: float) -> float:
    return float(np.mean([found is not None and found.low <= truth <= found.high for found in intervals]))


def measure(runs: int, seed: int) -> Iterator[Coverage]:
    """Yield all rows."""
    for count, accuracy in product(NUM_PROBLEMS, ACCURACIES):
        for samples, likeness in ((1, 0.0), (4, 0.0), (4, 0.3), (4, 0.7), (4, 1.0)):
            held = accuracy_coverage(count, samples, accuracy, likeness, runs, seed)
            truth = f"{accuracy:.0%}" + ("" if samples == 1 else f", likeness {likeness:g}")
            yield Coverage("accuracy", truth, count, samples, runs, held)
    for count, (lost, won), samples in product(NUM_PROBLEMS, LOST_AND_WON, (1, 4)):
        held = difference_coverage(count, samples, lost, won, runs, seed)
        yield Coverage("difference", f"{lost:.0%} lost, {won:.0%} won", count, samples, runs, held)
    for count in NUM_PROBLEMS:
        for what, held in seconds_coverage(count, runs, seed).items():
            yield Coverage(what, "", count, 1, runs, held)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000, help="runs drawn for each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be 1 or more")
    with Console(stderr=True).status("Drawing runs", spinner="line"):
        rows = list(measure(options.runs, options.seed))
    write_rows(rows, options.json, print_rows)


def print_rows(rows: Sequence[Coverage]) -> None:
    table = Table("interval of", "truth", "problems", "samples", "held")
    for row in rows:
        table.add_row(row.what, row.truth, str(row.num_problems), str(row.num_samples), f"{row.held:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
