"""Train a router on labelled steps."""

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
from reason_spec.routers.features import FEATURE_NAMES
from reason_spec.routers.learned import Boosting, Logistic, Mean, RouterModel, Tree

ModelKind: TypeAlias = Literal["logistic", "boosting", "mean"]
Floats: TypeAlias = NDArray[np.float64]
MODEL_KINDS: Final[tuple[ModelKind, ...]] = ("logistic", "boosting", "mean")
MIN_STEPS: Final = 20
"""Smallest number of steps where the target is better, and where it is not, to train on or to measure."""
_FOLDS: Final = 5
_BOOSTING: Final = {
    "n_estimators": 200,
    "max_depth": 3,
    "learning_rate": 0.045,
    "subsample": 0.5,
    "max_features": 0.3,
    "min_samples_leaf": 8,
}
"""Small trees on part of the steps and features: labels are few, and some are wrong."""
_RIDGE: Final = 0.1


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Labelled steps as arrays, one row a step; ``reward`` is nan without a reward model."""

    x: Floats
    advantage: Floats
    problem: NDArray[np.int64]
    reward: Floats

    @classmethod
    def of(cls, steps: Sequence[LabelledStep]) -> StepArrays:
        """Make arrays of steps.

        Raises:
            DataError: there are too few in which one model does better, or too few in which it does not.
        """
        table = cls(
            np.array([step.features.vector() for step in steps], dtype=float).reshape(len(steps), -1),
            np.array([step.advantage for step in steps], dtype=float),
            np.unique([step.problem for step in steps], return_inverse=True)[1],
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

    def take(self, rows: NDArray[np.int64]) -> StepArrays:
        return StepArrays(self.x[rows], self.advantage[rows], self.problem[rows], self.reward[rows])


def train(labels: Labels, *, kind: ModelKind | None = None, loss: float = 1.0, seed: int = 0) -> RouterModel:
    """Fit a router to labelled steps.

    Both labels weigh the same in the fit, as in Arbitrage (appendix C); chances are then calibrated to the
    true shares. Calibration, model choice and threshold use predictions for held-out problems (five folds).

    Args:
        kind: None: the one with the largest area under the curve.
        loss: answers in a hundred that may be lost to steps that are not escalated.

    Raises:
        DataError: there are too few labelled steps, or on problems left out they are ordered no better than
            by chance.
    """
    import sklearn
    from sklearn.metrics import brier_score_loss, roc_auc_score

    table = StepArrays.of(labels.steps)
    margins = {name: _held_out_margins(name, table, seed) for name in ([kind] if kind else MODEL_KINDS)}
    aucs = {name: float(roc_auc_score(table.better, margin)) for name, margin in margins.items()}
    best = max(aucs, key=aucs.__getitem__)
    slope, intercept = _calibrate(margins[best], table.better)
    if slope == 0:
        raise DataError(
            f"{len(table.x)} labelled steps of {table.num_problems} problems do not show where the target "
            f"does better: on problems left out the area under the curve is {aucs[best]:.3f}. Label more "
            "problems"
        )
    chance = 1 / (1 + np.exp(-(slope * margins[best] + intercept)))
    threshold = _threshold_for(chance, table, loss / 100)
    return RouterModel(
        pair=labels.about.pair,
        features=FEATURE_NAMES,
        model=CLASSIFIERS[best](table, seed).export(),
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
            "versions": {"reason-spec": reason_spec.__version__, "scikit-learn": sklearn.__version__},
        },
    )


class _LogisticClassifier:
    def __init__(self, table: StepArrays, seed: int) -> None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = LogisticRegression(C=_RIDGE, max_iter=5000, class_weight="balanced")
        self._pipeline: Any = make_pipeline(StandardScaler(), model).fit(table.x, table.better)

    def margins(self, x: Floats) -> Floats:
        return np.asarray(self._pipeline.decision_function(x), dtype=float)

    def export(self) -> Logistic:
        scaler, model = (step for _, step in self._pipeline.steps)
        return Logistic(
            mean=tuple(scaler.mean_.tolist()),
            scale=tuple(scaler.scale_.tolist()),
            weights=tuple(model.coef_[0].tolist()),
            intercept=float(model.intercept_[0]),
        )


class _BoostingClassifier:
    def __init__(self, table: StepArrays, seed: int) -> None:
        from sklearn.ensemble import GradientBoostingClassifier
        from sklearn.utils.class_weight import compute_sample_weight

        weights = compute_sample_weight("balanced", table.better)
        model = GradientBoostingClassifier(**_BOOSTING, random_state=seed)
        self._model: Any = model.fit(table.x, table.better, sample_weight=weights)

    def margins(self, x: Floats) -> Floats:
        return np.asarray(self._model.decision_function(x), dtype=float)

    def export(self) -> Boosting:
        p = float(self._model.init_.class_prior_[1])
        trees = (tree.tree_ for tree in self._model.estimators_[:, 0])
        base = float(np.log(p / (1 - p)))
        return Boosting(base=base, rate=self._model.learning_rate, trees=tuple(map(_export_tree, trees)))


class _MeanClassifier:
    """The mean of both, each divided by the spread of its log-odds so that they weigh the same."""

    def __init__(self, table: StepArrays, seed: int) -> None:
        self._logistic = _LogisticClassifier(table, seed)
        self._boosting = _BoostingClassifier(table, seed)
        margins = [model.margins(table.x) for model in (self._logistic, self._boosting)]
        self._weights = [1 / max(float(values.std()), 1e-9) for values in margins]

    def margins(self, x: Floats) -> Floats:
        first, second = self._weights
        return np.asarray(first * self._logistic.margins(x) + second * self._boosting.margins(x), dtype=float)

    def export(self) -> Mean:
        first, second = self._weights
        return Mean(
            logistic=self._logistic.export(),
            boosting=self._boosting.export(),
            weight_of_logistic=first,
            weight_of_boosting=second,
        )


CLASSIFIERS: Final[dict[ModelKind, type[_LogisticClassifier | _BoostingClassifier | _MeanClassifier]]] = {
    "logistic": _LogisticClassifier,
    "boosting": _BoostingClassifier,
    "mean": _MeanClassifier,
}


def _export_tree(tree: Any) -> Tree:
    leaf = tree.children_left == -1
    return Tree(
        feature=tuple(np.where(leaf, 0, tree.feature).tolist()),
        threshold=tuple(np.where(leaf, 0.0, tree.threshold).tolist()),
        left=tuple(tree.children_left.tolist()),
        right=tuple(tree.children_right.tolist()),
        value=tuple(tree.value[:, 0, 0].tolist()),
    )


def _held_out_margins(kind: ModelKind, table: StepArrays, seed: int) -> Floats:
    """Return the log-odds of every step by a model that has not seen its problem."""
    from sklearn.model_selection import StratifiedGroupKFold

    margins = np.zeros(len(table.x))
    folds = StratifiedGroupKFold(_FOLDS, shuffle=True, random_state=seed)
    for seen, left_out in folds.split(table.x, table.better, table.problem):
        margins[left_out] = CLASSIFIERS[kind](table.take(seen), seed).margins(table.x[left_out])
    return margins


def _calibrate(margins: Floats, better: NDArray[np.bool_]) -> tuple[float, float]:
    """Return slope and intercept from log-odds to calibrated ones (Platt scaling)."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e6, max_iter=5000).fit(margins.reshape(-1, 1), better)
    return max(0.0, float(model.coef_[0, 0])), float(model.intercept_[0])


def _threshold_for(chance: Floats, table: StepArrays, loss: float) -> float:
    """Return the highest threshold that misses at most ``loss`` answers a problem.

    Steps with the threshold itself are not escalated, so all that share it must be among those kept.
    """
    order = np.argsort(chance)
    missed = np.cumsum(np.maximum(table.advantage[order], 0.0)) / table.num_problems
    num_kept = int(np.searchsorted(missed, loss, side="right"))
    kept = chance[order[:num_kept]]
    if num_kept < len(order):
        kept = kept[kept < chance[order[num_kept]]]
    return float(kept[-1]) if len(kept) else 0.0
