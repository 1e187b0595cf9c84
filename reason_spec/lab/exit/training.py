"""Trains an exit policy: which stated value is the one that the answer ends with, and from when on.

A candidate's label is whether it equals the final answer of its own response, right or wrong: stopping there
then changes nothing. Reference answers are used to choose the threshold, and to report, only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

import reason_spec
from reason_spec.errors import DataError
from reason_spec.exit.features import FEATURE_NAMES, ExitReader
from reason_spec.exit.policy import (
    ASKED_COLUMNS,
    MODEL_FEATURES,
    NEARLY_SURE,
    READING_FEATURES,
    ExitPolicy,
    Floats,
    Rows,
    SmallReader,
    Trees,
    question_key,
    with_asked,
    with_first,
)
from reason_spec.exit.reading import Value
from reason_spec.exit.values import VALUE_FEATURES
from reason_spec.lab.exit.states import StatementTable
from reason_spec.lab.exit.traces import ReadTrace
from reason_spec.routers.learned import Boosting, Tree
from reason_spec.tasks.base import Task, get_task
from reason_spec.tasks.numerals import parse_number
from reason_spec.types import Problem

FOLDS: Final = 5
MIN_ANSWERS: Final = 50
_ASKED_FIT: Final = {"max_iter": 150, "learning_rate": 0.08, "max_leaf_nodes": 12, "min_samples_leaf": 30}
_MODEL_FIT: Final = {
    "max_iter": 100,
    "learning_rate": 0.1,
    "max_leaf_nodes": 10,
    "min_samples_leaf": 100,
    "l2_regularization": 2.0,
    "max_features": 0.3,
}
_SECOND_FIT: Final = {
    "max_iter": 150,
    "learning_rate": 0.05,
    "max_leaf_nodes": 10,
    "min_samples_leaf": 60,
    "l2_regularization": 2.0,
    "max_features": 0.3,
}
_SECOND_PARTS: Final = 3
"""Parts of the problems: the first model rates each after a fit to the others, as it rates what is new."""
_SECOND_WRONG: Final = 60
"""Rows on which the first model is wrongly sure, below which there is no second one."""
_BINS: Final = 64
_RATED_ROWS: Final = 10_000
"""Rows that trees rate at once: each takes a place for each tree."""
_SINCE_FIRST: Final = VALUE_FEATURES.index("since_first")
_CALCULATOR: Final = re.compile(r"<<[^<>]*>>")

_SETTLED_STEPS: Final = 6
_KEPT_SETTLED: Final = 3
"""Of the steps more than `_SETTLED_STEPS` after the first statement of the final answer, one in three is
fitted, with three times the weight: they are half of all, and nearly alike."""

Advance: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class LabelledCandidates:
    """All candidates of all steps of the answers, one row each: ``[rows, ...]``.

    ``sizes`` are the numbers of candidates of each step that has any, in the order of the rows.
    """

    x: NDArray[np.float32]
    final: NDArray[np.bool_]
    answer: NDArray[np.int64]
    weight: Floats
    """0 for rows that are not fitted."""
    sizes: tuple[int, ...]
    problem: NDArray[np.int64]
    """Of each answer."""
    group: NDArray[np.int64]
    """Of each answer."""
    questions: tuple[str, ...]
    """The `question_key` of each question."""

    @classmethod
    def of(cls, reads: Sequence[ReadTrace], task: str | Task = "auto") -> LabelledCandidates:
        """Label the candidates of answers.

        Raises:
            DataError: there are too few answers with a final answer that is stated before its end.
        """
        rows, final, answers, weights, sizes = [], [], [], [], []
        for number, (read, end) in enumerate(zip(reads, final_values(reads, task), strict=True)):
            settled = None
            for step, candidates in enumerate(read.candidates):
                if settled is None and any(candidate.value == end for candidate in candidates):
                    settled = step + _SETTLED_STEPS
                is_late = settled is not None and step > settled
                weight = 0.0 if is_late and step % _KEPT_SETTLED else _KEPT_SETTLED**is_late
                rows += [candidate.features for candidate in candidates]
                final += [candidate.value == end for candidate in candidates]
                answers += [number] * len(candidates)
                weights += [weight] * len(candidates)
                if candidates:
                    sizes.append(len(candidates))
        num_stated = len({number for number, is_final in zip(answers, final, strict=True) if is_final})
        num_problems = len({read.trace.problem for read in reads})
        if num_stated < MIN_ANSWERS or num_problems < FOLDS or all(final):
            raise DataError(
                f"{len(reads)} answers to {num_problems} questions, {num_stated} of which state their final "
                f"answer in a step: at least {MIN_ANSWERS} such answers to {FOLDS} questions are needed"
            )
        return cls(
            np.array(rows, np.float32),
            np.array(final, bool),
            np.array(answers, np.int64),
            np.array(weights, float),
            tuple(sizes),
            _numbered([read.trace.problem for read in reads]),
            _numbered([read.trace.group or "" for read in reads]),
            tuple(sorted({question_key(read.trace.question) for read in reads})),
        )


def _numbered(names: Sequence[str]) -> NDArray[np.int64]:
    return np.asarray(np.unique(names, return_inverse=True)[1], np.int64)


def final_values(reads: Sequence[ReadTrace], task: str | Task = "auto") -> list[Value | None]:
    """Return the final answer of each response, right or wrong."""
    resolved = get_task(task)
    return [final_value(resolved.extract(read.trace.response)) for read in reads]


def final_value(answer: str | None) -> Value | None:
    """Return the value of a final answer, as `reason_spec.exit.reading` has values."""
    if answer is None:
        return None
    number = parse_number(answer)
    return re.sub(r"\s+", "", answer) if number is None else number.value


def train(
    table: LabelledCandidates,
    asked: Boosting,
    *,
    threshold: float,
    about: dict[str, Any],
    learned: Iterable[str] = (),
    statements: StatementTable | None = None,
    seed: int = 0,
) -> ExitPolicy:
    """Fit a policy to a table.

    Args:
        learned: `question_key`s of the questions that ``asked`` was fitted to.
        statements: those of the same answers, if a small model is to read along.
    """
    import sklearn

    everything = np.ones(len(table.problem), bool)
    policy = _fit_policy(table, asked, statements, everything, folds_of(table, seed), seed)
    return policy.model_copy(
        update={
            "threshold": threshold,
            "trained": {
                **about,
                "answers": len(table.problem),
                "problems": len(np.unique(table.problem)),
                "rows": len(table.x),
                "versions": {"reason-spec": reason_spec.__version__, "scikit-learn": sklearn.__version__},
            },
            "questions": tuple(sorted({*table.questions, *learned})),
        }
    )


def folds_of(table: LabelledCandidates, seed: int = 0) -> NDArray[np.int64]:
    """Return the fold of each answer; answers to one question are in the same."""
    order = np.random.default_rng(seed).permutation(int(table.problem.max()) + 1)
    return np.asarray(order[table.problem] % FOLDS, np.int64)


def held_out_policies(
    table: LabelledCandidates,
    asked: Boosting,
    *,
    by_group: bool,
    answers: Sequence[int] | None = None,
    statements: StatementTable | None = None,
    advance: Advance = lambda: None,
    seed: int = 0,
) -> list[ExitPolicy | None]:
    """Return for each answer of the table a policy that has not seen its problem.

    Args:
        by_group: the policy has not seen an answer of its group (model) either.
        answers: those that need a policy; None: all.
        statements: those of the same answers, if a small model is to read along.
    """
    fold = folds_of(table, seed)
    part = table.group if by_group else np.zeros_like(table.group)
    found: list[ExitPolicy | None] = [None] * len(fold)
    policies: dict[tuple[int, int], ExitPolicy] = {}
    for answer in range(len(fold)) if answers is None else answers:
        key = int(fold[answer]), int(part[answer])
        if key not in policies:
            seen = (fold != key[0]) & ((part != key[1]) | (not by_group))
            policies[key] = _fit_policy(table, asked, statements, seen, fold, seed)
            advance()
        found[answer] = policies[key]
    return found


def _fit_policy(
    table: LabelledCandidates,
    asked: Boosting,
    statements: StatementTable | None,
    seen: NDArray[np.bool_],
    fold: NDArray[np.int64],
    seed: int,
) -> ExitPolicy:
    """Fit a policy to the answers ``seen``, with threshold 1.

    What the models read of the small one is its rating by a probe that was fitted to other problems.
    """
    assert table.x.shape[1] == len(FEATURE_NAMES), "rows have the features of this version"
    chosen = np.flatnonzero(seen[table.answer])
    rows, reading = table.x, None
    if statements is not None:
        probe = statements.fit_probe(seen)
        reading = SmallReader(model=statements.model, probe=probe)
        rows = np.column_stack((rows, statements.features(statements.cross_rated(seen, fold), seen)))
    margins = _margins(asked, table.x[:, ASKED_COLUMNS])
    model, second = _fit_models(with_asked(rows, margins, *table.sizes), table, chosen, seed)
    return ExitPolicy(
        features=MODEL_FEATURES if statements is None else READING_FEATURES,
        asked=asked,
        model=model,
        second=second,
        reading=reading,
        threshold=1.0,
    )


def train_asked(problems: Sequence[Problem], advance: Advance = lambda: None, seed: int = 0) -> Boosting:
    """Fit the part that recognises the asked quantity to worked solutions, whose lines are steps.

    Args:
        problems: ``answer`` holds the solution, its last line the answer after ``####``, as in GSM8K.

    Raises:
        DataError: too few solutions state their answer.
    """
    rows, final = [], []
    for problem in problems:
        solution, marked, answer = _CALCULATOR.sub("", problem.answer or "").partition("####")
        end = final_value(answer.strip()) if marked else None
        reader = ExitReader(problem.question)
        for line in filter(str.strip, solution.splitlines()):
            for candidate in reader.read(line + "\n"):
                if candidate.features[_SINCE_FIRST] == 0:
                    rows.append(candidate.features)
                    final.append(candidate.value == end)
        advance()
    if sum(final) < MIN_ANSWERS:
        raise DataError(
            f"{len(problems)} solved problems, {sum(final)} of which state their answer in a line: at least "
            f"{MIN_ANSWERS} are needed, with the answer behind #### as in GSM8K"
        )
    x = np.array(rows, np.float32)[:, ASKED_COLUMNS]
    return fit_boosting(x, np.array(final, bool), None, _ASKED_FIT, seed)


def _fit_models(
    rows: Rows, table: LabelledCandidates, seen: NDArray[np.int64], seed: int
) -> tuple[Boosting, Boosting | None]:
    """Fit the first model to the rows ``seen``, and the second to those where the first is nearly sure."""
    seen = seen[table.weight[seen] > 0]
    # Answers with many steps must not outweigh the others; the root keeps some weight for their variety.
    counts = np.bincount(table.answer, minlength=len(table.problem))
    few, final = rows[seen].astype(np.float32), table.final[seen]
    weights = table.weight[seen] / np.sqrt(counts[table.answer[seen]])

    def fit(x: NDArray[np.float32], chosen: NDArray[np.int64], options: dict[str, Any]) -> Boosting:
        return fit_boosting(x, final[chosen], weights[chosen] / weights[chosen].mean(), options, seed)

    everything = np.arange(len(few))
    part = table.problem[table.answer[seen]] % _SECOND_PARTS
    margins = np.zeros(len(few))
    for left_out in range(_SECOND_PARTS):
        others, own = np.flatnonzero(part != left_out), np.flatnonzero(part == left_out)
        if len(own) and 0 < final[others].sum() < len(others):
            margins[own] = _margins(fit(few[others], others, _MODEL_FIT), few[own])
    near = np.flatnonzero(margins >= np.log(NEARLY_SURE / (1 - NEARLY_SURE)))
    num_wrong = int((~final[near]).sum())
    second = None
    if _SECOND_WRONG <= num_wrong < len(near):
        second = fit(with_first(few[near], margins[near]).astype(np.float32), near, _SECOND_FIT)
    return fit(few, everything, _MODEL_FIT), second


def _margins(boosting: Boosting, x: Rows) -> Floats:
    trees = Trees(boosting)
    starts = range(0, len(x), _RATED_ROWS)
    return np.concatenate([trees.margins(x[start : start + _RATED_ROWS]) for start in starts])


def fit_boosting(
    x: NDArray[np.float32], y: NDArray[np.bool_], weights: Floats | None, options: dict[str, Any], seed: int
) -> Boosting:
    """Fit boosted trees to ``[rows, features]`` and their labels; ``options`` are scikit-learn's."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(**options, max_bins=_BINS, early_stopping=False, random_state=seed)
    model.fit(x, y, sample_weight=weights)
    found = Boosting(
        base=float(model._baseline_prediction[0, 0]),
        rate=1.0,
        trees=tuple(_export_tree(stage[0].nodes) for stage in model._predictors),
    )
    # scikit-learn keeps its trees in private fields: a change of them must not pass unseen.
    few = x[:: max(1, len(x) // 200)]
    assert np.allclose(Trees(found).margins(few.astype(np.float64)), model.decision_function(few), atol=1e-6)
    return found


def _export_tree(nodes: NDArray[Any]) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    return Tree(
        feature=tuple(np.where(leaf, 0, nodes["feature_idx"]).tolist()),
        threshold=tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
        left=tuple(np.where(leaf, -1, nodes["left"].astype(np.int64)).tolist()),
        right=tuple(np.where(leaf, -1, nodes["right"].astype(np.int64)).tolist()),
        value=tuple(np.where(leaf, nodes["value"], 0.0).tolist()),
    )
