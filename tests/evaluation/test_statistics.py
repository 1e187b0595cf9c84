from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.evaluation.statistics import (
    Z_ONE_SIDED_95,
    Z_TWO_SIDED_95,
    clopper_pearson_upper,
    exact_interval,
    mcnemar_exact,
    median_interval,
    paired_gain_interval,
    paired_loss_upper,
    smallest_paired_difference,
)

pairs = st.integers(1, 400).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, n - b), st.just(n)))
)


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes in"):
        exact_interval(successes, trials)


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


@pytest.mark.parametrize(("successes", "trials"), [(0, 12), (12, 12), (7, 9), (95, 100), (3, 400)])
def test_intervals_of_shares_are_those_of_statsmodels(successes: int, trials: int) -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    exact = proportion.proportion_confint(successes, trials, method="beta")
    assert tuple(exact_interval(successes, trials)) == pytest.approx(exact, abs=1e-9)
    exact = proportion.proportion_confint(successes, trials, alpha=0.1, method="beta")
    assert clopper_pearson_upper(successes, trials, 0.95) == pytest.approx(exact[1], abs=1e-9)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_that_of_statsmodels(better: int, worse: int) -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    if better + worse:
        expected = tables.mcnemar([[50, better], [worse, 20]], exact=True).pvalue
        assert mcnemar_exact(better, worse) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("count", "least"), [(1, 0.95), (10, 0.95), (30, 0.95), (200, 0.95)])
def test_exact_intervals_cover_every_share(count: int, least: float) -> None:
    """Over all outcomes, for shares of 0.5 to 0.995 in steps of half a point."""
    intervals = [exact_interval(successes, count) for successes in range(count + 1)]
    for share in (number / 200 for number in range(100, 200)):
        covered = sum(
            math.comb(count, successes) * share**successes * (1 - share) ** (count - successes)
            for successes, (low, high) in enumerate(intervals)
            if low <= share <= high
        )
        assert covered >= least, share


def test_effective_trials_may_be_fractions() -> None:
    one, between, two = (exact_interval(0.8 * n, n) for n in (20, 20.5, 21))
    assert one.low < between.low < two.low
    assert one.high > between.high > two.high


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_have_no_exact_interval(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes in"):
        exact_interval(successes, trials)


def test_the_two_sided_interval_of_a_paired_gain_is_wider_than_the_bound_and_mirrored() -> None:
    low, high = paired_gain_interval(12, 2, 50)
    assert low < 0.2 < high
    assert paired_gain_interval(2, 12, 50) == pytest.approx((-high, -low))
    assert paired_loss_upper(2, 12, 50) < -low


@pytest.mark.parametrize(("squares", "count"), [(0.3, 100), (0.3, 250), (0.05, 1319)])
def test_the_smallest_difference_is_seen_with_the_power_it_says(squares: float, count: int) -> None:
    """The normal test on drawn pairs finds it four times in five."""
    import numpy as np

    difference = smallest_paired_difference(squares, count)
    chances = [(squares + difference) / 2, (squares - difference) / 2, 1 - squares]
    better, worse, _ = np.random.default_rng(3).multinomial(count, chances, size=20_000).T
    statistic = (better - worse) / np.sqrt(np.maximum(better + worse, 1))
    assert (abs(statistic) > Z_TWO_SIDED_95).mean() == pytest.approx(0.8, abs=0.025)


def test_pairs_that_all_agree_promise_no_power() -> None:
    assert smallest_paired_difference(0.0, 30) == pytest.approx(0.24, abs=0.01)
    assert smallest_paired_difference(0.0, 3) == 1.0
    assert smallest_paired_difference(0.0, 30, num_samples=4) < smallest_paired_difference(0.0, 30)


@given(st.floats(0, 1), st.integers(4, 3000), st.integers(1, 8))
def test_more_problems_show_smaller_differences(squares: float, count: int, samples: int) -> None:
    difference = smallest_paired_difference(squares, count, samples)
    assert 0 < difference <= 1
    assert smallest_paired_difference(squares, 2 * count, samples) <= difference + 1e-9
    assert smallest_paired_difference(min(1.0, squares + 0.1), count, samples) >= difference - 1e-9


@pytest.mark.parametrize("count", [6, 9, 30])
def test_the_interval_of_a_median_is_that_of_the_sign_test(count: int) -> None:
    from scipy import stats

    found = median_interval(list(range(count)))
    expected = stats.quantile_test(list(range(count)), q=0, p=0.5).confidence_interval(0.95)
    assert found == (expected.low, expected.high)


def test_few_values_do_not_bound_their_median() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
