"""Measure a router on labelled steps that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reason_spec.lab.router_training.label_store import Labels
from reason_spec.lab.router_training.training import Floats, StepArrays
from reason_spec.routers.base import Router
from reason_spec.routers.simple import ThresholdRouter

_BINS: Final = 10
_RESAMPLES: Final = 300


@dataclass(frozen=True, slots=True)
class Curve:
    """Answers won in a hundred problems against the share of steps that are escalated.

    The advantages of the steps of one solution are added up. ``share_of_oracle`` is the area between this
    curve and a random order, over the oracle's.
    """

    name: str
    escalated: tuple[float, ...]
    won: tuple[float, ...]
    auc: float | None
    spearman: float | None
    share_of_oracle: float


@dataclass(frozen=True, slots=True)
class RouterReport:
    """The quality of a router on labelled steps; 95 % intervals are from resampled problems."""

    num_problems: int
    num_steps: int
    num_better: int
    threshold: float
    escalated: float
    missed: float
    accuracy: float
    brier: float
    calibration_error: float
    reliability: tuple[tuple[float, float, int], ...]
    auc_interval: tuple[float, float]
    share_interval: tuple[float, float]
    curves: tuple[Curve, ...]

    def curve(self, name: str) -> Curve:
        return next(curve for curve in self.curves if curve.name == name)


def measure(router: Router, labels: Labels, seed: int = 0) -> RouterReport:
    """Measure a router on steps that it was not trained on.

    It is compared with the oracle, a random order, the draft's own confidence, and, where the labels hold
    rewards, the order in which RSD would reject steps.

    Raises:
        DataError: there are too few labelled steps.
    """
    steps = labels.steps
    table = StepArrays.of(steps)
    scores = np.array([router.score(step.features) for step in steps])
    doubts = np.array([ThresholdRouter(0.5).score(step.features) for step in steps])
    orders: dict[str, Floats] = {router.name: scores, "oracle": table.advantage, "threshold": doubts}
    if not np.isnan(table.reward).all():
        # A step without a reward was cut off: it is rejected first.
        orders["rsd"] = np.nan_to_num(-table.reward, nan=1.0)
    reliability = _reliability(scores, table.better)
    escalated = scores > router.threshold
    auc_interval, share_interval = _intervals(scores, table, seed)
    return RouterReport(
        num_problems=table.num_problems,
        num_steps=len(steps),
        num_better=int(table.better.sum()),
        threshold=router.threshold,
        escalated=float(escalated.mean()),
        missed=float(np.maximum(table.advantage[~escalated], 0.0).sum() / table.num_problems),
        accuracy=float((escalated == table.better).mean()),
        brier=float(np.mean((scores - table.better) ** 2)),
        calibration_error=sum(n * abs(p - share) for p, share, n in reliability) / len(steps),
        reliability=reliability,
        auc_interval=auc_interval,
        share_interval=share_interval,
        curves=(*(_curve(name, order, table) for name, order in orders.items()), _chance_curve(table)),
    )


def _won(order: Floats, table: StepArrays) -> Floats:
    """Return the answers won a problem by escalating the first 0, 1, ... steps by falling score.

    Steps of equal scores each count as their mean.
    """
    ranks = np.argsort(-order, kind="stable")
    _, group = np.unique(-order[ranks], return_inverse=True)
    gains = table.advantage[ranks]
    even = (np.bincount(group, gains) / np.bincount(group))[group]
    return np.concatenate([[0.0], np.cumsum(even)]) / table.num_problems


def _share_of_oracle(order: Floats, table: StepArrays) -> float:
    chance = table.advantage.sum() / table.num_problems / 2
    best = _won(table.advantage, table).mean() - chance
    return float((_won(order, table).mean() - chance) / best) if best > 0 else 0.0


def _curve(name: str, order: Floats, table: StepArrays) -> Curve:
    from scipy.stats import spearmanr
    from sklearn.metrics import roc_auc_score

    won = _won(order, table)
    return Curve(
        name=name,
        escalated=tuple(np.linspace(0, 1, len(won)).tolist()),
        won=tuple((100 * won).tolist()),
        auc=float(roc_auc_score(table.better, order)),
        spearman=float(spearmanr(order, table.advantage).statistic) if np.ptp(order) > 0 else None,
        share_of_oracle=_share_of_oracle(order, table),
    )


def _chance_curve(table: StepArrays) -> Curve:
    total = 100 * float(table.advantage.sum()) / table.num_problems
    return Curve("random", (0.0, 1.0), (0.0, total), 0.5, 0.0, 0.0)


def _reliability(scores: Floats, better: NDArray[np.bool_]) -> tuple[tuple[float, float, int], ...]:
    """Mean score, share of better steps and number of steps in ten bins of equal size."""
    bins = np.array_split(np.argsort(scores, kind="stable"), _BINS)
    return tuple(
        (float(scores[rows].mean()), float(better[rows].mean()), len(rows)) for rows in bins if len(rows)
    )


def _intervals(
    scores: Floats, table: StepArrays, seed: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return 95 % intervals of the area under the curve and of the oracle's share."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(seed)
    rows_of = [np.flatnonzero(table.problem == problem) for problem in np.unique(table.problem)]
    aucs, shares = [], []
    for _ in range(_RESAMPLES):
        drawn = rng.integers(0, len(rows_of), len(rows_of))
        rows = np.concatenate([rows_of[i] for i in drawn])
        sample = table.take(rows)
        if 0 < sample.better.sum() < len(rows):
            aucs.append(roc_auc_score(sample.better, scores[rows]))
            shares.append(_share_of_oracle(scores[rows], sample))
    (low, share_low), (high, share_high) = (
        (float(np.quantile(aucs, level)), float(np.quantile(shares, level))) for level in (0.025, 0.975)
    )
    return (low, high), (share_low, share_high)
