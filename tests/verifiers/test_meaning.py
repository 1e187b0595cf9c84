"""Entities, order, direction, denials and units tell steps of the same words apart; other wordings stand."""

from __future__ import annotations

import pytest

from reason_spec.verifiers.conflicts import find_conflict
from reason_spec.verifiers.numbers import compare_numbers
from reason_spec.verifiers.wording import read_wording

OTHER_MEANING = (
    (
        "Let u be the number of cows and v the number of hens.",
        "Let u be the number of hens and v the number of cows.",
    ),
    ("Car A is slower than car B.", "Car B is slower than car A."),
    ("The nurse called the doctor at noon.", "The doctor called the nurse at noon."),
    ("First we look up x, then we look up y.", "First we look up y, then we look up x."),
    ("He eats before he swims.", "He swims before he eats."),
    ("The price went up in May and down in June.", "The price went down in May and up in June."),
    ("The tide rises by 2 meters.", "The tide sinks by 2 meters."),
    ("It is not even, so it is odd.", "It is even, so it is not odd."),
    ("The side is 7 square feet.", "The side is 7 cubic feet."),
    ("He owns 9 dollars.", "He owns 9 kites."),
    ("The turn is 30 degrees.", "The turn is 30 radians."),
    ("The ratio of boys to girls is known.", "The ratio of girls to boys is known."),
    ("The sum of scores is wanted.", "The scores of sum is wanted."),
    ("Take the cube root of both sides.", "Take the square root of both sides."),
    ("She bought 4 of the plums.", "She bought 4 of the pears."),
)
SAME_MEANING = (
    ("No more than 6 guests come.", "At most 6 guests come."),
    ("There are 6 guests or more.", "There are at least 6 guests."),
    ("Ida is 5 years older than Max.", "Max is 5 years younger than Ida."),
    ("The vase is not on the floor.", "The vase does not stand on the floor."),
    ("He has 9 dollars.", "He has $9."),
)


@pytest.mark.parametrize(("a", "b"), OTHER_MEANING)
def test_words_that_changed_places_or_poles_are_a_conflict(a: str, b: str) -> None:
    assert find_conflict(read_wording(a, b))
    assert find_conflict(read_wording(b, a))


@pytest.mark.parametrize(("a", "b"), SAME_MEANING)
def test_other_words_for_the_same_are_none(a: str, b: str) -> None:
    assert find_conflict(read_wording(a, b)) is None


def test_a_sign_behind_a_word_is_no_hyphen() -> None:
    a, b = "The slope is $-\\frac{1}{2}$.", "The slope is $\\frac{1}{2}$."
    assert compare_numbers(a, b).decision == "reject"
    assert compare_numbers("It has slope $-3$.", "It has slope $3$.").decision == "reject"


def test_what_a_division_yields_is_a_formula_of_its_own() -> None:
    comparison = compare_numbers(
        "Dividing by $m$ yields $a = F/m$.", "We divide by $m$, so $a = \\frac{F}{m}$."
    )
    assert comparison.decision == "accept" or comparison.only_words_open
