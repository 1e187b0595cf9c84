"""Variables that stand at other places of an equation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.variables import other_variables


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("So \\( c + c = 20 \\) (since there are 20 animals).", "The total is C + D = 20."),
        ("So \\( c + c = 20 \\), since there are 20 animals.", "The total is C + D = 20."),
        ("B = Y - 7, Y = 10", "B = B - 7, so Y = 10"),
        ("The rope was shorter: \\( B = B - 7 \\).", "It was 7 shorter: B = Y - 7"),
    ],
)
def test_a_variable_in_place_of_another_leaves_a_step_undecided(a: str, b: str) -> None:
    objection = find_objection(a, b, "")
    assert objection is not None
    assert objection.reason.startswith("variables at other places of _")
    assert not objection.contradicts


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("The total is c + d = 20.", "\\( C + D = 20 \\)"),
        ("The total is c + c = 20.", "So the total is 20."),
        ("We set R = 5.", "Let r = 5, and y is open."),
        ("x = 20 - y", "x = 5"),
        ("x + x + y = 20", "y + x + x = 20"),
        ("c + d = 20", "2C + 4D = 70"),
    ],
)
def test_large_letters_and_other_equations_are_no_difference(a: str, b: str) -> None:
    assert other_variables(a, b) is None


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ("So 5y = 15.", "We get 5x = 15.", "y in one step, x in the other"),
        ("The total is c + d = 20.", "\\( X + Y = 20 \\)", "c in one step, x in the other"),
        ("Then (x - 2)(x + 5) = 0.", "So (x-5)(x-2) = 0.", "other signs beside variables"),
        ("$x^2 - 6x + 9 = 4$", "$x^2 + 6x + 9 = 4$", "other signs beside variables"),
    ],
)
def test_other_letters_and_signs_leave_a_step_undecided(a: str, b: str, reason: str) -> None:
    objection = find_objection(a, b, "")
    assert objection is not None
    assert (objection.reason, objection.contradicts) == (reason, False)


@given(st.lists(st.sampled_from("x y 7 20 + - * / = ( ) , so".split()), max_size=12).map(" ".join))
def test_a_step_does_not_differ_from_itself(text: str) -> None:
    assert other_variables(text, text) is None
