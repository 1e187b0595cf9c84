"""Set table 1 of Lookahead Reasoning (arXiv 2506.19830) against the formulas at its acceptance rates.

    python benchmarks/lookahead_paper.py

Prints the tables of docs/how-to/planning.md. ``c by size`` is the cost of a draft if a token takes as long as
reading the weights on one GPU. ``c of GSM8K`` is fitted on that row and used for the others. ``own c``
explains the row itself. ``product`` multiplies the measured speed-ups of both levels; ``relative`` takes the
draft's cost over the target step that the token level has shortened. ``equal GPUs`` is the published
speed-up of both levels over a target that has all GPUs of that run and is faster in proportion.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy.optimize import brentq
from scipy.stats import spearmanr

from reason_spec.control.formulas import asynchronous_speedup

PARALLEL = 7
"""Target steps at once: all rows have six speculative steps (section 4)."""
FITTED_ON = "GSM8K"
LAWS = ("product", "relative")
TARGET_GPUS = 2
ALL_GPUS = 4
"""Draft and judge have one each (section 4)."""
COST_BY_SIZE = {"R1-Distill 1.5B/32B": 1.5 * TARGET_GPUS / 32, "Qwen3 1.7B/32B": 1.7 * TARGET_GPUS / 32}
"""Billions of weights a GPU, draft over target."""


@dataclass(frozen=True, slots=True)
class Row:
    """A cell of table 1: the acceptance rate of the 7B judge, and speed-ups over plain decoding."""

    dataset: str
    alpha: float
    steps: float
    tokens: float
    both: float

    @property
    def own_cost(self) -> float:
        """The draft's cost at which theorem 2 gives the speed-up of the step level."""

        def excess(cost: float) -> float:
            return asynchronous_speedup(self.alpha, PARALLEL, cost) - self.steps

        return float(brentq(excess, 0.0, 1.0))

    @property
    def product(self) -> float:
        return self.steps * self.tokens

    @property
    def relative(self) -> float:
        return self.tokens * asynchronous_speedup(self.alpha, PARALLEL, min(1.0, self.own_cost * self.tokens))

    @property
    def on_equal_gpus(self) -> float:
        return self.both * TARGET_GPUS / ALL_GPUS


TABLE_1 = {
    "R1-Distill 1.5B/32B": (
        Row("AIME24", 0.47, 1.36, 1.53, 1.82),
        Row("AMC23", 0.58, 1.48, 1.50, 2.00),
        Row("GSM8K", 0.63, 1.71, 1.39, 2.11),
        Row("HumanEval", 0.44, 1.27, 1.32, 1.54),
        Row("GPQA", 0.35, 1.14, 1.48, 1.63),
        Row("MT-Bench", 0.48, 1.27, 1.25, 1.51),
        Row("LiveCodeBench", 0.47, 1.21, 1.45, 1.58),
    ),
    "Qwen3 1.7B/32B": (
        Row("AIME24", 0.43, 1.12, 1.40, 1.49),
        Row("AMC23", 0.53, 1.22, 1.38, 1.62),
        Row("GSM8K", 0.50, 1.32, 1.32, 1.68),
        Row("HumanEval", 0.39, 1.13, 1.32, 1.39),
        Row("GPQA", 0.30, 1.04, 1.40, 1.44),
        Row("MT-Bench", 0.38, 1.10, 1.41, 1.49),
        Row("LiveCodeBench", 0.40, 1.08, 1.25, 1.32),
    ),
}


def table(pair: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a pair's table, and how near the formulas come."""
    by_size = COST_BY_SIZE[pair]
    (fitted,) = (row.own_cost for row in rows if row.dataset == FITTED_ON)
    costs = f"c by size ({by_size:.2f}) | c of {FITTED_ON} ({fitted:.2f}) | own c"
    yield f"{pair}:\n\n| | alpha | paper | {costs} | paper, both | product | relative | equal GPUs |"
    yield "|---|" + "---|" * 9
    errors: dict[float, list[float]] = {by_size: [], fitted: []}
    for row in rows:
        predicted = {cost: asynchronous_speedup(row.alpha, PARALLEL, cost) for cost in errors}
        for cost, speedup in predicted.items():
            if cost == by_size or row.dataset != FITTED_ON:
                errors[cost].append(abs(speedup / row.steps - 1))
        numbers = (row.alpha, row.steps, *predicted.values(), row.own_cost)
        shown = (
            f"{value:.2f}" for value in (*numbers, row.both, row.product, row.relative, row.on_equal_gpus)
        )
        yield f"| {row.dataset} | {' | '.join(shown)} |"
    rank = spearmanr([row.alpha for row in rows], [row.steps for row in rows]).statistic
    laws = (f"{law} {fmean(getattr(row, law) / row.both - 1 for row in rows):+.0%}" for law in LAWS)
    yield (
        f"\nRank correlation {rank:.2f}. Mean error {fmean(errors[by_size]):.0%} with c by size, "
        f"{fmean(errors[fitted]):.0%} with c of {FITTED_ON}. Both levels on average: {', '.join(laws)}.\n"
    )


if __name__ == "__main__":
    for name, published in TABLE_1.items():
        sys.stdout.writelines(f"{line}\n" for line in table(name, published))
