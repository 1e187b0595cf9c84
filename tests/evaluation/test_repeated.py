from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from reason_spec.evaluation.repeated import pass_at_k, sizes_up_to


@pytest.mark.parametrize(("count", "right"), [(1, 0), (1, 1), (5, 0), (5, 2), (5, 5), (8, 3)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(count: int, right: int) -> None:
    samples = [True] * right + [False] * (count - right)
    rates = [pass_at_k(count, right, k) for k in range(1, count + 1)]
    assert rates == pytest.approx(
        [sum(map(any, combinations(samples, k))) / comb(count, k) for k in range(1, count + 1)]
    )
    assert rates == sorted(rates)


def test_pass_at_k_is_unbiased() -> None:
    """Over all outcomes of 8 samples of chance 0.3 its mean is the chance that one of 3 is right."""
    chance = 0.3
    mean = sum(
        comb(8, right) * chance**right * (1 - chance) ** (8 - right) * pass_at_k(8, right, 3)
        for right in range(9)
    )
    assert mean == pytest.approx(1 - (1 - chance) ** 3)


def test_the_k_that_are_shown() -> None:
    assert [list(sizes_up_to(count)) for count in (0, 1, 2, 5, 8)] == [
        [], [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8],
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "right", "k"), [(4, 5, 1), (4, 2, 5), (4, 2, 0), (4, -1, 1)])
def test_impossible_counts_are_refused(count: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(count, right, k)
