"""What rules see in two steps: numbers, calculations and words of both, or of one alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.verifiers.evidence import Evidence, find_evidence, same_work
from reason_spec.verifiers.quantities import read_quantities

QUESTION = "How many tasks and cycles of 200 hours does Ben owe to Ana?"


def names(a: str, b: str) -> set[str]:
    found = find_evidence(a, b, QUESTION)
    assert found == find_evidence(b, a, QUESTION)
    return {name for name, seen in zip(Evidence._fields, found, strict=True) if seen}


@pytest.mark.parametrize(
    ("a", "b", "seen"),
    [
        ("So 3 packs * 20 = 60 beads.", "Red: \\(3 \\times 20 = 60\\)", {"same_calculations"}),
        ("30 * 5 = 150 tasks", "30 * 5 = 150 cycles", {"same_calculations", "other_words", "replaced_word"}),
        ("30 * 5 = 150 tasks", "30 * 5 = 150 pieces", {"same_calculations"}),
        ("Cost per balloon: 900 * 20", "20 balloons cost $900.", {"other_calculation"}),
        ("Ben owes Ana 5 cycles.", "So 5 tasks are owed.", {"other_words"}),
        ("Elizabeth bought two packs.", "So Elizabeth bought 2 packs.", {"same_terms"}),
        ("Ana has 5 pens.", "Ana has 5 pens, Ben has 6.", {"missing_number"}),
        ("Ana has 5 + 1 = 6 pens.", "Ana has 6 pens.", {"missing_number", "other_calculation"}),
        ("We add them.", "Let's find the sum.", set()),
        ("Pay for the 3rd box: 3", "Pay for the 3 box: 3", set()),
        ("Ben is 12 now.", "Ben is 12 then.", set()),
        ("Pumping 5 liters.", "Pumped 5 liters.", set()),
        ("So x < 3.", "So x > 3.", set()),
        ("5! = 120", "5 = 120", set()),
        ("The ratio is 3:2", "The ratio is 3, 2", set()),
    ],
)
def test_each_is_seen_where_it_is(a: str, b: str, seen: set[str]) -> None:
    assert names(a, b) == seen


def test_without_a_question_all_words_are_compared() -> None:
    assert find_evidence("Sam has 3 pens.", "Sam has 3 caps.", "").replaced_word
    assert not find_evidence("Sam has 3 pens.", "Sam has 3 caps.", QUESTION).replaced_word


@given(st.text(max_size=80))
def test_nothing_speaks_against_a_step_beside_itself(text: str) -> None:
    assert names(text, text) <= {"same_calculations", "same_terms"}


@given(st.integers(2, 999), st.integers(2, 999))
def test_the_same_work_has_the_same_operands_and_result(one: int, other: int) -> None:
    step = read_quantities(f"Then {one} + {other} = {one + other} pens.")
    assert same_work(step, read_quantities(f"He has {one} pens, so \\({one} + {other} = {one + other}\\)."))
    assert not same_work(step, read_quantities(f"Then {one} + {other + 1} = {one + other + 1} pens."))
    assert not same_work(step, read_quantities(f"He has {one + other} pens."))
