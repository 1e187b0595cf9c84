"""What is predicted of rates, how a run is explained, and how near the published table comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.costs import PassCost
from reason_spec.control.formulas import asynchronous_speedup
from reason_spec.lab.planning.diagnosis import MeasuredRun, diagnose
from reason_spec.lab.planning.prediction import predict
from reason_spec.lab.planning.published import (
    FITTED_ON,
    PAIRS,
    TABLE_1,
    PublishedPair,
    agreement,
    effective_cost,
    reproduce,
)
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.workload import Workload

STEEP = PassCost(((1, 1.0), (4, 1.2), (16, 1.6), (64, 4.0)))


def run_of(workload: Workload, speedup: float, depth: int = 4, num_drafts: int = 0) -> MeasuredRun:
    return MeasuredRun(
        strategy="lookahead",
        mode="asynchronous",
        workload=workload,
        depth=depth,
        width=1,
        num_drafts=num_drafts,
        pass_drafts=float(num_drafts),
        pass_tokens=1.0,
        speedup=speedup,
        has_baseline=True,
        num_answers=10,
    )


def test_a_prediction_has_both_levels_and_the_best_split() -> None:
    found = predict(Workload(0.63, 0.1, 0.6, 0.02), depth=6, num_drafts=3, budget=16, num_steps=2500)
    assert found.step.parallel == 7
    assert found.step.asynchronous == pytest.approx(2.285, abs=0.005)
    assert found.rows[4].asynchronous == pytest.approx(2.26, abs=0.005), "k1 = 6"
    assert found.ceiling == pytest.approx(2.70, abs=0.01)
    assert found.token == pytest.approx(2.05, abs=0.01)
    assert found.both < found.product == pytest.approx(found.step.asynchronous * found.token)
    assert found.simulated == pytest.approx(found.both, rel=0.04)
    assert (found.best.depth, found.best.width, found.best.tokens_per_branch) == (3, 1, 4)
    assert found.best_simulated == pytest.approx(found.best.speedup, rel=0.06)
    assert [row.depth for row in found.rows] == list(range(1, 11))


def test_hints_are_predicted_where_steps_are_written_alike() -> None:
    workload = Workload(0.7, 0.1, identical=0.5)
    found = predict(workload, depth=3, num_drafts=0, budget=16, max_depth=3, num_steps=2000)
    assert found.hinted is not None
    assert found.hinted > found.simulated
    plain = predict(replace(workload, identical=0.0), depth=3, budget=16, max_depth=3, num_steps=500)
    assert plain.hinted is None


def test_without_depth_a_prediction_is_that_of_the_token_level() -> None:
    found = predict(Workload(0.6, 0.1, 0.6, 0.02), depth=0, num_drafts=3, max_depth=1, num_steps=1000)
    assert found.step.asynchronous == found.step.simulated == 1.0
    assert found.both == pytest.approx(found.token)


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
    made = simulate(workload, Scheme(4), num_steps=2500, seed=5).speedup
    found = diagnose(run_of(workload, made), num_steps=2500)
    assert found.worst is not None
    assert found.worst.name == term
    assert found.unexplained == pytest.approx(0.0, abs=0.1)
    assert found.simulated == pytest.approx(made, rel=0.03)


def test_prompts_are_blamed_where_they_take_long_and_answers_are_short() -> None:
    workload = Workload(0.63, 0.1)
    decoding = simulate(workload, Scheme(4), num_steps=2500, seed=5).speedup
    run = replace(run_of(workload, 1.0), prompt_tokens=100.0, answer_tokens=4.0)
    assert run.prompt_share == pytest.approx(1 / 4), "one pass reads, and three more write"
    made = 4 / (1 + 3 / decoding)
    found = diagnose(replace(run, speedup=made), num_steps=2500)
    assert found.worst is not None
    assert found.worst.name == "prompts"
    assert found.simulated == pytest.approx(made, rel=0.03)


def test_answers_at_once_wait_for_each_others_prompts() -> None:
    cost = PassCost(((1, 1.0), (101, 101.0)))
    run = replace(
        run_of(Workload(0.63, 0.1, pass_cost=cost, requests=4), 1.5), prompt_tokens=50.0, answer_tokens=101.0
    )
    # Fifty tokens more in a pass take 50; a hundred passes of four tokens are shared by four answers.
    assert run.prompt_share == pytest.approx(50 / (50 + 100))


def test_passes_that_take_longer_while_both_models_work_are_a_term_of_their_own() -> None:
    workload = Workload(0.0, 0.1, alpha_token=0.9)
    run = replace(
        run_of(workload, 2.0, depth=0, num_drafts=8),
        mode=None,
        pass_tokens=5.7,
        pass_drafts=8.0,
        pass_cost_at_work=PassCost(((1, 1.0), (9, 3.0))),
    )
    found = diagnose(run, num_steps=2000)
    assert [term.name for term in found.terms] == ["token drafts", "pass time", "passes at work"]
    before, after = found.terms[-2:]
    assert before.speedup / after.speedup == pytest.approx(3.0, rel=0.05)


def test_shares_add_up_to_the_whole_shortfall() -> None:
    workload = Workload(0.63, 0.1, 0.7, 0.0, 0.05, step_tokens_std=40, pass_cost=STEEP, answer_steps=8)
    run = replace(run_of(workload, 1.2, num_drafts=4), pass_tokens=2.0)
    found = diagnose(run, num_steps=2000)
    shares = [term.share for term in found.terms]
    assert None not in shares
    assert sum(share or 0.0 for share in shares) + (found.unexplained or 0.0) == pytest.approx(1.0)
    assert found.ideal > found.simulated > found.measured
    assert found.unexplained is not None
    assert found.unexplained > 0.1


def test_missing_token_drafts_are_told_apart_from_wrong_ones() -> None:
    workload = Workload(0.0, 0.1, alpha_token=0.9)
    run = replace(run_of(workload, 2.5, depth=0, num_drafts=8), mode=None, pass_tokens=2.6, pass_drafts=2.0)
    found = diagnose(run, num_steps=2000)
    assert [term.name for term in found.terms] == ["token drafts", "pass time"]
    assert found.worst is not None
    assert found.worst.name == "token drafts"
    assert found.simulated == pytest.approx(2.6, rel=0.03)


def test_steps_that_are_judged_first_are_explained_by_their_own_formula() -> None:
    workload = Workload(0.8, 0.1, verification=0.5)
    made = simulate(workload, Scheme(4, mode="judged"), num_steps=2500, seed=2).speedup
    found = diagnose(replace(run_of(workload, made), mode="judged"), num_steps=2500)
    assert found.ideal == pytest.approx(1 / (0.1 + 0.2))
    assert found.worst is not None
    assert found.worst.name in ("verification", "draft limits")
    assert found.unexplained == pytest.approx(0.0, abs=0.1)


def test_a_run_as_fast_as_the_ideal_has_nothing_to_blame() -> None:
    workload = Workload(0.63, 0.1)
    found = diagnose(run_of(workload, asynchronous_speedup(0.63, 5, 0.1)), num_steps=500)
    assert found.unexplained is None
    assert found.worst is None


# The published table --------------------------------------------------------------------------


@given(st.floats(0.1, 0.9), st.integers(2, 12), st.floats(0.01, 0.99))
def test_an_effective_cost_is_the_one_that_explains_a_speedup(
    alpha: float, parallel: int, cost: float
) -> None:
    found = effective_cost(alpha, parallel, asynchronous_speedup(alpha, parallel, cost))
    assert asynchronous_speedup(alpha, parallel, found) == pytest.approx(
        asynchronous_speedup(alpha, parallel, cost), abs=1e-4
    )


def test_speedups_beyond_any_draft_have_no_cost() -> None:
    assert effective_cost(0.5, 7, 3.0) == 0.0


def test_the_paper_needs_a_draft_several_times_dearer_than_its_size() -> None:
    own = {(item.row.pair, item.row.dataset): item.own_cost for pair in PAIRS for item in reproduce(pair)}
    r1, qwen = (pair.name for pair in PAIRS)
    expected = {(r1, "GSM8K"): 0.34, (r1, "AIME24"): 0.44, (qwen, "GSM8K"): 0.52, (qwen, "AIME24"): 0.75}
    assert {key: own[key] for key in expected} == pytest.approx(expected, abs=0.006)
    for pair in PAIRS:
        assert min(cost for (name, _), cost in own.items() if name == pair.name) > 3 * pair.ideal_cost


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_acceptance_rates_give_the_shape_of_the_table(pair: PublishedPair) -> None:
    found = agreement(pair, rows := reproduce(pair))
    assert len(rows) == 7
    assert found.rank > 0.75
    assert found.fitted_error < 0.15 < 0.3 < found.ideal_error
    (fitted,) = (item for item in rows if item.row.dataset == FITTED_ON)
    assert fitted.fitted == pytest.approx(fitted.row.lookahead, abs=0.01)


def test_both_levels_are_measured_between_the_two_laws() -> None:
    """The product law takes the draft to get faster with the target, the other one that it does not."""
    rows = [item for pair in PAIRS for item in reproduce(pair)]
    assert len(rows) == len(TABLE_1) == 14
    for item in rows:
        assert item.relative - 0.005 <= item.row.both <= item.product
