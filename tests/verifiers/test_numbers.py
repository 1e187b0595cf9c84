"""``numbers`` accepts the same calculations, rejects contradictions, and says unknown in between."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.types import Step
from reason_spec.verifiers.base import VerificationContext
from reason_spec.verifiers.numbers import NumbersVerifier

WHOLE = st.integers(min_value=2, max_value=99_999)
TEMPLATES = (
    "{name} has {x} + {y} = {z} books.",
    "We compute \\({x} + {y} = {z}\\).",
    "{x} plus {y} equals {z}, so {name} has {z}.",
    "\\[ {x} \\text{{ books}} + {y} \\text{{ books}} = {z} \\]",
)


def judge(a: str, b: str, question: str = "") -> str:
    steps = (Step(a, (), "draft", "boundary"), Step(b, (), "target", "boundary"))
    return asyncio.run(NumbersVerifier(60).verify(VerificationContext(question), *steps)).decision


@pytest.mark.parametrize(
    ("a", "b", "decision"),
    [
        ("Ben has 47 + 8 = 55.", "So 47+8=55 books.", "accept"),
        ("Ben has 47 + 8 = 55.", "Ben has 47 + 8 = 56.", "reject"),
        ("Ben has 47 + 8 = 55.", "Ben has 47 - 8 = 39.", "reject"),
        ("Ben has 8 more than Ana's 47.", "Ben has 47 + 8 = 55.", "unknown"),
        ("First we add.", "We add first.", "unknown"),
        ("First we add.", "First we add.", "accept"),
    ],
)
def test_three_outcomes(a: str, b: str, decision: str) -> None:
    assert judge(a, b) == decision
    assert judge(b, a) == decision


def test_a_number_of_the_question_may_be_restated_by_one_step_only() -> None:
    assert judge("Ana has 9 pens, so 47 + 8 = 55.", "So 47 + 8 = 55.", "Ana has 9 pens.") == "unknown"
    assert judge("Ana has 9 pens, so 47 + 8 = 55.", "So 47 + 8 = 55.") == "unknown"


@given(WHOLE, WHOLE, st.sampled_from(TEMPLATES), st.sampled_from(TEMPLATES))
def test_the_notation_of_a_calculation_does_not_matter(x: int, y: int, draft: str, target: str) -> None:
    a, b = (template.format(name="Ben", x=x, y=f"{y:,}", z=x + y) for template in (draft, target))
    assert judge(a, b) == "accept"


@given(WHOLE, WHOLE, st.integers(1, 500), st.sampled_from(TEMPLATES), st.sampled_from(TEMPLATES))
def test_a_changed_result_is_rejected(x: int, y: int, change: int, draft: str, target: str) -> None:
    a = draft.format(name="Ben", x=x, y=y, z=x + y + change)
    b = target.format(name="Ben", x=x, y=y, z=x + y)
    assert judge(a, b) == "reject"
