from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.evaluation.statistics import (
    Z_ONE_SIDED_95,
    Z_TWO_SIDED_95,
    compare_accuracy,
    mcnemar_exact,
    paired_loss_upper,
    wilson_interval,
)

pairs = st.integers(1, 400).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, n - b), st.just(n)))
)


def test_wilson_agrees_with_the_published_example() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), 857-872, table I, method 3.
    for successes, trials, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
    ]:
        interval = wilson_interval(successes, trials)
        assert interval.low == pytest.approx(low, abs=5e-5)
        assert interval.high == pytest.approx(high, abs=5e-5)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_of_a_wilson_interval_solve_the_score_equation(case: tuple[int, int]) -> None:
    successes, trials = case
    share = successes / trials
    for end in wilson_interval(successes, trials):
        assert 0 <= end <= 1
        deviation = Z_TWO_SIDED_95 * math.sqrt(end * (1 - end) / trials)
        assert abs(share - end) == pytest.approx(deviation, abs=1e-7)


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes in"):
        wilson_interval(successes, trials)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_two_sided_binomial_test_on_discordant_pairs(better: int, worse: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert mcnemar_exact(better, worse) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_known_values() -> None:
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(0, 5) == pytest.approx(0.0625)
    assert mcnemar_exact(2, 10) == pytest.approx(0.03857421875)


def test_without_discordant_pairs_the_bound_is_that_of_a_share_of_zero() -> None:
    z2 = Z_ONE_SIDED_95**2
    assert paired_loss_upper(0, 0, 500) == pytest.approx(z2 / (500 + z2), abs=1e-7)


@pytest.mark.parametrize(
    ("lost", "won", "count"), [(12, 2, 50), (3, 7, 60), (9, 2, 32), (1, 0, 20), (0, 4, 90)]
)
def test_the_bound_solves_the_score_equation_of_the_restricted_likelihood(
    lost: int, won: int, count: int
) -> None:
    """The nuisance share is found here by maximizing the likelihood, not by Tango's closed form."""
    optimize = pytest.importorskip("scipy.optimize")
    bound = paired_loss_upper(lost, won, count)

    def log_likelihood(q: float) -> float:
        parts = [(lost, q + bound), (won, q), (count - lost - won, 1 - 2 * q - bound)]
        return sum(number * math.log(share) for number, share in parts if number)

    limits = (max(0.0, -bound) + 1e-12, (1 - bound) / 2 - 1e-12)
    found = optimize.minimize_scalar(
        lambda q: -log_likelihood(q), bounds=limits, method="bounded", options={"xatol": 1e-12}
    )
    deviation = math.sqrt(count * (2 * found.x + bound * (1 - bound)))
    assert (lost - won - count * bound) / deviation == pytest.approx(-Z_ONE_SIDED_95, abs=1e-4)


@given(pairs)
def test_the_bound_lies_above_the_loss_and_below_one(case: tuple[int, int, int]) -> None:
    lost, won, count = case
    assert (lost - won) / count - 1e-9 <= paired_loss_upper(lost, won, count) <= 1.0


@given(pairs)
def test_more_losses_never_lower_the_bound(case: tuple[int, int, int]) -> None:
    lost, won, count = case
    if lost + won < count:
        assert paired_loss_upper(lost + 1, won, count) >= paired_loss_upper(lost, won, count) - 1e-9


def test_the_bound_covers_the_true_loss_as_often_as_it_says() -> None:
    """Exact coverage over all outcomes of 60 pairs: no less than about 95 % of the probability."""
    count, lose, win = 60, 0.08, 0.05
    covered = 0.0
    for lost in range(count + 1):
        for won in range(count + 1 - lost):
            ways = math.comb(count, lost) * math.comb(count - lost, won)
            probability = ways * lose**lost * win**won * (1 - lose - win) ** (count - lost - won)
            if probability > 1e-9 and paired_loss_upper(lost, won, count) >= lose - win:
                covered += probability
    assert covered == pytest.approx(0.95, abs=0.015)


def test_a_paired_comparison_counts_problems_and_signs() -> None:
    result = compare_accuracy([1, 1, 0, 1, 0], [1, 0, 0, 0, 1])
    assert (result.num_problems, result.num_better, result.num_worse) == (5, 1, 2)
    assert result.loss == pytest.approx(0.2)
    assert result.p_value == 1.0
    assert result.loss_upper > 0.2


def test_means_over_samples_keep_the_problem_as_the_unit() -> None:
    once = compare_accuracy([1, 0, 1], [0, 0, 1])
    often = compare_accuracy([0.75, 0.25, 1.0], [0.25, 0.25, 0.5])
    assert often.num_problems == 3
    assert (often.num_better, often.num_worse) == (0, 2)
    assert often.loss == pytest.approx(1 / 3)
    assert once.loss == pytest.approx(1 / 3)


def test_samples_of_different_problems_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        compare_accuracy([1.0], [1.0, 0.0])
