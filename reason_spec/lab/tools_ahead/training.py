"""Trains the model of the next call, and chooses the threshold for a precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import reason_spec
from reason_spec.errors import DataError
from reason_spec.lab.exit.training import fit_boosting
from reason_spec.lab.tools_ahead.moments import Moment, Recorded, Scores, held_out_moments
from reason_spec.lab.tools_ahead.replay import Clock, replay_all
from reason_spec.tools_ahead.features import FEATURE_NAMES
from reason_spec.tools_ahead.model import CallModel
from reason_spec.tools_ahead.predictor import IsReadOnly

FOLDS: Final = 8
"""Of tasks; the calls of each are predicted from the others. Models are fitted to half as many parts."""
MIN_RIGHT: Final = 20
"""Right candidates that a model needs."""
_KEPT_WRONG: Final = 0.25
"""Of the wrong candidates, which are 99 in 100, so many are fitted, with their weight."""
_FIT: Final = {
    "max_iter": 120,
    "learning_rate": 0.06,
    "max_leaf_nodes": 10,
    "min_samples_leaf": 25,
    "l2_regularization": 3.0,
    "max_features": 0.4,
}
_THRESHOLDS: Final = np.arange(0.2, 0.99, 0.01)


def fit(moments: Sequence[Sequence[Moment]], seed: int = 0) -> CallModel:
    """Fit a model to the moments of conversations.

    Raises:
        DataError: too few candidates are right.
    """
    rows = np.array([row for one in moments for moment in one for row in moment.rows], np.float32)
    right = np.array([mark for one in moments for moment in one for mark in moment.is_right], bool)
    if right.sum() < MIN_RIGHT:
        raise DataError(
            f"only {int(right.sum())} calls of the conversations could be predicted; {MIN_RIGHT} are needed "
            "to train on. Give more conversations, or name more tools with --read-only"
        )
    kept = right | (np.random.default_rng(seed).random(len(right)) < _KEPT_WRONG)
    weights = np.where(right, 1.0, 1 / _KEPT_WRONG)[kept]
    boosting = fit_boosting(rows[kept], right[kept], weights, _FIT, seed)
    return CallModel(features=tuple(FEATURE_NAMES), model=boosting, threshold=1.0)


def scores_of(model: CallModel, moments: Sequence[Moment]) -> list[Scores]:
    """Return the moments of one conversation with the model's chances."""
    chances = iter(model.chances([row for moment in moments for row in moment.rows]))
    return [Scores(moment, [next(chances) for _ in moment.keys]) for moment in moments]


def held_out_scores(moments: Sequence[Sequence[Moment]], folds: NDArray[np.int64]) -> list[list[Scores]]:
    """Return the scores of each conversation by a model that was fitted to the other folds."""
    found: list[list[Scores]] = [[] for _ in moments]
    for fold in np.unique(folds):
        model = fit([one for one, mine in zip(moments, folds, strict=True) if mine != fold])
        for number in np.flatnonzero(folds == fold).tolist():
            found[number] = scores_of(model, moments[number])
    return found


def threshold_for(
    precision: float,
    pool: Sequence[Recorded],
    scores: Sequence[Sequence[Scores]],
    clock: Clock,
    is_read_only: IsReadOnly,
) -> float:
    """Return the lowest threshold with the precision; 1.0 where none has it."""
    for threshold in _THRESHOLDS.tolist():
        total = replay_all(zip(pool, scores, strict=True), threshold, clock, is_read_only)
        if total.precision is not None and total.precision >= precision:
            return float(threshold)
    return 1.0


def train(
    pool: Sequence[Recorded],
    is_read_only: IsReadOnly,
    clock: Clock,
    *,
    precision: float,
    with_trials: bool,
    about: dict[str, Any] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> CallModel:
    """Train a model on a pool, with every conversation seen by the knowledge of other tasks.

    Args:
        precision: the threshold is chosen for it, on conversations that were held out.
        with_trials: in use, other trials of a task may be known. Half of the training then knows one for
            each conversation, and the threshold is chosen there. They are invented (see `invented_trial`),
            since most pools have one trial a task.
    """
    import sklearn

    tasks = {task: number for number, task in enumerate(sorted({one.task for one in pool}))}
    moments = held_out_moments(
        pool, lambda one: tasks[one.task] % FOLDS, is_read_only, advance, twins=with_trials
    )
    folds = np.array([tasks[one.task] % FOLDS for one in pool], np.int64)
    folds = np.tile(folds, 2 if with_trials else 1)
    scores = held_out_scores(moments, folds // 2)[-len(pool) :]
    threshold = threshold_for(precision, pool, scores, clock, is_read_only)
    versions = {"reason-spec": reason_spec.__version__, "scikit-learn": sklearn.__version__}
    trained = {**(about or {}), "conversations": len(pool), "tasks": len(tasks), "versions": versions}
    return fit(moments).model_copy(update={"threshold": threshold, "trained": trained})
