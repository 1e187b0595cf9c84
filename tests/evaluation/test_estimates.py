from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interval_coverage import (
    accuracy_coverage,
    difference_coverage,
    draw_shares,
    seconds_coverage,
)

from reason_spec.evaluation.estimates import (
    clustered_standard_error,
    estimate_gain,
    estimate_mean,
    estimate_ratio,
    estimate_share,
)
from reason_spec.evaluation.grouping import stratum_of_each
from reason_spec.evaluation.statistics import exact_interval, paired_gain_interval

shares = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=60)


@pytest.mark.parametrize("likeness", [0, 0.3, 0.7, 1])
@pytest.mark.parametrize("num_problems", [10, 30, 200])
def test_intervals_of_accuracy_cover_the_truth(num_problems: int, likeness: float) -> None:
    for accuracy in (0.5, 0.9, 0.99):
        assert accuracy_coverage(num_problems, 1, accuracy, likeness, runs=1000) >= 0.945
        # One or two problems of 200 that fail now and then do not tell how much others vary.
        least = 0.92 if (num_problems, accuracy, likeness) == (200, 0.99, 0.7) else 0.93
        assert accuracy_coverage(num_problems, 4, accuracy, likeness, runs=1000) >= least


def test_a_normal_interval_would_not_cover_it() -> None:
    """Why there is another one: with 30 problems and an accuracy of 99 % most runs show no error."""
    drawn = draw_shares(np.random.default_rng(7), 1000, 30, 1, 0.99, 0)
    half = 1.96 * drawn.std(axis=1, ddof=1) / 30**0.5
    assert (abs(drawn.mean(axis=1) - 0.99) <= half).mean() < 0.3


def test_the_interval_of_one_sample_is_that_of_a_share() -> None:
    estimate = estimate_share([1.0, 1.0, 0.0, 1.0])
    assert estimate.interval == exact_interval(3, 4)
    assert estimate.value == 0.75


def test_independent_samples_narrow_the_interval_and_equal_ones_do_not() -> None:
    equal = estimate_share([1.0, 0.0] * 20, 160)
    independent = estimate_share([0.5, 0.5, 0.25, 0.75] * 10, 160)
    assert equal.interval == exact_interval(20, 40)
    assert independent.interval is not None
    assert equal.interval.high - equal.interval.low > 1.8 * (
        independent.interval.high - independent.interval.low
    )


@given(shares)
def test_the_interval_of_a_share_holds_it_and_stays_within_bounds(values: list[float]) -> None:
    estimate = estimate_share(values, 4 * len(values))
    assert estimate.interval is not None
    assert 0 <= estimate.interval.low <= estimate.value <= estimate.interval.high <= 1
    assert estimate.interval.high - estimate.interval.low > 0


@given(shares)
def test_right_and_wrong_are_mirrored(values: list[float]) -> None:
    one, other = (
        estimate_share(side, 4 * len(values)).interval for side in (values, [1 - value for value in values])
    )
    assert one is not None
    assert other is not None
    assert (one.low, one.high) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-9)


def test_the_standard_error_is_that_of_a_clustered_regression() -> None:
    api = pytest.importorskip("statsmodels.api")
    generator = np.random.default_rng(2)
    answers = generator.random((25, 4)) < generator.beta(2, 1, (25, 1))
    problems = np.repeat(np.arange(25), 4)
    fit = api.OLS(answers.ravel().astype(float), np.ones(100)).fit(
        cov_type="cluster", cov_kwds={"groups": problems}
    )
    # statsmodels corrects by (G / (G - 1)) ((N - 1) / (N - 1)) with one regressor.
    assert clustered_standard_error(answers.mean(axis=1)) == pytest.approx(float(fit.bse[0]), rel=1e-9)


def test_strata_take_the_differences_between_tasks_out() -> None:
    generator = np.random.default_rng(4)
    easy, hard = generator.normal(10, 1, 30), generator.normal(2, 1, 20)
    values, strata = np.concatenate([easy, hard]), np.repeat([0, 1], [30, 20])
    expected = (30 * easy.var(ddof=1) + 20 * hard.var(ddof=1)) ** 0.5 / 50
    error = clustered_standard_error(values, strata)
    assert error == pytest.approx(expected)
    alone = clustered_standard_error(values)
    assert alone is not None
    assert alone > 3 * expected


