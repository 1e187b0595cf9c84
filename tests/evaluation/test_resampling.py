from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.interval_coverage import seconds_coverage
from reason_spec.evaluation.resampling import (
    bootstrap,
    percentile_interval,
    resampled_counts,
    stratum_of_each,
    weighted_means,
    weighted_medians,
)
from reason_spec.evaluation.statistics import t_quantile


def test_a_resample_has_as_many_problems_of_each_task_as_the_sample() -> None:
    strata = stratum_of_each(["a", "b", "a", "b", "b", "c", "c"])
    counts = np.concatenate(list(resampled_counts(strata, 300)))
    assert counts.shape == (300, 7)
    for stratum, size in [(0, 2), (1, 3), (2, 2)]:
        assert (counts[:, strata == stratum].sum(axis=1) == size).all()
    assert counts.std(axis=0).min() > 0, "every problem is drawn a varying number of times"


def test_tasks_of_a_single_problem_do_not_stand_still() -> None:
    assert set(stratum_of_each(["a", "b", "b"])) == {0}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6).map(float)), min_size=1, max_size=30),
    st.integers(0, 1000),
)
def test_weighted_statistics_are_those_of_repeated_values(pairs: list[tuple[int, float]], seed: int) -> None:
    problems = np.array([problem for problem, _ in pairs])
    values = np.array([value for _, value in pairs])
    counts = np.random.default_rng(seed).integers(0, 4, size=(5, 5)).astype(np.int32)
    counts[:, problems[0]] += 1
    for row, median in zip(counts, weighted_medians(counts, values, problems), strict=True):
        assert median == np.median(np.repeat(values, row[problems]))
    amounts = np.arange(5.0)
    counts = next(resampled_counts(np.zeros(5, dtype=np.intp), 3, seed))
    for row, mean in zip(counts, weighted_means(counts, amounts), strict=True):
        assert mean == pytest.approx(np.repeat(amounts, row).mean())


def test_medians_far_from_that_of_the_sample_are_found_too() -> None:
    """All weight lies on one end, where ranks are not looked for at first."""
    values = np.arange(5000.0)
    counts = np.zeros((2, 5000), dtype=np.int32)
    counts[0, :3], counts[1, -4:] = 1, 1
    assert list(weighted_medians(counts, values, np.arange(5000))) == [1.0, 4997.5]


def test_the_bootstrap_agrees_with_scipys() -> None:
    from scipy import stats

    generator = np.random.default_rng(5)
    base = generator.lognormal(1, 0.5, 40)
    own = base * generator.lognormal(-0.5, 0.3, 40)
    strata = np.zeros(40, dtype=np.intp)
    amounts = np.stack([base, own], axis=1)
    ratios = bootstrap(lambda counts: np.divide(*weighted_means(counts, amounts).T), strata, seed=1)
    # Percentiles without the widening are scipy's.
    expected = stats.bootstrap(
        (base, own), lambda x, y, axis: x.mean(axis=axis) / y.mean(axis=axis), paired=True, vectorized=True,
        n_resamples=10_000, method="percentile", rng=np.random.default_rng(2),
    )  # fmt: skip
    low, high = np.quantile(ratios, [0.025, 0.975])
    width = high - low
    assert low == pytest.approx(expected.confidence_interval.low, abs=0.04 * width)
    assert high == pytest.approx(expected.confidence_interval.high, abs=0.04 * width)
    assert ratios.std(ddof=1) == pytest.approx(expected.standard_error, rel=0.04)
    wider = percentile_interval(ratios, 40)
    assert wider.low < low
    assert wider.high > high


def test_the_interval_of_a_bootstrapped_mean_is_about_students() -> None:
    from scipy import stats

    values = np.random.default_rng(3).normal(5, 1, 12)
    means = bootstrap(lambda counts: weighted_means(counts, values), np.zeros(12, dtype=np.intp), 40_000)
    student = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    interval = percentile_interval(means, 12)
    assert interval.high - interval.low == pytest.approx(student[1] - student[0], rel=0.06)


def test_quantiles_are_scipys() -> None:
    from scipy import stats

    assert t_quantile(0.025, 7) == pytest.approx(stats.t.ppf(0.025, 7))


def test_one_problem_has_no_interval() -> None:
    with pytest.raises(ValueError, match="1 problem"):
        percentile_interval(np.ones(10), 1)


@pytest.mark.parametrize(("count", "least"), [(10, 0.90), (30, 0.90), (100, 0.92)])
def test_the_interval_of_a_speed_up_covers_the_truth(count: int, least: float) -> None:
    held = seconds_coverage(count, 250)
    assert held["speed-up"] >= least
    assert held["paired speed-up"] >= least
