from __future__ import annotations

import pytest
from arms import Arm, Run
from real import speedup_of


def arm(*seconds_a_token: float) -> Arm:
    runs = [Run(seconds=10 * one, num_tokens=10, tokens=(1,) * 10, right=True) for one in seconds_a_token]
    return Arm("row", 0.0, solve=lambda task, index: None, runs=runs)


def test_a_speedup_is_the_median_of_the_ratios_of_single_problems() -> None:
    # Long problems weigh as much as short ones: the sums have a ratio of 1.1.
    speedup = speedup_of(arm(1.0, 1.0, 9.0), rival=arm(2.0, 3.0, 7.0))
    assert speedup.median == pytest.approx(2.0)
    assert (speedup.low, speedup.high) == (None, None), "three problems give no interval"


def test_the_interval_of_a_speedup_consists_of_ratios_of_single_problems() -> None:
    ratios = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
    speedup = speedup_of(arm(*[1.0] * 6), rival=arm(*ratios))
    assert speedup.median == pytest.approx(1.5)
    assert speedup.low == pytest.approx(1.0)
    assert speedup.high == pytest.approx(2.0)
