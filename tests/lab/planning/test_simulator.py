"""The simulator against the formulas where those hold, and what it shows where they do not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.control.costs import PassCost
from reason_spec.control.formulas import (
    asynchronous_speedup,
    judged_ahead_speedup,
    judged_speedup,
    token_speedup,
    windowed_speedup,
)
from reason_spec.lab.planning.simulator import Mode, Scheme, simulate
from reason_spec.lab.planning.workload import Workload, expected_split

WITHIN = 0.02
rates = st.floats(0.0, 0.7)
draft_costs = st.floats(0.05, 0.9)
verdicts = st.sampled_from([0.0, 0.05, 0.3])
# The same examples each time: a sample of this size is now and then farther off than 2 %.
quickly = settings(max_examples=6, deadline=None, derandomize=True)


def speedup(workload: Workload, scheme: Scheme, num_steps: int | None = None) -> float:
    # As many runs of drafts that stand, however long those are.
    num_steps = num_steps or int(1500 / max(0.1, 1 - workload.alpha_step))
    return simulate(workload, scheme, num_steps=num_steps)


@quickly
@given(rates, draft_costs, st.integers(2, 6), verdicts)
def test_the_asynchronous_formula_is_what_is_simulated(
    alpha: float, cost: float, parallel: int, verdict: float
) -> None:
    workload = Workload(alpha, cost, verification=verdict)
    simulated = speedup(workload, Scheme(parallel, parallel))
    assert simulated == pytest.approx(asynchronous_speedup(alpha, parallel, cost, verdict), rel=WITHIN)


@quickly
@given(rates, draft_costs, st.integers(1, 5), st.sampled_from([0.0, 0.02, 0.1]))
def test_the_formula_of_a_waiting_draft_is_what_is_simulated(
    alpha: float, cost: float, depth: int, verdict: float
) -> None:
    simulated = speedup(Workload(alpha, cost, verification=verdict), Scheme(depth))
    assert simulated == pytest.approx(windowed_speedup(alpha, depth, cost, verdict), rel=WITHIN)


@quickly
@given(st.floats(0.0, 0.7), st.floats(0.05, 0.9), st.sampled_from([0.0, 0.3]))
def test_one_step_ahead_waits_for_every_second_verdict_alone(
    alpha: float, cost: float, verdict: float
) -> None:
    simulated = speedup(Workload(alpha, cost, verification=verdict), Scheme(1))
    assert simulated == pytest.approx(windowed_speedup(alpha, 1, cost, verdict), rel=WITHIN)


@quickly
@given(rates, draft_costs, verdicts)
def test_the_formulas_of_judging_are_what_is_simulated(alpha: float, cost: float, verdict: float) -> None:
    workload = Workload(alpha, cost, verification=verdict)
    one_by_one = speedup(workload, Scheme(1, mode="judged"))
    assert one_by_one == pytest.approx(judged_speedup(alpha, cost, verdict), rel=WITHIN)
    ahead = speedup(workload, Scheme(20, mode="judged"))
    assert ahead == pytest.approx(judged_ahead_speedup(alpha, cost, verdict), rel=WITHIN)


@quickly
@given(st.floats(0.0, 0.95), st.integers(1, 12), st.floats(0.0, 0.3))
def test_the_formula_of_the_token_level_is_what_is_simulated(
    alpha: float, num_drafts: int, cost: float
) -> None:
    # In long steps it does not show that the last pass of a step may bring more than is left of it.
    workload = Workload(0.0, 0.1, alpha, cost, step_tokens=1000)
    simulated = speedup(workload, Scheme(0, num_drafts=num_drafts), 2000)
    assert simulated == pytest.approx(token_speedup(alpha, num_drafts, cost), rel=WITHIN)


@quickly
@given(rates, st.floats(0.02, 0.3), st.floats(0.1, 0.8), st.integers(2, 6), st.integers(1, 6))
def test_both_levels_multiply_with_the_draft_over_the_shorter_step(
    alpha: float, cost: float, alpha_token: float, parallel: int, num_drafts: int
) -> None:
    workload = Workload(alpha, cost, alpha_token, 0.01, step_tokens=1000)
    expected = expected_split(workload, parallel - 1, num_drafts).speedup
    # Steps that differ in their passes wait for each other, which no formula has: a little is lost.
    simulated = speedup(workload, Scheme(parallel, parallel, num_drafts=num_drafts))
    assert expected * (1 - 0.04) <= simulated <= expected * (1 + WITHIN)


def test_known_limits() -> None:
    never, always = Workload(0.0, 0.1, verification=0.25), Workload(1.0, 0.001)
    assert speedup(never, Scheme(4)) == pytest.approx(1 / 1.25, rel=1e-3)
    assert speedup(always, Scheme(5, 5)) == pytest.approx(5.0, rel=0.01)
    assert speedup(Workload(0.6, 0.0), Scheme(12)) == pytest.approx(1 / 0.4, rel=WITHIN)
    assert speedup(Workload(0.6, 0.1), Scheme(0)) == pytest.approx(1.0)
    assert speedup(Workload(0.6, 1.0), Scheme(4)) >= 0.99, "a useless draft must not hold the target up"


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["asynchronous", "judged"]),
    rates, draft_costs, verdicts,
    st.integers(1, 4), st.integers(0, 4), st.sampled_from([0.0, 30.0]),
    st.integers(1, 3), st.sampled_from([None, 5.5]),
)  # fmt: skip
def test_every_scheme_has_a_speedup(
    mode: Mode, alpha: float, cost: float, verdict: float, depth: int, num_drafts: int, std: float,
    requests: int, answer_steps: float | None,
) -> None:  # fmt: skip
    workload = Workload(
        alpha, cost, 0.5, 0.01, verdict, 40.0, std, answer_steps, PassCost(((1, 1.0), (16, 1.6))), requests
    )
    assert 0 < simulate(workload, Scheme(depth, None, num_drafts, mode), num_steps=300) < 100


def test_a_simulation_is_determined_by_its_seed() -> None:
    workload = Workload(0.6, 0.1, step_tokens_std=50)
    first, again, other = (simulate(workload, Scheme(3), num_steps=500, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_what_the_formulas_leave_out_makes_it_slower() -> None:
    ideal = Workload(0.63, 0.1)
    scheme = Scheme(5)
    plain = speedup(ideal, scheme)
    uneven = speedup(Workload(0.63, 0.1, step_tokens_std=80), scheme)
    verified = speedup(Workload(0.63, 0.1, verification=0.1), scheme)
    steep = PassCost(((1, 1.0), (16, 1.6)))
    batched = speedup(Workload(0.63, 0.1, pass_cost=steep), scheme)
    shared = speedup(Workload(0.63, 0.1, pass_cost=steep, requests=8), scheme)
    short = speedup(Workload(0.63, 0.1, answer_steps=4), scheme)
    for lower in (uneven, verified, batched, short):
        assert lower < 0.97 * plain
    assert shared < 0.97 * batched
