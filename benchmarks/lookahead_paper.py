"""Set table 1 of Lookahead Reasoning (arXiv 2506.19830) against the formulas at its acceptance rates.

    python benchmarks/lookahead_paper.py [--json [FILE]]

No model runs. ``c by size`` is the cost of a draft if a token takes as long as
reading the weights on one GPU. ``c of GSM8K`` is fitted on that row and used for the others. ``own c``
explains the row itself. ``product`` multiplies the measured speed-ups of both levels; ``relative`` takes the
draft's cost over the target step that the token level has shortened. ``equal GPUs`` is the published
speed-up of both levels over a target that has all GPUs of that run and is faster in proportion.

What the formulas leave out is simulated: steps of uneven length, the time of a verdict, and a dearer draft,
each added to those before it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from arms import printer, write_rows
from scipy.optimize import brentq
from scipy.stats import spearmanr
from text_columns import PAPER_CELLS, PAPER_EFFECTS, PAPER_FIT, PAPER_PAIR

from reason_spec.control.formulas import asynchronous_speedup
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.workload import Workload

PARALLEL = 7
"""Target steps at once: all rows have six speculative steps (section 4)."""
FITTED_ON = "GSM8K"
TARGET_GPUS = 2
ALL_GPUS = 4
"""Draft and judge have one each (section 4)."""
COST_BY_SIZE = {"R1-Distill 1.5B/32B": 1.5 * TARGET_GPUS / 32, "Qwen3 1.7B/32B": 1.7 * TARGET_GPUS / 32}
"""Billions of weights a GPU, draft over target."""


@dataclass(frozen=True, slots=True)
class Published:
    """A cell of table 1: the acceptance rate of the 7B judge, and speed-ups over plain decoding."""

    dataset: str
    alpha: float
    steps: float
    tokens: float
    both: float


def own_cost(row: Published) -> float:
    """Return the draft's cost at which theorem 2 gives the speed-up of the step level."""

    def excess(cost: float) -> float:
        return asynchronous_speedup(row.alpha, PARALLEL, cost) - row.steps

    return float(brentq(excess, 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Row:
    """A data set of a pair of models: published speed-ups, and what the formulas give."""

    pair: str
    dataset: str
    alpha: float
    steps: float
    by_size: float
    of_fitted: float
    own_cost: float
    both: float
    product: float
    relative: float
    on_equal_gpus: float
    kind: str = "cell"


@dataclass(frozen=True, slots=True)
class Fit:
    """How near the formulas come, over the data sets of a pair; errors are shares of the published values."""

    pair: str
    rank_correlation: float
    error_by_size: float
    error_of_fitted: float
    excess_of_product: float
    excess_of_relative: float
    kind: str = "fit"


@dataclass(frozen=True, slots=True)
class Effect:
    """The simulated speed-up of a data set beside the published one."""

    effect: str
    dataset: str
    speedup: float
    published: float
    kind: str = "effect"


TABLE_1 = {
    "R1-Distill 1.5B/32B": (
        Published("AIME24", 0.47, 1.36, 1.53, 1.82),
        Published("AMC23", 0.58, 1.48, 1.50, 2.00),
        Published("GSM8K", 0.63, 1.71, 1.39, 2.11),
        Published("HumanEval", 0.44, 1.27, 1.32, 1.54),
        Published("GPQA", 0.35, 1.14, 1.48, 1.63),
        Published("MT-Bench", 0.48, 1.27, 1.25, 1.51),
        Published("LiveCodeBench", 0.47, 1.21, 1.45, 1.58),
    ),
    "Qwen3 1.7B/32B": (
        Published("AIME24", 0.43, 1.12, 1.40, 1.49),
        Published("AMC23", 0.53, 1.22, 1.38, 1.62),
        Published("GSM8K", 0.50, 1.32, 1.32, 1.68),
        Published("HumanEval", 0.39, 1.13, 1.32, 1.39),
        Published("GPQA", 0.30, 1.04, 1.40, 1.44),
        Published("MT-Bench", 0.38, 1.10, 1.41, 1.49),
        Published("LiveCodeBench", 0.40, 1.08, 1.25, 1.32),
    ),
}


def row_of(pair: str, row: Published, fitted: float) -> Row:
    """Return the row of a data set; ``fitted`` is the cost that explains that of `FITTED_ON`."""
    cost = own_cost(row)
    return Row(
        pair=pair,
        dataset=row.dataset,
        alpha=row.alpha,
        steps=row.steps,
        by_size=asynchronous_speedup(row.alpha, PARALLEL, COST_BY_SIZE[pair]),
        of_fitted=asynchronous_speedup(row.alpha, PARALLEL, fitted),
        own_cost=cost,
        both=row.both,
        product=row.steps * row.tokens,
        relative=row.tokens * asynchronous_speedup(row.alpha, PARALLEL, min(1.0, cost * row.tokens)),
        on_equal_gpus=row.both * TARGET_GPUS / ALL_GPUS,
    )


def rows_of(pair: str, published: Sequence[Published]) -> list[Row]:
    (fitted,) = (own_cost(row) for row in published if row.dataset == FITTED_ON)
    return [row_of(pair, row, fitted) for row in published]


def fit_of(pair: str, rows: Sequence[Row]) -> Fit:
    """Return how near the formulas come to the rows of a pair."""
    others = [row for row in rows if row.dataset != FITTED_ON]
    return Fit(
        pair=pair,
        rank_correlation=float(spearmanr([row.alpha for row in rows], [row.steps for row in rows]).statistic),
        error_by_size=fmean(abs(row.by_size / row.steps - 1) for row in rows),
        error_of_fitted=fmean(abs(row.of_fitted / row.steps - 1) for row in others),
        excess_of_product=fmean(row.product / row.both - 1 for row in rows),
        excess_of_relative=fmean(row.relative / row.both - 1 for row in rows),
    )


def effects() -> list[Effect]:
    """Simulate two rows of R1-Distill with what the formulas leave out, one effect more at a time."""
    pair = "R1-Distill 1.5B/32B"
    shown = [row for row in TABLE_1[pair] if row.dataset in ("GSM8K", "AIME24")]
    workload = Workload(0.0, COST_BY_SIZE[pair])
    uneven = replace(workload, step_tokens_std=0.8 * workload.step_tokens)
    judged = replace(uneven, verification=0.05)
    simulated = {
        "equal steps, c by size": workload,
        "standard deviation of steps 80 % of their mean": uneven,
        "a verdict takes 0.05 of a step": judged,
        "c = 0.3": replace(judged, c_step=0.3),
    }
    found = []
    for effect, workload in simulated.items():
        for row in shown:
            speedup = simulate(replace(workload, alpha_step=row.alpha), Scheme(PARALLEL - 1))
            found.append(Effect(effect, row.dataset, speedup, row.steps))
    return found


def print_rows(rows: Sequence[Row | Fit | Effect]) -> None:
    printer(PAPER_PAIR, *PAPER_CELLS)([row for row in rows if isinstance(row, Row)])
    printer(*PAPER_FIT)([row for row in rows if isinstance(row, Fit)])
    printer(*PAPER_EFFECTS)([row for row in rows if isinstance(row, Effect)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    by_pair = {pair: rows_of(pair, published) for pair, published in TABLE_1.items()}
    fits = [fit_of(pair, rows) for pair, rows in by_pair.items()]
    write_rows(
        [*(row for rows in by_pair.values() for row in rows), *fits, *effects()], options.json, print_rows
    )


if __name__ == "__main__":
    main()
