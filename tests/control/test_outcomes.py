"""Which mode is chosen, and what measured goodput says of predictions."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.constants import LOAD_CONSTANTS
from reason_spec.control.outcomes import ModeCorrections, OutcomeWindow, TargetTrial, choose_mode
from reason_spec.settings import SpeculationMode

MODES: tuple[SpeculationMode, ...] = get_args(SpeculationMode)
goodputs = st.fixed_dictionaries({mode: st.floats(1, 1000) for mode in MODES})


@given(goodputs, st.sampled_from([None, *MODES]), st.booleans())
def test_the_chosen_mode_is_never_clearly_slower_than_the_target_alone(
    expected: dict[SpeculationMode, float], present: SpeculationMode | None, is_held: bool
) -> None:
    chosen = choose_mode(expected, present, margin=0.05, is_held=is_held)
    assert expected[chosen] * 1.05 >= expected["none"]
    if present is None:
        assert expected[chosen] == max(expected.values())
    elif chosen == present and not is_held:
        assert max(expected.values()) <= expected[present] * 1.05


@given(goodputs, st.sampled_from(MODES))
def test_a_mode_that_was_held_gives_way_to_the_target_alone_only(
    expected: dict[SpeculationMode, float], present: SpeculationMode
) -> None:
    assert choose_mode(expected, present, margin=0.05, is_held=True) in (present, "none")


def window(*, num_tokens: int, goodput: float = 100.0, num_live: int = 4) -> OutcomeWindow:
    found = OutcomeWindow(0.0, 0.0)
    found.num_tokens = num_tokens
    found.observe(3.0, goodput, num_live, 1.0, 0.75)
    return found


def test_a_window_without_enough_time_or_tokens_measures_nothing() -> None:
    assert window(num_tokens=300).is_full(LOAD_CONSTANTS)
    assert not window(num_tokens=10).is_full(LOAD_CONSTANTS)
    short = OutcomeWindow(0.0, 0.0, num_tokens=300)
    short.observe(1.0, 100.0, 4, 1.0, 0.75)
    assert not short.is_full(LOAD_CONSTANTS)


def test_time_in_which_prompts_are_read_and_its_tokens_do_not_count() -> None:
    found = window(num_tokens=300)
    found.num_tokens += 50
    assert found.observe(6.0, 100.0, 4, 0.5, 0.75) == 0.0
    assert (found.num_tokens, found.seconds) == (300, 3.0)


def test_a_correction_counts_less_at_other_loads() -> None:
    corrections = ModeCorrections(LOAD_CONSTANTS)
    assert corrections.log_ratio("tokens", 4, 0.0) == 0.0
    corrections.add("tokens", window(num_tokens=100), 0.0)
    here, beside, far = (corrections.log_ratio("tokens", load, 0.0) for load in (4, 8, 64))
    assert here < beside < far < 0.0
    assert corrections.is_known("tokens", 4, 1.0)
    assert not corrections.is_known("tokens", 8, 1.0)
    assert not corrections.is_known("tokens", 4, LOAD_CONSTANTS.known_seconds + 1)


def test_what_draft_tokens_miss_is_expected_to_be_missing_in_other_modes() -> None:
    corrections = ModeCorrections(LOAD_CONSTANTS)
    unmeasured = corrections.log_ratio("steps", 4, 0.0)
    corrections.add("tokens", window(num_tokens=150), 0.0)
    missing = corrections.log_ratio("tokens", 4, 0.0)
    assert missing < 0
    assert corrections.log_ratio("steps", 4, 0.0) == pytest.approx(unmeasured + missing)
    assert corrections.log_ratio("none", 4, 0.0) == max(missing, LOAD_CONSTANTS.least_log_of_none)


def test_a_trial_begins_after_enough_speculation_and_ends_in_time() -> None:
    trial, length = TargetTrial(), LOAD_CONSTANTS.trial_seconds

    def explore(now: float, *, may_begin: bool = True, of_target: float = 80.0) -> bool:
        expected: dict[SpeculationMode, float] = {"none": of_target, "tokens": 100.0}
        return trial.explore(expected, now, may_begin=may_begin, num_live=8, constants=LOAD_CONSTANTS)

    assert not explore(0.0)
    trial.add(LOAD_CONSTANTS.trial_after, "tokens", 8, LOAD_CONSTANTS)
    assert not explore(0.0, may_begin=False)
    assert not explore(0.0, of_target=10.0), "it cannot be the best"
    assert explore(0.0)
    assert explore(length - 0.1, may_begin=False)
    assert not explore(length + 0.1)
