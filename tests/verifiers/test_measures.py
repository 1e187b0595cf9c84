"""Units and periods that differ between two steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.verifiers.measures import other_measures
from reason_spec.verifiers.objections import find_objection


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("Mary collects **45 g** of milk.", "Mary collects 45 kg of milk.", "45 gram in one step, kilogram"),
        (
            "20 apples cost 20 \\times 45 \\text{ dollars}",
            "20 apples: 20 * 45 cents",
            "45 dollar in one step",
        ),
        ("2 * 60 = 120 m per week", "2 * 60 = 120 km/week", "120 meter in one step, kilometer"),
        ("The daily cost is 147 - 126 = 21.", "So 147 - 126 = 21 more a week.", "by the day in one step"),
    ],
)
def test_other_units_and_periods_leave_a_step_undecided(a: str, b: str, said: str) -> None:
    objection = find_objection(a, b, "")
    assert objection is not None
    assert objection.reason.startswith(said)
    assert not objection.contradicts


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Mary collects 45 kg of milk.", "Mary collects 45 kilograms of milk."),
        ("Mary collects 45 kg of milk.", "So she collects 45."),
        ("He spends $60 in parts.", "He spends 60 dollars in parts."),
        ("Bob drives at 55 mph.", "Bob drives at 55 miles per hour."),
        ("5 days a week are 5 * 7 = 35 hours", "5 * 7 = 35 hours in 5 days"),
        ("The weekly pay is 35.", "The pay is 35."),
    ],
)
def test_units_in_other_words_or_left_out_are_no_difference(a: str, b: str) -> None:
    assert other_measures(a, b) is None
    assert other_measures(b, a) is None


@given(st.text(max_size=80), st.text(max_size=80))
def test_a_step_does_not_differ_from_itself_and_order_is_no_matter(a: str, b: str) -> None:
    assert other_measures(a, a) is None
    assert (other_measures(a, b) is None) == (other_measures(b, a) is None)