def test_the_interval_of_a_mean_is_students() -> None:
    from scipy import stats

    values = np.random.default_rng(1).normal(9, 2, 15)
    estimate = estimate_mean(values)
    assert estimate.interval == pytest.approx(stats.t.interval(0.95, 14, values.mean(), stats.sem(values)))
    assert estimate.standard_error == pytest.approx(stats.sem(values))


def test_an_amount_is_not_below_nothing() -> None:
    interval = estimate_mean([0.0, 0.0, 9.0]).interval
    assert interval is not None
    assert interval.low == 0


def test_one_problem_says_nothing_about_others() -> None:
    mean = estimate_mean([3.0])
    assert (mean.value, mean.interval, mean.standard_error) == (3.0, None, None)
    share = estimate_share([1.0], 8)
    assert share.standard_error is None
    assert share.interval is not None
    assert share.interval.low < 0.1
    assert estimate_gain([0.0]).loss_upper > 0.7


@pytest.mark.parametrize("num_problems", [10, 30, 200])
@pytest.mark.parametrize(("lost", "won"), [(0.0, 0.0), (0.02, 0.02), (0.1, 0.03)])
def test_intervals_of_paired_differences_cover_the_truth(num_problems: int, lost: float, won: float) -> None:
    assert difference_coverage(num_problems, 1, lost, won, runs=300) >= 0.93
    assert difference_coverage(num_problems, 4, lost, won, runs=150) >= 0.92


def test_one_sample_of_each_pair_is_tangos_interval() -> None:
    gain = estimate_gain([1.0] * 3 + [-1.0] * 7 + [0.0] * 50)
    assert gain.estimate.interval == paired_gain_interval(3, 7, 60)
    assert gain.estimate.value == pytest.approx(-4 / 60)


def test_with_many_problems_and_samples_the_interval_is_the_normal_one() -> None:
    generator = np.random.default_rng(6)
    differences = (generator.binomial(8, 0.55, 600) - generator.binomial(8, 0.5, 600)) / 8
    gain = estimate_gain(differences, 8).estimate
    assert gain.interval is not None
    assert gain.standard_error is not None
    assert gain.interval.low == pytest.approx(gain.value - 1.96 * gain.standard_error, abs=0.002)
    assert gain.interval.high == pytest.approx(gain.value + 1.96 * gain.standard_error, abs=0.002)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.5, 1.0]), min_size=1, max_size=40))
def test_exchanged_sides_change_the_sign(differences: list[float]) -> None:
    one = estimate_gain(differences, 2).estimate
    other = estimate_gain([-value for value in differences], 2).estimate
    assert one.value == pytest.approx(-other.value)
    assert one.interval is not None
    assert other.interval is not None
    assert (one.interval.low, one.interval.high) == pytest.approx((-other.interval.high, -other.interval.low))
    assert -1 - 1e-9 <= one.interval.low <= one.value + 1e-9
    assert one.value - 1e-9 <= one.interval.high <= 1 + 1e-9


def test_the_interval_of_a_ratio_agrees_with_scipys_bootstrap() -> None:
    from scipy import stats

    generator = np.random.default_rng(5)
    base = generator.lognormal(1, 0.5, 60)
    own = base * generator.lognormal(-0.5, 0.3, 60)
    estimate = estimate_ratio(base, own)
    expected = stats.bootstrap(
        (base, own), lambda x, y, axis: x.mean(axis=axis) / y.mean(axis=axis), paired=True, vectorized=True,
        n_resamples=10_000, method="percentile", rng=np.random.default_rng(2),
    )  # fmt: skip
    assert estimate.value == pytest.approx(base.mean() / own.mean())
    assert estimate.standard_error == pytest.approx(expected.standard_error, rel=0.05)
    assert estimate.interval is not None
    width = estimate.interval.high - estimate.interval.low
    assert estimate.interval.low == pytest.approx(expected.confidence_interval.low, abs=0.1 * width)
    assert estimate.interval.high == pytest.approx(expected.confidence_interval.high, abs=0.1 * width)


@pytest.mark.parametrize(("count", "least"), [(10, 0.90), (30, 0.92), (100, 0.93)])
def test_the_interval_of_a_speed_up_covers_the_truth(count: int, least: float) -> None:
    held = seconds_coverage(count, 1000)
    assert held["speed-up"] >= least
    assert held["paired speed-up"] >= 0.94


def test_tasks_of_a_single_problem_do_not_stand_still() -> None:
    assert set(stratum_of_each(["a", "b", "b"])) == {0}
    assert list(stratum_of_each(["a", "b", "a", "b"])) == [0, 1, 0, 1]
