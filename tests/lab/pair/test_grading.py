"""What counts as a right step."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.lab.pair.grading import is_right_step
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
        # The same number may be written by mistake and change nothing but the words.
        assert not is_right_step(wrong, step) or mistake in ("source", "operand", "operation")


def test_a_step_is_right_by_its_first_calculation_and_its_result() -> None:
    reference = "Adding 8 to those of Ana: 47+8: 7+8=15 carry 1,4+1=5. Ben has 55 cards."
    assert is_right_step("We go 8 above Ana: 47+8: 7+8=15 carry 1,4+1=5. So Ben has 55 cards.", reference)
    for wrong in (
        "Adding 8 to those of Ana: 46+8: 6+8=14 carry 1,4+1=5. Ben has 54 cards.",
        "Adding 9 to those of Ana: 47+9: 7+9=16 carry 1,4+1=5. Ben has 56 cards.",
        "Taking 8 from those of Ana: 47-8=39. Ben has 39 cards.",
        "Adding 8 to those of Ana: 47+8: 7+8=15. Ben has 45 cards.",
        "The answer is 55.",
        "Ana likes cards.",
    ):
        assert not is_right_step(wrong, reference)


def test_steps_without_a_calculation_must_be_equal() -> None:
    assert is_right_step("The answer is 12.", "The answer is 12.")
    assert not is_right_step("The answer is 13.", "The answer is 12.")
    assert not is_right_step("The answer is 12.", "Adding 8 to those of Ana: 4+8=12. Ben has 12 cards.")
