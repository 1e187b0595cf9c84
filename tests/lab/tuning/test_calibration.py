"""The statistics of a calibration: exact bounds, the choice in a fixed order, and what it guarantees."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.statistics import binomial_cdf, clopper_pearson_upper
from reason_spec.lab.tuning.calibration import LossTest, Trial, laxest_safe

counts = st.integers(1, 600).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.floats(0.5, 0.999)
losses = st.floats(0.002, 0.5)
tests = st.builds(LossTest, losses, levels)
THRESHOLDS = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5)


def trials_of(lost: Sequence[int], num_problems: int) -> list[Trial]:
    return [Trial(threshold, num_problems, count) for threshold, count in zip(THRESHOLDS, lost, strict=False)]


# Exactness -----------------------------------------------------------------------------------


@given(counts, st.floats(0, 1))
def test_the_binomial_tail_is_that_of_scipy(case: tuple[int, int], share: float) -> None:
    assert binomial_cdf(*case, share) == pytest.approx(binom.cdf(*case, share), rel=1e-8, abs=1e-12)


@given(counts, levels)
def test_the_upper_bound_is_the_quantile_of_a_beta(case: tuple[int, int], confidence: float) -> None:
    successes, trials = case
    expected = 1.0 if successes == trials else beta.ppf(confidence, successes + 1, trials - successes)
    assert clopper_pearson_upper(successes, trials, confidence) == pytest.approx(expected, rel=1e-7)


@given(st.integers(1, 20), st.floats(0.01, 0.99), levels)
def test_the_upper_bound_covers_every_share_as_often_as_it_says(
    num_trials: int, share: float, confidence: float
) -> None:
    covered = sum(
        binom.pmf(count, num_trials, share)
        for count in range(num_trials + 1)
        if clopper_pearson_upper(count, num_trials, confidence) >= share - 1e-12
    )
    assert covered >= confidence - 1e-9


@given(tests, counts)
def test_a_threshold_passes_where_its_upper_bound_is_within_the_loss(
    test: LossTest, case: tuple[int, int]
) -> None:
    lost, num_problems = case
    trial = Trial(0.9, num_problems, lost)
    assume(abs(test.bound(trial) - test.loss) > 1e-9)
    assert test.passes(trial) is (test.bound(trial) <= test.loss)


# How many problems ---------------------------------------------------------------------------


def test_one_point_at_95_percent_takes_299_problems() -> None:
    assert LossTest(0.01, 0.95).least_problems == 299


@given(tests)
def test_with_one_problem_less_than_the_least_nothing_can_pass(test: LossTest) -> None:
    least = test.least_problems
    assert test.passes(Trial(0.9, least, 0))
    assert least == 1 or not test.passes(Trial(0.9, least - 1, 0))


@given(tests, st.integers(0, 400))
def test_too_few_problems_are_refused_with_their_number_and_a_loss_that_would_do(
    test: LossTest, num_problems: int
) -> None:
    if num_problems >= test.least_problems:
        test.refuse_too_few(num_problems)
        return
    with pytest.raises(
        DataError, match=rf"^{num_problems} problems .* takes {test.least_problems}, "
    ) as refused:
        test.refuse_too_few(num_problems)
    if num_problems:
        offered = float(str(refused.value).split("allow a loss of ")[1].split()[0])
        assert offered >= 100 or LossTest(offered / 100, test.confidence).least_problems <= num_problems


@given(tests, st.integers(0, 20), st.integers(100, 3000))
def test_as_many_problems_as_are_said_to_be_needed_would_have_passed(
    test: LossTest, lost: int, num_problems: int
) -> None:
    needed = test.problems_needed(Trial(0.9, num_problems, lost))
    if needed is None:
        assert lost / num_problems > 0.9 * test.loss
    else:
        share = lost / num_problems
        assert test.passes(Trial(0.9, needed, math.floor(share * needed)))


@pytest.mark.parametrize(("loss", "confidence"), [(0.0, 0.95), (1.0, 0.95), (0.01, 0.0), (0.01, 1.0)])
def test_a_loss_and_a_confidence_lie_between_their_ends(loss: float, confidence: float) -> None:
    with pytest.raises(SettingsError, match="has to lie between"):
        LossTest(loss, confidence)


# The choice ----------------------------------------------------------------------------------


def test_the_last_threshold_before_the_first_failure_is_chosen() -> None:
    test = LossTest(0.1, 0.95)
    assert laxest_safe(trials_of([0, 1, 2, 30, 0], 100), test) == Trial(0.9, 100, 2)
    assert laxest_safe(trials_of([30, 0, 0], 100), test) is None
    assert laxest_safe([], test) is None


@given(tests, st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_nothing_behind_a_failure_is_chosen(test: LossTest, lost: list[int]) -> None:
    trials = trials_of(lost, 300)
    chosen = laxest_safe(trials, test)
    passed = [test.passes(trial) for trial in trials]
    expected = passed.index(False) if False in passed else len(trials)
    assert chosen == (trials[expected - 1] if expected else None)


# The guarantee -------------------------------------------------------------------------------

CURVES = {
    "just above the loss from the start": (0.0501,) * 6,
    "just above it at the end": (0.0, 0.0, 0.001, 0.01, 0.02, 0.0501),
    "slowly rising through it": (0.01, 0.02, 0.03, 0.045, 0.055, 0.07),
    "not monotone": (0.01, 0.06, 0.0, 0.055, 0.0, 0.2),
    "within it": (0.0, 0.001, 0.002, 0.005, 0.01, 0.012),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "independent"])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_over_many_samples_a_threshold_above_the_loss_is_chosen_as_seldom_as_stated(
    name: str, nested: bool, confidence: float
) -> None:
    """Problems are drawn anew each time; a problem lost at one threshold is lost at laxer ones, or apart."""
    curve, test, num_problems, num_draws = np.array(CURVES[name]), LossTest(0.05, confidence), 240, 1000
    rng = np.random.default_rng(7)
    num_violations = num_chosen = 0
    for _ in range(num_draws):
        draws = rng.random((num_problems, 1 if nested else len(curve)))
        trials = trials_of((draws < curve).sum(axis=0).tolist(), num_problems)
        chosen = laxest_safe(trials, test)
        num_chosen += chosen is not None
        num_violations += chosen is not None and curve[THRESHOLDS.index(chosen.threshold)] > test.loss
    assert num_violations <= binom.ppf(1 - 1e-6, num_draws, 1 - confidence)
    if name == "within it":
        assert num_violations == 0
        assert num_chosen > 0.99 * num_draws


RECORDED = json.loads((Path(__file__).parent / "lost_answers.json").read_text())
"""Which of the demonstration pair's problems were lost at which threshold of likelihood under hybrid."""


@pytest.mark.parametrize("loss", [0.01, 0.03, 0.06])
def test_samples_of_recorded_answers_lead_to_too_high_a_loss_as_seldom_as_stated(loss: float) -> None:
    lost = np.zeros((RECORDED["num_problems"], len(THRESHOLDS)), dtype=bool)
    for place, threshold in enumerate(THRESHOLDS):
        lost[RECORDED["lost"][f"{threshold:g}"], place] = True
    shares, test, num_draws = lost.mean(axis=0), LossTest(loss, 0.9), 1500
    assert shares[0] < loss < shares[-1], "there is a right choice and a wrong one"
    rng = np.random.default_rng(11)
    num_violations = num_chosen = 0
    for _ in range(num_draws):
        sample = rng.integers(0, len(lost), 2 * test.least_problems)
        chosen = laxest_safe(trials_of(lost[sample].sum(axis=0).tolist(), len(sample)), test)
        num_chosen += chosen is not None
        num_violations += chosen is not None and shares[THRESHOLDS.index(chosen.threshold)] > loss
    assert num_violations <= binom.ppf(1 - 1e-6, num_draws, 0.1)
    assert num_chosen > 0
