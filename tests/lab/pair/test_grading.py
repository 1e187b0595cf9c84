"""What counts as a right step, and what a wrong one is blamed for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.lab.pair.grading import find_fault, is_right_step, parse_answer
from reason_spec.lab.pair.turns import draw_mistake
from reason_spec.pair.generator import make_problem
from reason_spec.pair.wording import STEPS

seeds = st.integers(0, 10**6)


@given(seeds)
def test_a_step_in_any_words_is_right(seed: int) -> None:
    for step in make_problem("test", seed, 0).plan:
        texts = [replace(step, phrasing=phrasing).text() for phrasing in STEPS[step.kind]]
        assert all(is_right_step(text, texts[0]) for text in texts)


@given(seeds)
def test_every_mistake_makes_a_step_wrong(seed: int) -> None:
    example = make_problem("test", seed, 0)
    rng = Random(seed)
    for index, step in enumerate(example.steps[:-1]):
        mistake, wrong = draw_mistake(example, index, rng)
        fault = find_fault(wrong, step)
        if mistake in ("source", "operand", "operation"):
            # The same number may be written by mistake and change nothing but the words.
            assert fault == mistake or (example.plan[index].kind == "spend" and fault is not None)
        else:
            assert fault == "calculation"


def test_the_first_wrong_part_is_blamed() -> None:
    reference = "Adding 8 to those of Ana: 47+8: 7+8=15 carry 1,4+1=5. Ben has 55 cards."
    assert (
        find_fault("We go 8 above Ana: 47+8: 7+8=15 carry 1,4+1=5. So Ben has 55 cards.", reference) is None
    )
    assert (
        find_fault("Adding 8 to those of Ana: 46+8: 6+8=14 carry 1,4+1=5. Ben has 54 cards.", reference)
        == "source"
    )
    assert (
        find_fault("Adding 9 to those of Ana: 47+9: 7+9=16 carry 1,4+1=5. Ben has 56 cards.", reference)
        == "operand"
    )
    assert find_fault("Taking 8 from those of Ana: 47-8=39. Ben has 39 cards.", reference) == "operation"
    assert find_fault("Adding 8 to those of Ana: 47+8: 7+8=15. Ben has 45 cards.", reference) == "calculation"
    assert find_fault("The answer is 55.", reference) == "other"
    assert find_fault("Ana likes cards.", reference) == "other"


def test_steps_without_a_calculation_must_be_equal() -> None:
    assert is_right_step("The answer is 12.", "The answer is 12.")
    assert not is_right_step("The answer is 13.", "The answer is 12.")
    assert not is_right_step("The answer is 12.", "Adding 8 to those of Ana: 4+8=12. Ben has 12 cards.")


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("Ben has 3 cards.\n\nThe answer is 47.", 47),
        ("The answer is 47.\n\nBen has 3 cards.", None),
        ("The answer is", None),
        ("", None),
    ],
)
def test_only_the_answer_step_at_the_end_gives_an_answer(solution: str, answer: int | None) -> None:
    assert parse_answer(solution) == answer
