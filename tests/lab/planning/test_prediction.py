"""What is predicted of rates, and how a run is explained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reason_spec.control.costs import PassCost
from reason_spec.control.formulas import asynchronous_speedup
from reason_spec.lab.planning.diagnosis import MeasuredRun, diagnose
from reason_spec.lab.planning.prediction import predict
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.workload import Workload

STEPS = 2500
STEEP = PassCost(((1, 1.0), (4, 1.2), (16, 1.6), (64, 4.0)))


@pytest.fixture(autouse=True)
def _short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.lab.planning.prediction.SIMULATED_STEPS", STEPS)
    monkeypatch.setattr("reason_spec.lab.planning.diagnosis.SIMULATED_STEPS", STEPS)


def run_of(workload: Workload, speedup: float, depth: int = 4, num_drafts: int = 0) -> MeasuredRun:
    return MeasuredRun(
        strategy="lookahead",
        mode="asynchronous",
        workload=workload,
        depth=depth,
        num_drafts=num_drafts,
        pass_drafts=float(num_drafts),
        pass_tokens=1.0,
        speedup=speedup,
        has_baseline=True,
        num_answers=10,
    )


def test_a_prediction_has_both_levels_and_the_best_split() -> None:
    found = predict(Workload(0.63, 0.1, 0.6, 0.02), depth=6, num_drafts=3, budget=16)
    assert found.step.formula == pytest.approx(2.285, abs=0.005)
    assert found.rows[4].formula == pytest.approx(2.26, abs=0.005), "k1 = 6"
    assert found.ceiling == pytest.approx(2.70, abs=0.01)
    assert found.token == pytest.approx(2.05, abs=0.01)
    assert found.both.speedup < found.step.formula * found.token
    assert found.both_simulated == pytest.approx(found.both.speedup, rel=0.04)
    assert (found.best.depth, found.best.num_drafts) == (3, 3)
    assert found.best_simulated == pytest.approx(found.best.speedup, rel=0.06)
    assert [row.depth for row in found.rows] == list(range(1, 11))


def test_without_depth_a_prediction_is_that_of_the_token_level() -> None:
    found = predict(Workload(0.6, 0.1, 0.6, 0.02), depth=0, num_drafts=3, budget=4)
    assert found.step.formula == found.step.simulated == 1.0
    assert found.both.speedup == pytest.approx(found.token)


def test_without_a_number_of_drafts_the_best_split_says() -> None:
    found = predict(Workload(0.63, 0.1, 0.6, 0.02), depth=12, num_drafts=None, budget=16)
    assert found.both.num_drafts == found.best.num_drafts == 3
    assert [row.depth for row in found.rows] == [*range(1, 11), 12]


@pytest.mark.parametrize(
    ("term", "changed"),
    [
        ("verification", {"verification": 0.6}),
        ("uneven steps", {"step_tokens_std": 150.0}),
        ("pass time", {"pass_cost": PassCost(((1, 1.0), (4, 2.5), (16, 8.0)))}),
        ("short answers", {"answer_steps": 2.0}),
        ("answers at once", {"pass_cost": PassCost(((1, 1.0), (8, 1.05), (64, 6.0))), "requests": 8}),
    ],
)
def test_the_term_that_slowed_a_run_down_is_blamed(term: str, changed: dict[str, object]) -> None:
    """A run made by the simulator itself with one thing that the formulas leave out."""
    workload = replace(Workload(0.63, 0.1), **changed)  # type: ignore[arg-type]
    made = simulate(workload, Scheme(4), num_steps=STEPS, seed=5)
    found = diagnose(run_of(workload, made))
    assert found.worst is not None
    assert found.worst.name == term
    assert found.unexplained == pytest.approx(0.0, abs=0.1)
    assert found.terms[-1].speedup == pytest.approx(made, rel=0.03)


def test_prompts_are_blamed_where_they_take_long_and_answers_are_short() -> None:
    workload = Workload(0.63, 0.1)
    decoding = simulate(workload, Scheme(4), num_steps=STEPS, seed=5)
    run = replace(run_of(workload, 1.0), prompt_share=1 / 4)
    made = 4 / (1 + 3 / decoding)
    found = diagnose(replace(run, speedup=made))
    assert found.worst is not None
    assert found.worst.name == "prompts"
    assert found.terms[-1].speedup == pytest.approx(made, rel=0.03)


def test_passes_that_take_longer_while_both_models_work_are_a_term_of_their_own() -> None:
    workload = Workload(0.0, 0.1, alpha_token=0.9)
    run = replace(
        run_of(workload, 2.0, depth=0, num_drafts=8),
        mode=None,
        pass_tokens=5.7,
        pass_drafts=8.0,
        pass_cost_at_work=PassCost(((1, 1.0), (9, 3.0))),
    )
    found = diagnose(run)
    assert [term.name for term in found.terms] == ["token drafts", "pass time", "passes at work"]
    before, after = found.terms[-2:]
    assert before.speedup / after.speedup == pytest.approx(3.0, rel=0.05)


def test_shares_add_up_to_the_whole_shortfall() -> None:
    workload = Workload(0.63, 0.1, 0.7, 0.0, 0.05, step_tokens_std=40, pass_cost=STEEP, answer_steps=8)
    run = replace(run_of(workload, 1.2, num_drafts=4), pass_tokens=2.0)
    found = diagnose(run)
    shares = [term.share for term in found.terms]
    assert None not in shares
    assert sum(share or 0.0 for share in shares) + (found.unexplained or 0.0) == pytest.approx(1.0)
    assert found.ideal > found.terms[-1].speedup > run.speedup
    assert found.unexplained is not None
    assert found.unexplained > 0.1


def test_missing_token_drafts_are_told_apart_from_wrong_ones() -> None:
    workload = Workload(0.0, 0.1, alpha_token=0.9)
    run = replace(run_of(workload, 2.5, depth=0, num_drafts=8), mode=None, pass_tokens=2.6, pass_drafts=2.0)
    found = diagnose(run)
    assert [term.name for term in found.terms] == ["token drafts", "pass time"]
    assert found.worst is not None
    assert found.worst.name == "token drafts"
    assert found.terms[-1].speedup == pytest.approx(2.6, rel=0.03)


def test_steps_that_are_judged_first_are_explained_by_their_own_formula() -> None:
    workload = Workload(0.8, 0.1, verification=0.5)
    made = simulate(workload, Scheme(4, mode="judged"), num_steps=STEPS, seed=2)
    found = diagnose(replace(run_of(workload, made), mode="judged"))
    assert found.ideal == pytest.approx(1 / (0.1 + 0.2))
    assert found.worst is not None
    assert found.worst.name in ("verification", "draft limits")
    assert found.unexplained == pytest.approx(0.0, abs=0.1)


def test_a_run_as_fast_as_the_ideal_has_nothing_to_blame() -> None:
    workload = Workload(0.63, 0.1)
    found = diagnose(run_of(workload, asynchronous_speedup(0.63, 5, 0.1)))
    assert found.unexplained is None
    assert found.worst is None
