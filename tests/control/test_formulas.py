"""The formulas of speculation against counting what they stand for."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.formulas import (
    asynchronous_speedup,
    busy_branches,
    judged_ahead_speedup,
    judged_speedup,
    step_ceiling,
    token_speedup,
    tokens_per_pass,
    windowed_speedup,
)

rates = st.floats(0.0, 1.0)
PUBLISHED_RATES = (
    {1: 0.63, 2: 0.73, 4: 0.77, 8: 0.83},
    {1: 0.47, 2: 0.58, 4: 0.67, 8: 0.74},
)
"""Acceptance rates by width, on GSM8K and AIME24 (table 3 of Lookahead Reasoning, judge of 7B)."""


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("num_drafts", [0, 1, 7])
def test_tokens_of_a_pass_are_the_accepted_ones_and_one_more(alpha: float, num_drafts: int) -> None:
    right = np.random.default_rng(0).random((200_000, num_drafts)) < alpha
    accepted = np.cumprod(right, axis=1).sum(axis=1)
    assert tokens_per_pass(alpha, num_drafts) == pytest.approx(accepted.mean() + 1, rel=0.01)


@pytest.mark.parametrize(
    ("alpha", "parallel", "cost"), [(0.6, 4, 0.1), (0.63, 6, 0.1), (0.9, 3, 0.2), (0.3, 2, 0.05)]
)
def test_asynchronous_speedup_is_what_a_count_of_runs_gives(alpha: float, parallel: int, cost: float) -> None:
    """X drafts stand in a row; each ``parallel`` of them cost one target step, the last ones a draft each."""
    stood = np.random.default_rng(1).geometric(1 - alpha, 400_000) - 1
    spent = np.ceil((stood + 1) / parallel) + cost * (stood % parallel)
    counted = (stood + 1).mean() / spent.mean()
    assert asynchronous_speedup(alpha, parallel, cost) == pytest.approx(counted, rel=0.01)


def test_a_draft_that_cannot_keep_up_bounds_the_speedup() -> None:
    """Where all steps wait for the draft, X + 1 steps take one target step and X drafts."""
    stood = np.random.default_rng(2).geometric(1 - 0.7, 400_000) - 1
    counted = (stood + 1).mean() / (1 + 0.3 * stood.mean())
    assert asynchronous_speedup(0.7, 10, 0.3) == pytest.approx(counted, rel=0.01)


@given(rates, st.integers(1, 12), st.floats(0.0, 1.0))
def test_speedups_are_bounded_and_grow_with_the_rate(alpha: float, parallel: int, cost: float) -> None:
    speedup = asynchronous_speedup(alpha, parallel, cost)
    assert 1 / (1 + cost) - 1e-9 <= speedup <= parallel + 1e-9
    assert speedup <= asynchronous_speedup(min(1.0, alpha + 0.05), parallel, cost) + 1e-9
    assert asynchronous_speedup(alpha, 1, cost) == 1.0


@given(st.integers(1, 12), st.floats(0.01, 1.0))
def test_the_draft_keeps_no_more_branches_busy_than_it_can_write(parallel: int, cost: float) -> None:
    assert 1 <= busy_branches(parallel, cost) <= min(parallel, ceil(1 / cost))


@pytest.mark.parametrize(
    ("alpha", "values"),
    [
        (0.3, (1.27, 1.36, 1.37, 1.37)),
        (0.47, (1.43, 1.69, 1.73, 1.73)),
        (0.63, (1.59, 2.11, 2.26, 2.31)),
    ],
)
def test_the_asynchronous_form_has_the_values_of_its_theorem(alpha: float, values: tuple[float, ...]) -> None:
    """Worked out by hand from theorem 2 for c = 0.1 and k1 of 2, 4, 6 and 10."""
    found = [asynchronous_speedup(alpha, parallel, 0.1) for parallel in (2, 4, 6, 10)]
    assert found == pytest.approx(values, abs=0.006)


@given(rates, st.integers(1, 30), st.floats(0.0, 1.0))
def test_the_token_formula_is_that_of_section_3_3(alpha: float, k: int, cost: float) -> None:
    if alpha < 1:
        k2 = k + 1
        paper = (1 - alpha**k2) / ((1 - alpha) * (1 - cost + cost * k2))
        assert token_speedup(alpha, k, cost) == pytest.approx(paper)
    assert token_speedup(alpha, 0, cost) == 1.0


@given(st.floats(0.0, 0.95), st.integers(2, 12), st.floats(0.01, 1.0), st.floats(0.0, 1.0))
def test_verdicts_only_make_it_slower(alpha: float, parallel: int, cost: float, verdict: float) -> None:
    without = asynchronous_speedup(alpha, parallel, cost)
    assert asynchronous_speedup(alpha, parallel, cost, verdict) <= without + 1e-9
    assert asynchronous_speedup(0.0, parallel, cost, verdict) == pytest.approx(1 / (1 + verdict))
    assert without <= step_ceiling(alpha) + 1e-9


@given(st.floats(0.0, 0.99), st.integers(1, 12), st.floats(0.0, 1.0), st.floats(0.0, 0.5))
def test_a_draft_that_waits_for_its_window_is_between_two_depths_of_the_theorem(
    alpha: float, depth: int, cost: float, verdict: float
) -> None:
    waiting = windowed_speedup(alpha, depth, cost, verdict)
    if depth > 1 or verdict == 0:
        # At depth 1 every second step has no verdict to wait for.
        assert waiting <= asynchronous_speedup(alpha, depth + 1, cost, verdict) + 1e-9
    if depth * cost <= 1:
        # One step under way is no speculation to the theorem, and pays no verdict.
        shallower = asynchronous_speedup(alpha, depth, cost, verdict) if depth > 1 else 1 / (1 + verdict)
        assert waiting >= shallower * (1 - cost) - 1e-9


@given(rates, st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(1.0, 5.0))
def test_judging_pays_where_acceptance_is_above_its_costs(
    alpha: float, cost: float, verdict: float, rewriting: float
) -> None:
    assert (judged_speedup(alpha, cost, verdict) > 1) == (cost + verdict + (1 - alpha) < 1)
    sequential = judged_speedup(alpha, cost, verdict, rewriting)
    assert sequential <= judged_ahead_speedup(alpha, cost, verdict, rewriting) + 1e-9
    assert sequential >= judged_speedup(alpha, cost, verdict) - 1e-9
