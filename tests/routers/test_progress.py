"""What is seen of a step without a model: false arithmetic, strange numbers, sentences passed over."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.routers import progress
from reason_spec.routers.progress import Progress, read_progress
from reason_spec.verifiers.quantities import Quantities, read_quantities

QUESTION = (
    "Ana has 12 shells. Tom has 5 shells more than Ana. Zoe has half as many shells as Ana and Tom together "
    "minus 3. How many shells has Zoe?"
)
FIRST = "Tom has 12 + 5 = 17 shells.\n\n"


@pytest.mark.parametrize(
    ("step", "num_wrong"),
    [
        ("Tom has 12 + 5 = 17 shells.", 0),
        ("Tom has 12 + 5 = 18 shells.", 1),
        ("Tom: 47+8: 7+8=15 carry 1, 4+1=5. Tom has 55.", 0),
        ("Tom: 47+8: 7+8=14 carry 1, 4+1=5. Tom has 54.", 1),
        ("So $\\frac{3}{4} + \\frac{1}{4} = 1$.", 0),
        ("So $\\frac{3}{4} + \\frac{1}{4} = 2$.", 1),
        ("Let us think about Tom first.", 0),
    ],
)
def test_arithmetic_that_does_not_hold_is_counted(step: str, num_wrong: int) -> None:
    assert read_progress(QUESTION, "", step).num_wrong == num_wrong


def test_numbers_are_taken_from_the_question_once() -> None:
    first = read_progress(QUESTION, "", FIRST)
    assert (first.num_taken, first.num_reused, first.num_skipped) == (2, 0, 0)
    again = read_progress(QUESTION, FIRST, "Ana and Tom have 12 + 17 = 29 shells.")
    assert (again.num_taken, again.num_reused, again.num_strange) == (0, 1, 0)
    assert again.uses_last_result


def test_numbers_from_nowhere_and_numbers_passed_over_are_counted() -> None:
    assert read_progress(QUESTION, "", "Tom has 12 + 6 = 18 shells.").num_strange == 1
    skipping = read_progress(QUESTION, "", "Zoe has 12 - 3 = 9 shells.")
    assert (skipping.num_taken, skipping.num_skipped) == (2, 2)
    assert not skipping.uses_last_result


def test_a_part_is_taken_by_dividing() -> None:
    question = "Ana has 12 shells. Tom has a third of them, Zoe has 25% of them and Bo twice as many."
    for step in ("12 / 3 = 4", "12 / 4 = 3", "12 * 2 = 24"):
        found = read_progress(question, "", step)
        assert (found.num_taken, found.num_strange) == (2, 0), step


def test_the_place_is_that_of_the_sentence_with_most_in_common() -> None:
    question = "Ana has 12 red shells. Tom bought 5 books. Zoe sold 3 hats. What is left?"
    step = "Zoe sold 3 of her 3 hats, so 3 - 3 = 0 hats are left."
    places = [read_progress(question, "", text).place for text in ("Ana has 12 red shells.", "Tom: 5 books")]
    assert places == [0, 0.25]
    found = read_progress(question, "Ana has 12 red shells.\n\n", step)
    assert (found.place, found.sentence_jump) == (0.5, 2)


@pytest.mark.parametrize("separator", ["\n", " "])
def test_an_answer_without_blank_lines_is_not_read_anew_at_each_step(
    separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    def counting(text: str) -> Quantities:
        lengths.append(len(text))
        return read_quantities(text)

    monkeypatch.setattr(progress, "read_quantities", counting)
    steps = [f"Line {n} has {n} + {n + 1} = {2 * n + 1} shells.{separator}" for n in range(200)]
    for n, step in enumerate(steps):
        found = read_progress(QUESTION, "".join(steps[:n]), step)
    assert found.uses_last_result is False
    assert max(lengths) <= 1000
    assert sum(lengths) < 30_000 + 10 * len("".join(steps))


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_read(question: str, text_before: str, step: str) -> None:
    found = read_progress(question, text_before, step)
    assert all(math.isfinite(value) for value in astuple(found))
    assert isinstance(found, Progress)
    assert min(found.num_reused, found.num_left) >= 0
    assert 0 <= found.place <= 1
