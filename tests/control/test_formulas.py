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
    synchronous_speedup,
    tokens_per_pass,
)

rates = st.floats(0.0, 1.0)


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


def test_rounds_wait_for_all_their_drafts() -> None:
    stood = np.minimum(np.random.default_rng(3).geometric(1 - 0.63, 400_000) - 1, 3)
    counted = (stood + 1).mean() / (1 + 0.1 * 3)
    assert synchronous_speedup(0.63, 4, 0.1) == pytest.approx(counted, rel=0.01)


@given(rates, st.integers(1, 12), st.floats(0.0, 1.0))
def test_speedups_are_bounded_and_grow_with_the_rate(alpha: float, parallel: int, cost: float) -> None:
    speedup = asynchronous_speedup(alpha, parallel, cost)
    assert 1 / (1 + cost) - 1e-9 <= speedup <= parallel + 1e-9
    assert speedup <= asynchronous_speedup(min(1.0, alpha + 0.05), parallel, cost) + 1e-9
    assert asynchronous_speedup(alpha, 1, cost) == 1.0


@given(st.integers(1, 12), st.floats(0.01, 1.0))
def test_the_draft_keeps_no_more_branches_busy_than_it_can_write(parallel: int, cost: float) -> None:
    assert 1 <= busy_branches(parallel, cost) <= min(parallel, ceil(1 / cost))
