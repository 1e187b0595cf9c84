"""Candidates are what the text states, and each has all features."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.exit.features import FEATURE_NAMES, MOST_CANDIDATES, ExitReader

QUESTION = "Ana has 3 boxes of 4 apples. She eats 2 apples. How many apples are left?"


def feature(candidate_features: Sequence[float], name: str) -> float:
    return candidate_features[FEATURE_NAMES.index(name)]


def test_a_value_is_followed_back_to_the_numbers_of_the_question() -> None:
    reader = ExitReader(QUESTION)
    assert [c.value for c in reader.read("Ana has 3 boxes with 4 apples.\n\n")] == []
    first = {c.value: c.features for c in reader.read("So there are 3 * 4 = 12 apples.\n\n")}
    assert feature(first[Fraction(12)], "coverage") == 2 / 3
    assert feature(first[Fraction(12)], "depth") == 1
    second = {c.value: c.features for c in reader.read("She eats 2, so 12 - 2 = 10 apples are left.\n\n")}
    assert feature(second[Fraction(10)], "coverage") == 1
    assert feature(second[Fraction(10)], "depth") == 2
    assert feature(second[Fraction(12)], "larger_children") == 1
    assert feature(second[Fraction(10)], "is_last_conclusion") == 1


def test_results_that_nothing_uses_yet_are_counted() -> None:
    reader = ExitReader(
        "Ana buys 3 boxes of 14 figs and 5 boxes of 17 pears. How many fruits are there in total?"
    )
    reader.read("The figs: 3 * 14 = 42.\n\n")
    pears = next(c for c in reader.read("The pears: 5 * 17 = 85. So 85 pears.\n\n") if c.value == 85)
    assert feature(pears.features, "unused_others") == 1
    total = next(c for c in reader.read("So 42 + 85 = 127 fruits.\n\n") if c.value == 127)
    assert feature(total.features, "unused_others") == 0
    assert feature(total.features, "coverage") == 1


def test_agreement_and_checks_are_counted() -> None:
    reader = ExitReader(QUESTION)
    reader.read("3 * 4 = 12, and 12 - 2 = 10.\n\n")
    reader.read("Wait, let me check: 3 * 4 = 12, minus 2 is 10. Correct.\n\n")
    best = next(c for c in reader.read("So the answer is 10.\n\n") if c.value == 10)
    assert feature(best.features, "mentions") == 3
    assert feature(best.features, "after_check") == 2
    assert feature(best.features, "answered") == 1
    assert feature(best.features, "affirmed") == 0


def test_repeated_text_is_redundant() -> None:
    reader, step = ExitReader(QUESTION), "So we see that 3 times 4 is 12 = 12 apples.\n\n"
    assert feature(reader.read(step)[0].features, "redundancy") == 0
    assert feature(reader.read(step)[0].features, "redundancy") == 1


@given(st.lists(st.text("0123456789 =+.,?$\\boxed{}-waitso\n", max_size=60), max_size=6))
def test_every_text_gives_whole_rows(steps: list[str]) -> None:
    reader = ExitReader(QUESTION)
    for step in steps:
        found = reader.read(step)
        assert len(found) <= MOST_CANDIDATES
        assert len({candidate.value for candidate in found}) == len(found)
        assert all(len(candidate.features) == len(FEATURE_NAMES) for candidate in found)
