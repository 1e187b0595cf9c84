"""Numbers alone: contradictions reject, another notation of the same is accepted, words stay open."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import VerificationContext
from reason_spec.verifiers.numbers import NumbersVerifier


def judge(a: str, b: str, question: str = "") -> Verdict:
    steps = (Step(a, (), "draft", "boundary"), Step(b, (), "target", "boundary"))
    return asyncio.run(NumbersVerifier(60).verify(VerificationContext(question), *steps))


@pytest.mark.parametrize(
    ("a", "b", "decision"),
    [
        ("5 + 3 = 8", "$5+3=8$.", "accept"),
        ("So 5 + 3 = 8", "Therefore, 5 + 3 = 8.", "accept"),
        ("Tom has 1,000 apples.", "Tom has 1000 apples.", "accept"),
        ("5 times 3 equals 15", "5 × 3 = 15", "unknown"),
        ("So 5 + 3 = 8", "Therefore, 8 = 3 + 5", "unknown"),
        ("x = 4", "x = 5", "reject"),
        ("12 + 5 = 17", "12 - 5 = 7", "reject"),
        ("2 + 2 = 4", "2 * 2 = 4", "unknown"),
        ("47 + 8 = 54", "47 + 8 = 55", "reject"),
        ("x < 3", "x > 3", "unknown"),
        ("a + b = 5, and 1 + 1 = 2", "a - b = 5, and 1 + 1 = 2", "unknown"),
        ("2x + 3 = 7, and 1 + 1 = 2", "2y + 3 = 7, and 1 + 1 = 2", "unknown"),
        ("5! = 120", "5 = 120", "unknown"),
        ("5² = 25", "5 = 25", "unknown"),
        ("The ratio is 3:2", "The ratio is 3, 2", "unknown"),
        ("He has 5?", "He has 5.", "unknown"),
        ("So x is 1, -2", "So x is 1 - 2", "unknown"),
        ("So V = v*2", "So v = V*2", "unknown"),
        ("5 X 3 = 15", "5 x 3 = 15.", "accept"),
        ("So a train goes 15 km", "A train goes 15 km.", "accept"),
        ("Ben has 55 books.", "Ana has 55 coins.", "unknown"),
        ("First we add.", "We start by adding.", "unknown"),
        ("42.", "43.", "reject"),
        ("Answer:\n42.", "Answer:\n43.", "reject"),
        ("Answer:\n42. So Ben has that.", "Answer:\n43. So Ben has that.", "reject"),
        ("The total is\n4. So Ben has that.", "The total is\n5. So Ben has that.", "reject"),
        ("12. That is the answer.", "13. That is the answer.", "reject"),
        ("- 3x = 12", "3x = 12", "unknown"),
        ("- 7 = x", "7 = x", "unknown"),
        ("- 5 + 3 = -2", "5 + 3 = -2", "reject"),
        (f"x = {'7' * 31}", f"x = {'7' * 30}8", "unknown"),
        ("1. So Ben has 5.", "2) So Ben has 5.", "accept"),
        ("- 5 degrees", "5 degrees", "unknown"),
        ("- So 5 + 3 = 8", "So 5 + 3 = 8", "accept"),
        ("- 5 + 3 = 8 pens", "5 + 3 = 8 pens", "accept"),
        ("- x + 3 = 5", "x + 3 = 5", "unknown"),
        ("x ** 2 = 9", "x 2 = 9", "unknown"),
        ("**So** 5 + 3 = 8", "So 5 + 3 = 8", "accept"),
        ("Tom is charging 5 dollars", "Tom is charged 5 dollars", "unknown"),
        ("Ben is 12 now", "Ben is 12 then", "unknown"),
        ("Thus Ben is 12", "Now Ben is 12", "accept"),
        ("The pay for the 3rd box is 3", "The pay for the 3 box is 3", "unknown"),
        ("We need double rooms for 40", "We need two rooms for 40", "unknown"),
        ("There are 5 pines", "There are 5 pins", "unknown"),
        ("It uses 5 mW", "It uses 5 MW", "unknown"),
        ("Ben has two Books.", "Ben has 2 books.", "unknown"),
        ("Ben has two pens.", "ben has 2 pen", "accept"),
    ],
)
def test_three_outcomes(a: str, b: str, decision: str) -> None:
    assert judge(a, b).decision == decision
    assert judge(b, a).decision == decision


def test_a_known_value_may_be_restated_by_one_step_only() -> None:
    question = "Ana has 47 books and Ben has 8 more."
    assert "words are open" in judge("From 47, Ben has 55.", "So Ben has 55.", question).reason
    assert "48 in one step only" in judge("From 48, Ben has 55.", "So Ben has 55.", question).reason


WHOLE = st.integers(min_value=2, max_value=99_999)
TEMPLATES = (
    "Ben has {x} + {y} = {z} books.",
    "We compute \\({x} + {y} = {z}\\).",
    "{x} plus {y} equals {z}, so Ben has {z}.",
    "Adding {y} to {x} gives {z}.",
)


@given(WHOLE, WHOLE, st.integers(1, 500), st.sampled_from(TEMPLATES), st.sampled_from(TEMPLATES))
def test_a_changed_result_is_never_accepted_nor_left_to_the_words(
    x: int, y: int, change: int, draft: str, target: str
) -> None:
    verdict = judge(draft.format(x=x, y=y, z=x + y + change), target.format(x=x, y=y, z=x + y))
    assert verdict.decision != "accept"
    assert "words are open" not in verdict.reason


@given(WHOLE, WHOLE, st.sampled_from(TEMPLATES))
def test_the_formatting_of_a_number_does_not_matter(x: int, y: int, template: str) -> None:
    plain = template.format(x=x, y=y, z=x + y)
    for form in ("{:,}", "{:.2f}", "{}.0"):
        formatted = template.format(x=form.format(x), y=form.format(y), z=form.format(x + y))
        assert judge(formatted, plain).decision in ("accept", "unknown"), formatted
        assert judge(formatted, plain).score != 0, formatted


@given(WHOLE, WHOLE, st.integers(0, 3), st.sampled_from(TEMPLATES), st.sampled_from(TEMPLATES))
def test_comparing_is_symmetric(x: int, y: int, change: int, draft: str, target: str) -> None:
    a = draft.format(x=x, y=y, z=x + y)
    b = target.format(x=x, y=y + change // 2, z=x + y + change)
    forth, back = judge(a, b), judge(b, a)
    assert (forth.decision, forth.score) == (back.decision, back.score)
