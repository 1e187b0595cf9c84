"""Workloads, and how a pass is best divided between steps and tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.costs import PassCost
from reason_spec.control.formulas import asynchronous_speedup, token_speedup
from reason_spec.errors import SettingsError
from reason_spec.lab.planning.workload import MAX_DEPTH, Workload, best_split, expected_split, steps_pay_from

rates = st.floats(0.0, 0.95)
costs = st.floats(0.001, 0.5)


def test_a_budget_is_filled_from_both_levels() -> None:
    best = best_split(Workload(0.63, 0.1, 0.6, 0.02), 16)
    assert (best.depth, best.num_drafts) == (3, 3)
    assert best.speedup == pytest.approx(4.0, abs=0.05)


@given(rates, costs, rates, costs, st.integers(1, 24))
def test_a_best_split_keeps_to_its_budget_and_is_no_slower_than_any_other(
    alpha_step: float, c_step: float, alpha_token: float, c_token: float, budget: int
) -> None:
    workload = Workload(alpha_step, c_step, alpha_token, c_token)
    best = best_split(workload, budget)
    assert best.pass_tokens <= budget
    assert best.speedup >= 1.0
    for depth in range(MAX_DEPTH + 1):
        for num_drafts in (0, 1, 3, 7):
            other = expected_split(workload, depth, num_drafts)
            if other.pass_tokens <= budget:
                assert other.speedup <= best.speedup * (1 + 1e-6)


@given(st.floats(0.1, 0.9), costs, st.floats(0.1, 0.9), st.integers(1, 6), st.integers(1, 7))
def test_both_levels_are_slower_than_their_product(
    alpha_step: float, c_step: float, alpha_token: float, depth: int, num_drafts: int
) -> None:
    """The draft does not get faster where the token level speeds up the target."""
    found = expected_split(Workload(alpha_step, c_step, alpha_token), depth, num_drafts)
    product = asynchronous_speedup(alpha_step, depth + 1, c_step) * token_speedup(alpha_token, num_drafts, 0)
    assert found.speedup <= product + 1e-9


def test_passes_that_cost_by_the_token_leave_no_room_for_speculation() -> None:
    by_the_token = PassCost(((1, 1.0), (64, 64.0)))
    best = best_split(Workload(0.6, 0.1, 0.6, 0.02, pass_cost=by_the_token), 64)
    assert (best.depth, best.num_drafts) == (0, 0)
    flat = best_split(Workload(0.6, 0.1, 0.6, 0.02), 64)
    steep = best_split(Workload(0.6, 0.1, 0.6, 0.02, pass_cost=PassCost(((1, 1.0), (16, 1.6)))), 64)
    assert steep.pass_tokens < flat.pass_tokens
    assert 1.0 < steep.speedup < flat.speedup


def test_more_answers_at_once_leave_less_to_gain() -> None:
    cost = PassCost(((1, 1.0), (8, 1.2), (64, 3.0)))
    speedups = [
        best_split(Workload(0.6, 0.1, 0.6, 0.02, pass_cost=cost, requests=requests), 32).speedup
        for requests in (1, 4, 16, 64)
    ]
    assert speedups == sorted(speedups, reverse=True)
    assert speedups[0] > 1.5 * speedups[-1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha_step": 1.5}, "alpha_step is 1.5"),
        ({"alpha_step": float("nan")}, "alpha_step is nan"),
        ({"alpha_token": -0.1}, "alpha_token is -0.1"),
        ({"c_step": 1.2}, "c_step is 1.2"),
        ({"c_token": -1.0}, "c_token is -1"),
        ({"verification": float("inf")}, "verification is inf"),
        ({"step_tokens": 0.0}, "step_tokens is 0"),
        ({"requests": 0}, "requests is 0"),
        ({"answer_steps": 0.5}, "answer_steps is 0.5"),
    ],
)
def test_impossible_values_are_refused_by_name(values: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Workload(**{"alpha_step": 0.6, "c_step": 0.1, **values})  # type: ignore[arg-type]


@given(rates, costs, st.integers(1, 6), st.floats(0.0, 0.2))
def test_steps_pay_from_the_rate_at_which_both_levels_are_as_fast_as_tokens(
    alpha_token: float, cost: float, depth: int, slope: float
) -> None:
    times = PassCost(((1, 1.0), (64, 1.0 + 63 * slope)))
    workload = Workload(0.5, cost, alpha_token, cost, pass_cost=times)
    line = steps_pay_from(workload, depth, 4)

    def fastest(alpha_step: float, depths: range) -> float:
        given = replace(workload, alpha_step=alpha_step)
        return max(expected_split(given, one, drafts).speedup for one in depths for drafts in range(5))

    ahead, flat = range(1, depth + 1), range(1)
    if line is None:
        assert fastest(1.0, ahead) <= fastest(1.0, flat)
    elif line > 0.0:
        assert fastest(line, ahead) == pytest.approx(fastest(line, flat), rel=0.01)
        assert fastest(min(1.0, line + 0.05), ahead) >= fastest(line, flat)


def test_the_dearer_a_pass_of_several_steps_the_more_of_them_have_to_stand() -> None:
    lines = [
        steps_pay_from(Workload(0.5, 0.1, 0.6, 0.1, pass_cost=PassCost(((1, 1.0), (64, 1 + 63 * s)))), 4, 8)
        for s in (0.0, 0.02, 0.05)
    ]
    assert None not in lines
    assert lines == sorted(lines, key=lambda line: line or 0.0)
    assert (
        steps_pay_from(Workload(0.5, 0.5, 0.6, 0.5, pass_cost=PassCost(((1, 1.0), (64, 64.0)))), 4, 8) is None
    )
