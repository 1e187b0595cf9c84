"""Train a router on labelled steps, and measure one on steps it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

import reason_spec
from reason_spec.errors import DataError
from reason_spec.lab.router_training.advantage import LabelledStep
from reason_spec.lab.router_training.label_store import Labels
from reason_spec.routers.base import Router
from reason_spec.routers.features import FEATURE_NAMES
from reason_spec.routers.learned import Boosting, Logistic, Mean, RouterModel, Tree
from reason_spec.routers.simple import ThresholdRouter

ModelKind: TypeAlias = Literal["logistic", "boosting", "mean"]
Floats: TypeAlias = NDArray[np.float64]
MODEL_KINDS: Final[tuple[ModelKind, ...]] = ("logistic", "boosting", "mean")
MIN_STEPS: Final = 20
"""So many steps of each kind, better and not better, are the least to train on or to measure."""
_FOLDS: Final = 5
_BOOSTING: Final = {
    "n_estimators": 200,
    "max_depth": 3,
    "learning_rate": 0.045,
    "subsample": 0.5,
    "max_features": 0.3,
    "min_samples_leaf": 8,
}
"""Small trees on part of the steps and features each: labels are few, and some are wrong."""
_RIDGE: Final = 0.1
_BINS: Final = 10
_RESAMPLES: Final = 300


@dataclass(frozen=True, slots=True)
class Table:
    """Labelled steps as arrays, one row a step. ``reward`` is nan where no reward model was asked."""

    x: Floats
    advantage: Floats
    problem: NDArray[np.int64]
    num_own_tokens: Floats
    reward: Floats

    @classmethod
    def of(cls, steps: Sequence[LabelledStep]) -> Table:
        """Make a table of steps.

        Raises:
            DataError: there are too few in which one model does better, or too few in which it does not.
        """
        table = cls(
            np.array([step.features.vector() for step in steps], dtype=float).reshape(len(steps), -1),
            np.array([step.advantage for step in steps], dtype=float),
            np.unique([step.problem for step in steps], return_inverse=True)[1],
            np.array([step.num_own_tokens for step in steps], dtype=float),
            np.array([np.nan if step.reward is None else step.reward for step in steps], dtype=float),
        )
        num_better = int(table.better.sum())
        if min(num_better, len(steps) - num_better) < MIN_STEPS or table.num_problems < _FOLDS:
            raise DataError(
                f"{len(steps)} labelled steps of {table.num_problems} problems, {num_better} of them better "
                f"by the target: at least {MIN_STEPS} of either kind and {_FOLDS} problems are needed"
            )
        return table

    @property
    def better(self) -> NDArray[np.bool_]:
        """Where the target's own step is the better one."""
        return self.advantage > 0

    @property
    def num_problems(self) -> int:
        return len(np.unique(self.problem))

    def take(self, rows: NDArray[np.int64]) -> Table:
        return Table(
            self.x[rows],
            self.advantage[rows],
            self.problem[rows],
            self.num_own_tokens[rows],
            self.reward[rows],
        )


# Training ------------------------------------------------------------------------------------


def train(labels: Labels, *, kind: ModelKind | None = None, loss: float = 1.0, seed: int = 0) -> RouterModel:
    """Fit a router to labelled steps.

    Both labels weigh the same in the fit, as in Arbitrage (appendix C); chances are then calibrated to
    the steps as they come. Calibration, the choice between models and the threshold go by predictions for
    problems that the predicting model has not seen (five folds).

    Args:
        kind: logistic regression or gradient boosting; None: the one with the larger area under the curve.
        loss: answers in a hundred that may be lost to steps that are not escalated.

    Raises:
        DataError: there are too few labelled steps.
    """
    from sklearn.metrics import brier_score_loss, roc_auc_score

    table = Table.of(labels.steps)
    margins = {name: _held_out_margins(name, table, seed) for name in ([kind] if kind else MODEL_KINDS)}
    aucs = {name: float(roc_auc_score(table.better, margin)) for name, margin in margins.items()}
    best = max(aucs, key=aucs.__getitem__)
    slope, intercept = _calibrate(margins[best], table.better)
    chance = 1 / (1 + np.exp(-(slope * margins[best] + intercept)))
    threshold = _threshold_for(chance, table, loss / 100)
    return RouterModel(
        pair=labels.about.pair,
        features=FEATURE_NAMES,
        model=_export(best, _fit(best, table, seed)),
        slope=slope,
        intercept=intercept,
        threshold=threshold,
        trained={
            "problems": table.num_problems,
            "steps": len(table.x),
            "better_by_target": int(table.better.sum()),
            "labels": {"label": labels.about.options.label, "rollouts": labels.about.options.rollouts},
            "held_out_auc": {name: round(auc, 4) for name, auc in aucs.items()},
            "held_out_brier": round(float(brier_score_loss(table.better, chance)), 4),
            "held_out_escalated": round(float((chance > threshold).mean()), 4),
            "loss": loss,
            "versions": _versions(),
        },
    )


