"""The measurements of Lookahead Reasoning (arXiv 2506.19830), and the formulas at its acceptance rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from reason_spec.control.formulas import asynchronous_speedup

PAPER_DEPTH = 6
"""Speculative steps in all rows (section 4)."""
FITTED_ON = "GSM8K"
"""The data set on which the draft's cost is fitted that is then used for the others."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A cell of table 1: the acceptance rate of the 7B judge, and speed-ups over plain decoding."""

    pair: str
    dataset: str
    alpha_step: float
    lookahead: float
    token: float
    both: float


@dataclass(frozen=True, slots=True)
class PublishedPair:
    """A pair of models: billions of weights, and the number of GPUs of each."""

    name: str
    draft_weights: float
    target_weights: float
    draft_gpus: int = 1
    target_gpus: int = 2

    @property
    def ideal_cost(self) -> float:
        """The cost of a drafted step if a token takes as long as reading the weights on one GPU."""
        return (self.draft_weights / self.draft_gpus) / (self.target_weights / self.target_gpus)


PAIRS = (PublishedPair("R1-Distill 1.5B/32B", 1.5, 32.0), PublishedPair("Qwen3 1.7B/32B", 1.7, 32.0))

# For each data set and pair: acceptance rate, speed-up of lookahead, of the token level, of both.
_NUMBERS = {
    "AIME24": ((0.47, 1.36, 1.53, 1.82), (0.43, 1.12, 1.40, 1.49)),
    "AMC23": ((0.58, 1.48, 1.50, 2.00), (0.53, 1.22, 1.38, 1.62)),
    "GSM8K": ((0.63, 1.71, 1.39, 2.11), (0.50, 1.32, 1.32, 1.68)),
    "HumanEval": ((0.44, 1.27, 1.32, 1.54), (0.39, 1.13, 1.32, 1.39)),
    "GPQA": ((0.35, 1.14, 1.48, 1.63), (0.30, 1.04, 1.40, 1.44)),
    "MT-Bench": ((0.48, 1.27, 1.25, 1.51), (0.38, 1.10, 1.41, 1.49)),
    "LiveCodeBench": ((0.47, 1.21, 1.45, 1.58), (0.40, 1.08, 1.25, 1.32)),
}
TABLE_1 = tuple(
    PublishedRow(pair.name, dataset, *numbers[place])
    for place, pair in enumerate(PAIRS)
    for dataset, numbers in _NUMBERS.items()
)

TABLE_3 = {
    "GSM8K": {1: 0.63, 2: 0.73, 4: 0.77, 8: 0.83},
    "AIME24": {1: 0.47, 2: 0.58, 4: 0.67, 8: 0.74},
}
"""Acceptance rates by width (judge of 7B)."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A row of table 1 with the predictions for its acceptance rate.

    ``ideal`` takes the draft's cost from the sizes of the models, ``fitted`` from the pair's row for GSM8K;
    ``own_cost`` is the cost that explains this row. ``product`` multiplies the measured speed-ups of both
    levels; ``relative`` takes the draft's cost over the target step that the token level has shortened.
    """

    row: PublishedRow
    ideal: float
    fitted: float
    own_cost: float
    product: float
    relative: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close the predictions for one pair come to the measurements.

    Errors are means of |predicted / measured - 1|, biases of predicted / measured - 1; those of ``fitted``
    leave out the fitted row. ``rank`` is Spearman's correlation for the step level.
    """

    pair: str
    ideal_cost: float
    fitted_cost: float
    rank: float
    ideal_error: float
    fitted_error: float
    product_error: float
    relative_error: float
    product_bias: float
    relative_bias: float


def effective_cost(alpha: float, parallel: int, speedup: float) -> float:
    """Return the draft's cost, from 0 to 1, at which theorem 2 gives ``speedup``.

    0 where even a draft without cost would not be enough.
    """
    from scipy.optimize import brentq

    if asynchronous_speedup(alpha, parallel, 0.0) <= speedup:
        return 0.0
    if asynchronous_speedup(alpha, parallel, 1.0) >= speedup:
        return 1.0
    cost = brentq(lambda cost: asynchronous_speedup(alpha, parallel, cost) - speedup, 0.0, 1.0, xtol=1e-7)
    return float(cost)


def reproduce(pair: PublishedPair) -> list[Reproduced]:
    """Return the pair's rows of the table with predictions beside them."""
    fitted = fitted_cost(pair)
    return [_predict(row, pair.ideal_cost, fitted) for row in TABLE_1 if row.pair == pair.name]


def fitted_cost(pair: PublishedPair) -> float:
    """Return the cost that explains the pair's speed-up by lookahead alone on GSM8K."""
    (row,) = (row for row in TABLE_1 if (row.pair, row.dataset) == (pair.name, FITTED_ON))
    return effective_cost(row.alpha_step, PAPER_DEPTH + 1, row.lookahead)


def agreement(pair: PublishedPair, rows: Sequence[Reproduced]) -> Agreement:
    """Summarize the errors of the predictions."""
    from scipy.stats import spearmanr

    others = [item for item in rows if item.row.dataset != FITTED_ON]
    products = [item.product / item.row.both - 1 for item in rows]
    relatives = [item.relative / item.row.both - 1 for item in rows]
    return Agreement(
        pair=pair.name,
        ideal_cost=pair.ideal_cost,
        fitted_cost=fitted_cost(pair),
        rank=float(
            spearmanr([item.fitted for item in rows], [item.row.lookahead for item in rows]).statistic
        ),
        ideal_error=fmean(abs(item.ideal / item.row.lookahead - 1) for item in rows),
        fitted_error=fmean(abs(item.fitted / item.row.lookahead - 1) for item in others),
        product_error=fmean(map(abs, products)),
        relative_error=fmean(map(abs, relatives)),
        product_bias=fmean(products),
        relative_bias=fmean(relatives),
    )


def _predict(row: PublishedRow, ideal_cost: float, fitted: float) -> Reproduced:
    parallel = PAPER_DEPTH + 1
    own_cost = effective_cost(row.alpha_step, parallel, row.lookahead)
    # The target step is `token` times shorter, the draft as slow as before.
    relative_cost = min(1.0, own_cost * row.token)
    return Reproduced(
        row=row,
        ideal=asynchronous_speedup(row.alpha_step, parallel, ideal_cost),
        fitted=asynchronous_speedup(row.alpha_step, parallel, fitted),
        own_cost=own_cost,
        product=row.lookahead * row.token,
        relative=row.token * asynchronous_speedup(row.alpha_step, parallel, relative_cost),
    )
