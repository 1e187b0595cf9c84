"""Fading rates and corrections of predictions."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.rates import FadingRate, PredictionCorrection

positive = st.floats(0.01, 100)


@given(st.floats(0, 1), st.lists(st.booleans(), max_size=50))
def test_a_rate_lies_between_the_assumed_one_and_what_was_observed(
    assumed: float, observed: list[bool]
) -> None:
    rate = FadingRate.assumed(assumed, 8.0)
    for one in observed:
        rate.add(one)
    seen = [assumed, *map(float, observed)]
    assert min(seen) - 1e-9 <= rate.value <= max(seen) + 1e-9


def test_later_observations_count_for_more() -> None:
    rising, falling = FadingRate(memory=0.9), FadingRate(memory=0.9)
    for one in range(20):
        rising.add(one >= 10)
        falling.add(one < 10)
    assert rising.value > 0.7 > 0.3 > falling.value
    assert FadingRate().value == 0.0


@given(st.floats(0, 1), st.floats(0.1, 50))
def test_a_rate_without_observations_is_its_prior(prior: float, weight: float) -> None:
    assert FadingRate().beside(prior, weight) == pytest.approx(prior)


@given(positive, positive)
def test_a_correction_moves_from_what_is_assumed_to_what_is_measured(
    measured: float, predicted: float
) -> None:
    correction = PredictionCorrection(prior_weight=2.0, half_life=60.0)
    assert correction.log_ratio(0.0, assumed=-0.5) == -0.5
    for now in range(200):
        correction.add(measured, predicted, 5.0, now)
    ratio = min(max(measured / predicted, 0.01), 100.0)
    assert exp(correction.log_ratio(200.0)) == pytest.approx(ratio, rel=0.05)


def test_a_correction_is_half_forgotten_after_its_half_life() -> None:
    correction = PredictionCorrection(prior_weight=1.0, half_life=10.0)
    correction.add(2.0, 1.0, 1.0, now=0.0)
    assert correction.log_ratio(0.0) == pytest.approx(log(2) / 2)
    assert correction.log_ratio(10.0) == pytest.approx(log(2) * 0.5 / (0.5 + 1.0))
    assert correction.log_ratio(1000.0) == pytest.approx(0.0, abs=1e-9)