def _versions() -> dict[str, str]:
    import sklearn

    return {"reason-spec": reason_spec.__version__, "scikit-learn": sklearn.__version__}


@dataclass(frozen=True, slots=True)
class _Both:
    """The two models of a mean, and what makes their log-odds weigh the same."""

    logistic: Any
    boosting: Any
    weight_of_logistic: float
    weight_of_boosting: float


def _fit(kind: ModelKind, table: Table, seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.class_weight import compute_sample_weight

    if kind == "mean":
        logistic, boosting = _fit("logistic", table, seed), _fit("boosting", table, seed)
        spread_of_logistic = float(_margins("logistic", logistic, table.x).std())
        spread_of_boosting = float(_margins("boosting", boosting, table.x).std())
        return _Both(logistic, boosting, 1 / max(spread_of_logistic, 1e-9), 1 / max(spread_of_boosting, 1e-9))
    weights = compute_sample_weight("balanced", table.better)
    if kind == "logistic":
        scaler = StandardScaler().fit(table.x)
        model = LogisticRegression(C=_RIDGE, max_iter=5000)
        return scaler, model.fit(scaler.transform(table.x), table.better, sample_weight=weights)
    model = GradientBoostingClassifier(**_BOOSTING, random_state=seed)
    return model.fit(table.x, table.better, sample_weight=weights)


def _margins(kind: ModelKind, fitted: Any, x: Floats) -> Floats:
    if kind == "mean":
        of_logistic = fitted.weight_of_logistic * _margins("logistic", fitted.logistic, x)
        of_boosting = fitted.weight_of_boosting * _margins("boosting", fitted.boosting, x)
        return np.asarray(of_logistic + of_boosting, dtype=float)
    if kind == "logistic":
        scaler, model = fitted
        return np.asarray(model.decision_function(scaler.transform(x)), dtype=float)
    return np.asarray(fitted.decision_function(x), dtype=float)


def _held_out_margins(kind: ModelKind, table: Table, seed: int) -> Floats:
    """Return the log-odds of every step by a model that has not seen its problem."""
    from sklearn.model_selection import StratifiedGroupKFold

    margins = np.zeros(len(table.x))
    folds = StratifiedGroupKFold(_FOLDS, shuffle=True, random_state=seed)
    for seen, left_out in folds.split(table.x, table.better, table.problem):
        margins[left_out] = _margins(kind, _fit(kind, table.take(seen), seed), table.x[left_out])
    return margins


def _calibrate(margins: Floats, better: NDArray[np.bool_]) -> tuple[float, float]:
    """Return slope and intercept from log-odds to those of a calibrated chance."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e6, max_iter=5000).fit(margins.reshape(-1, 1), better)
    return max(0.0, float(model.coef_[0, 0])), float(model.intercept_[0])


def _threshold_for(chance: Floats, table: Table, loss: float) -> float:
    """Return the highest threshold at which no more than the loss is missed, a problem's steps added up."""
    order = np.argsort(chance)
    missed = np.cumsum(np.maximum(table.advantage[order], 0.0)) / table.num_problems
    num_kept = int(np.searchsorted(missed, loss, side="right"))
    return 0.0 if num_kept == 0 else float(chance[order[num_kept - 1]])


def _export(kind: ModelKind, fitted: Any) -> Logistic | Boosting | Mean:
    if kind == "mean":
        return Mean(
            logistic=_export_logistic(fitted.logistic),
            boosting=_export_boosting(fitted.boosting),
            weight_of_logistic=fitted.weight_of_logistic,
            weight_of_boosting=fitted.weight_of_boosting,
        )
    return _export_logistic(fitted) if kind == "logistic" else _export_boosting(fitted)


def _export_logistic(fitted: Any) -> Logistic:
    scaler, model = fitted
    return Logistic(
        mean=tuple(scaler.mean_.tolist()),
        scale=tuple(scaler.scale_.tolist()),
        weights=tuple(model.coef_[0].tolist()),
        intercept=float(model.intercept_[0]),
    )


def _export_boosting(fitted: Any) -> Boosting:
    p = float(fitted.init_.class_prior_[1])
    return Boosting(
        base=float(np.log(p / (1 - p))),
        rate=fitted.learning_rate,
        trees=tuple(_export_tree(tree.tree_) for tree in fitted.estimators_[:, 0]),
    )


def _export_tree(tree: Any) -> Tree:
    leaf = tree.children_left == -1
    return Tree(
        feature=tuple(np.where(leaf, 0, tree.feature).tolist()),
        threshold=tuple(np.where(leaf, 0.0, tree.threshold).tolist()),
        left=tuple(tree.children_left.tolist()),
        right=tuple(tree.children_right.tolist()),
        value=tuple(tree.value[:, 0, 0].tolist()),
    )


# Measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """Answers won in a hundred problems against the share of steps that are escalated, from none to all.

    A step's advantage is counted as if the rest of the solution stayed what it was: two steps lost in one
    solution count twice. ``share_of_oracle`` is the area between this curve and chance, over the oracle's.
    """

    name: str
    escalated: tuple[float, ...]
    won: tuple[float, ...]
    auc: float | None
    spearman: float | None
    share_of_oracle: float


@dataclass(frozen=True, slots=True)
class RouterReport:
    """How a router does on labelled steps; intervals are of 95 %, from resampled problems."""

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

    Beside it stand the oracle, chance, the draft's own doubt, and, where the labels hold rewards, the order
    in which RSD would refuse steps.

    Raises:
        DataError: there are too few labelled steps.
    """
    steps = labels.steps
    table = Table.of(steps)
    scores = np.array([router.score(step.features) for step in steps])
    doubts = np.array([ThresholdRouter(0.5).score(step.features) for step in steps])
    orders: dict[str, Floats] = {router.name: scores, "oracle": table.advantage, "threshold": doubts}
    if not np.isnan(table.reward).all():
        # A step without a reward was cut: it is refused before any other.
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


def _won(order: Floats, table: Table) -> Floats:
    """Answers won a problem where the first 0, 1, ... of the steps, by falling score, are escalated."""
    # Of equal scores none comes first: each has the mean of them.
    ranks = np.argsort(-order, kind="stable")
    _, group = np.unique(-order[ranks], return_inverse=True)
    gains = table.advantage[ranks]
    even = (np.bincount(group, gains) / np.bincount(group))[group]
    return np.concatenate([[0.0], np.cumsum(even)]) / table.num_problems


def _share_of_oracle(order: Floats, table: Table) -> float:
    chance = table.advantage.sum() / table.num_problems / 2
    best = _won(table.advantage, table).mean() - chance
    return float((_won(order, table).mean() - chance) / best) if best > 0 else 0.0


def _curve(name: str, order: Floats, table: Table) -> Curve:
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


def _chance_curve(table: Table) -> Curve:
    total = 100 * float(table.advantage.sum()) / table.num_problems
    return Curve("random", (0.0, 1.0), (0.0, total), 0.5, 0.0, 0.0)


def _reliability(scores: Floats, better: NDArray[np.bool_]) -> tuple[tuple[float, float, int], ...]:
    """Mean score, share of better steps and number of steps in ten bins of equal size."""
    bins = np.array_split(np.argsort(scores, kind="stable"), _BINS)
    return tuple(
        (float(scores[rows].mean()), float(better[rows].mean()), len(rows)) for rows in bins if len(rows)
    )


def _intervals(scores: Floats, table: Table, seed: int) -> tuple[tuple[float, float], tuple[float, float]]:
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
    low_high = [tuple(map(float, np.quantile(values, (0.025, 0.975)))) for values in (aucs, shares)]
    return low_high[0], low_high[1]  # type: ignore[return-value]
