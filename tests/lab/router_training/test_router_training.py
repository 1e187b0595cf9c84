"""Routers learn what labels show, are measured on other labels, and say when there are too few."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import DataError
from reason_spec.lab.router_training.advantage import LabelledStep, LabelOptions
from reason_spec.lab.router_training.label_store import About, Labels
from reason_spec.lab.router_training.measuring import measure
from reason_spec.lab.router_training.training import (
    CLASSIFIERS,
    MODEL_KINDS,
    ModelKind,
    StepArrays,
    _threshold_for,
    train,
)
from reason_spec.routers.base import PairIdentity, Router
from reason_spec.routers.features import StepFeatures
from reason_spec.routers.learned import LearnedRouter, RouterModel

ABOUT = About(PairIdentity("t", "d"), LabelOptions(), {})


def made_up(num_problems: int, seed: int, *, signal: float = 1.0) -> Labels:
    """Steps that are wrong as often as the draft doubted them, where ``signal`` is 1."""
    rng = random.Random(seed)
    problems: dict[str, list[LabelledStep]] = {}
    for number in range(num_problems):
        name, steps = f"{seed}-{number}", []
        for index in range(rng.randint(2, 7)):
            doubt = rng.random() ** 3
            wrong = rng.random() < (doubt if rng.random() < signal else 0.25)
            shown = LabelledStep(
                problem=name,
                question="",
                text_before="",
                step_index=index,
                num_prefix_tokens=50 + 20 * index,
                drafted=f"{number} + {index} are some\n\n",
                own="own",
                ends_text=False,
                logprobs=(),
                has_digit=(),
                num_own_tokens=12,
            )
            logprobs = (-0.01, float(np.log(max(1e-9, 1 - doubt))), -0.02)
            shown = replace(shown, logprobs=logprobs, has_digit=(False, True, True), reward=rng.random())
            steps.append(replace(shown, value_drafted=0.0 if wrong else 1.0, value_own=1.0))
        problems[name] = steps
    return Labels(ABOUT, problems)


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_a_router_learns_where_the_target_does_better(kind: ModelKind) -> None:
    router = LearnedRouter(train(made_up(300, 1), kind=kind))
    report = measure(router, made_up(300, 2))
    curve, chance = report.curve("learned"), report.curve("rsd")
    assert curve.auc is not None
    assert curve.auc > 0.8
    assert curve.share_of_oracle > 0.6
    assert abs(chance.share_of_oracle) < 0.2
    assert report.curve("oracle").share_of_oracle == pytest.approx(1)
    assert report.calibration_error < 0.06
    assert report.auc_interval[0] < curve.auc < report.auc_interval[1]


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_what_is_written_scores_as_what_was_trained(kind: ModelKind, tmp_path: Path) -> None:
    labels = made_up(80, 3)
    table = StepArrays.of(labels.steps)
    model = train(labels, kind=kind, seed=5)
    model = RouterModel.model_validate_json(model.to_json())
    expected = CLASSIFIERS[kind](table, 5).margins(table.x)
    own = [model.model.margin(step.features.vector()) for step in labels.steps]
    assert own == pytest.approx(expected.tolist(), abs=1e-9)


def test_where_the_features_tell_nothing_the_router_is_no_better_than_chance() -> None:
    report = measure(LearnedRouter(train(made_up(300, 4, signal=0.0))), made_up(300, 5, signal=0.0))
    assert abs(report.curve("learned").share_of_oracle) < 0.15
    scores = [score for score, _, _ in report.reliability]
    assert max(scores) - min(scores) < 0.3


def test_a_smaller_loss_escalates_more() -> None:
    labels, fresh = made_up(300, 6), made_up(300, 7)
    models = [train(labels, kind="logistic", loss=loss) for loss in (0.0, 1.0, 5.0, 20.0)]
    reports = [measure(LearnedRouter(model), fresh) for model in models]
    assert [model.threshold for model in models] == sorted(model.threshold for model in models)
    for strict, lax in pairwise(reports):
        assert strict.escalated >= lax.escalated
        assert strict.missed <= lax.missed
    assert reports[1].missed < 0.04
    assert reports[3].escalated < 0.9


@given(
    st.lists(st.tuples(st.sampled_from((0.1, 0.2, 0.3, 0.4)), st.floats(-1, 1)), min_size=1, max_size=20),
    st.floats(0, 0.5),
)
def test_the_threshold_is_the_highest_that_holds_the_loss_also_where_steps_share_a_chance(
    steps: list[tuple[float, float]], loss: float
) -> None:
    chance, advantage = np.array(steps).T
    rows = len(steps)
    table = StepArrays(np.zeros((rows, 1)), advantage, np.arange(rows), np.zeros(rows))

    def missed(threshold: float) -> float:
        return float(np.maximum(advantage[chance <= threshold], 0.0).sum() / rows)

    threshold = _threshold_for(chance, table, loss)
    assert missed(threshold) <= loss + 1e-9
    higher = chance[chance > threshold]
    assert not len(higher) or missed(higher.min()) > loss - 1e-9


def test_problems_are_whole_in_a_fold_so_that_repeated_steps_teach_nothing() -> None:
    """Every problem twice under one name: a leak between folds would show as a better figure."""
    labels = made_up(150, 8, signal=0.0)
    doubled = Labels(ABOUT, {name: steps * 2 for name, steps in labels.problems.items()})
    trained = train(doubled, kind="boosting").trained
    assert abs(trained["held_out_auc"]["boosting"] - 0.5) < 0.1


def test_too_few_labels_are_refused_with_their_numbers() -> None:
    few = made_up(8, 9)
    with pytest.raises(DataError, match=r"labelled steps of 8 problems, \d+ of them better"):
        train(few)
    never_better = Labels(
        ABOUT,
        {
            name: [replace(step, value_drafted=1.0) for step in steps]
            for name, steps in made_up(200, 10).problems.items()
        },
    )
    with pytest.raises(DataError, match="0 of them better"):
        train(never_better)


def test_labels_that_do_not_order_steps_of_other_problems_are_refused() -> None:
    with pytest.raises(DataError, match=r"do not show where the target does better: .* is 0\.4\d\d"):
        train(made_up(60, 13, signal=0.0), kind="logistic")


class Same(Router):
    """Finds all steps alike."""

    name = "same"

    def score(self, features: StepFeatures) -> float:
        return 0.5


def test_a_router_that_finds_all_steps_alike_wins_as_chance_does() -> None:
    report = measure(Same(0.5), made_up(100, 11))
    curve = report.curve("same")
    assert curve.share_of_oracle == pytest.approx(0, abs=1e-9)
    assert (curve.auc, report.escalated) == (0.5, 0)
    assert curve.won[-1] == pytest.approx(report.curve("random").won[-1])
