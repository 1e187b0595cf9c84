"""How a pass is best divided between steps and tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.costs import PassCost
from reason_spec.errors import SettingsError
from reason_spec.lab.planning.splits import best_split, expected_split
from reason_spec.lab.planning.workload import Workload

rates = st.floats(0.0, 0.95)
costs = st.floats(0.001, 0.5)


@pytest.mark.parametrize(
    ("budget", "parallel", "tokens", "speedup"),
    [(8, 4, 2, 3.3), (16, 4, 4, 4.3), (32, 6, 5, 4.8), (64, 9, 7, 5.0)],
)
def test_the_product_law_fills_a_budget_from_both_levels(
    budget: int, parallel: int, tokens: int, speedup: float
) -> None:
    """Worked out by hand from equation 5 for acceptance 0.63 and 0.6, costs 0.1 and 0.02."""
    best = best_split(Workload(0.63, 0.1, 0.6, 0.02), budget, law="product")
    assert (best.parallel, best.tokens_per_branch) == (parallel, tokens)
    assert best.speedup == pytest.approx(speedup, abs=0.05)


@given(
    st.floats(0.521, 0.799), st.floats(0.001, 0.333), st.floats(0.521, 0.799), st.floats(0.001, 0.199),
    st.sampled_from([16, 18, 24, 32]),
)  # fmt: skip
def test_where_theorem_4_holds_the_best_split_uses_both_levels(
    alpha_step: float, c_step: float, alpha_token: float, c_token: float, budget: int
) -> None:
    """Rates between 0.52 and 0.8, c_step below 1/3, c_token below 1/5, an even budget from 16 on."""
    best = best_split(
        Workload(alpha_step, c_step, alpha_token, c_token), budget, law="product", max_parallel=budget
    )
    assert best.parallel >= 2
    assert best.tokens_per_branch >= 2


@given(rates, costs, rates, costs, st.integers(1, 24), st.integers(1, 3))
def test_a_best_split_keeps_to_its_budget_and_is_no_slower_than_any_other(
    alpha_step: float, c_step: float, alpha_token: float, c_token: float, budget: int, width: int
) -> None:
    workload = Workload(alpha_step, c_step, alpha_token, c_token)
    best = best_split(workload, budget, max_width=width, max_parallel=6)
    assert best.pass_tokens <= budget
    assert best.speedup >= 1.0
    for parallel in range(1, 7):
        for num_drafts in (0, 1, 3, 7):
            other = expected_split(workload, parallel, 1, num_drafts)
            if other.pass_tokens <= budget:
                assert other.speedup <= best.speedup * (1 + 1e-6)


@given(st.floats(0.1, 0.9), costs, st.floats(0.1, 0.9), st.integers(2, 7), st.integers(1, 7))
def test_the_product_law_is_optimistic_about_a_draft_that_does_not_get_faster(
    alpha_step: float, c_step: float, alpha_token: float, parallel: int, num_drafts: int
) -> None:
    workload = Workload(alpha_step, c_step, alpha_token, 0.0)
    relative = expected_split(workload, parallel, 1, num_drafts)
    assert relative.speedup <= expected_split(workload, parallel, 1, num_drafts, law="product").speedup + 1e-9


def test_passes_that_cost_by_the_token_leave_no_room_for_speculation() -> None:
    by_the_token = PassCost(((1, 1.0), (64, 64.0)))
    best = best_split(Workload(0.6, 0.1, 0.6, 0.02, pass_cost=by_the_token), 64)
    assert (best.parallel, best.tokens_per_branch) == (1, 1)
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


def test_a_budget_without_room_is_refused() -> None:
    with pytest.raises(SettingsError, match="budget is 0"):
        best_split(Workload(0.5, 0.1), 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha_step": 1.5}, "alpha_step is 1.5"),
        ({"alpha_step": float("nan")}, "alpha_step is nan"),
        ({"alpha_token": -0.1}, "alpha_token is -0.1"),
        ({"c_step": 1.2}, "slower than the target is useless"),
        ({"c_token": -1.0}, "c_token is -1"),
        ({"verification": float("inf")}, "verification is inf"),
        ({"step_tokens": 0.0}, "step_tokens is 0"),
        ({"requests": 0}, "requests is 0"),
        ({"answer_steps": 0.5}, "answer_steps is 0.5"),
        ({"identical": 0.9}, "identical steps are accepted"),
    ],
)
def test_impossible_values_are_refused_by_name(values: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Workload(**{"alpha_step": 0.6, "c_step": 0.1, **values})  # type: ignore[arg-type]
