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
        ("64 ounces / 16 pounds per can = 4", "64 ounces / 16 ounces = 4 cans", "16 pound in one step"),
        ("6 chairs and 15 tables", "15 chairs, 6 tables", "6 and 15 count each other's things"),
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
        ("5 * 7 days = 35 eggs", "5 * 7 = 35 eggs a week"),
        ("500 * 12 months = 6000", "Annual rent: 500 * 12 = 6000"),
        ("1/2 hour of 60", "1/2 of 60 minutes"),
        ("3 hours * 60 = 180", "3 * 60 = 180 minutes"),
        ("5 * 4 = 20\nHours: 5 * 6 = 30", "5 * 4 = 20 miles, 5 * 6 = 30"),
        ("4 miles per hour * 1/2 hour = 2", "4 * 1/2 = 2 miles"),
        ("5m = 20", "5 cents, 20"),
    ],
)
def test_units_in_other_words_or_left_out_are_no_difference(a: str, b: str) -> None:
    assert other_measures(a, b) is None
    assert other_measures(b, a) is None


@pytest.mark.parametrize(("num_others", "is_found"), [(0, True), (98, True), (99, False)])
def test_exchanged_nouns_are_sought_among_a_bounded_count_of_numbers(num_others: int, is_found: bool) -> None:
    def step(noun: str, first: str, second: str) -> str:
        others = [f"{number} {noun}" for number in range(1, num_others + 1)]
        return ", ".join([*others, f"1000 {first}", f"2000 {second}"])

    found = other_measures(step("pens", "chairs", "tables"), step("hats", "tables", "chairs"))
    assert (found is not None) == is_found


STEPS = st.lists(st.sampled_from("5 20 kg g miles hours daily a week / = , \n".split(" ")), max_size=9).map(
    " ".join
)


@given(STEPS, STEPS)
def test_a_step_does_not_differ_from_itself_and_order_is_no_matter(a: str, b: str) -> None:
    assert other_measures(a, a) is None
    assert (other_measures(a, b) is None) == (other_measures(b, a) is None)
