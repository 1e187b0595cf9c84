"""Written arithmetic: true line by line, and complete."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.pair.arithmetic import work_out

_EQUATION = re.compile(r"([\d+\-*/]+)=(\d+)(?:r(\d+))?$")


def check_working(text: str) -> None:
    """Evaluate every equation of a working by itself."""
    for part in re.split(r"[,:]\s*", text):
        match = _EQUATION.match(part)
        if match is None:
            assert re.fullmatch(r"\d+(?:[-+*/]\d+)?", part), part
            continue
        terms, value, rest = match[1], int(match[2]), int(match[3] or 0)
        if "/" in terms:
            dividend, divisor = map(int, terms.split("/"))
            assert (value, rest) == divmod(dividend, divisor), part
        elif "*" in terms:
            left, right = map(int, terms.split("*"))
            assert left * right == value, part
        else:
            assert sum(int(term) for term in re.findall(r"-?\d+", terms)) == value, part


numbers = st.integers(0, 999)


@given(numbers, numbers)
def test_sums_are_true_and_spell_the_result_from_the_ones_up(a: int, b: int) -> None:
    worked = work_out(a, "+", b)
    check_working(worked.text)
    columns = [part.split("=")[-1] for part in re.split(r": ", worked.text)[-1].split(",")]
    digits = [column[-1] for column in columns[:-1]] + [columns[-1]]
    assert int("".join(reversed(digits[:-1])) or "0") >= 0
    assert int(digits[-1] + "".join(reversed(digits[:-1]))) == a + b == worked.value


@given(numbers, numbers)
def test_differences_are_true_and_spell_the_result_from_the_ones_up(a: int, b: int) -> None:
    a, b = max(a, b), min(a, b)
    worked = work_out(a, "-", b)
    check_working(worked.text)
    columns = [part.split("=")[-1] for part in re.split(r": ", worked.text)[-1].split(",")]
    assert int("".join(reversed(columns))) == a - b == worked.value


@given(numbers, st.integers(1, 9))
def test_products_are_true_and_carry_in_the_open(a: int, b: int) -> None:
    worked = work_out(a, "*", b)
    check_working(worked.text)
    assert worked.value == a * b
    assert worked.text.split("=")[-1].startswith(str(a * b)[: len(str(a * b)) - len(str(a)) + 1])


@given(st.integers(1, 999), st.integers(1, 9))
def test_quotients_are_true_and_their_digits_stand_in_order(quotient: int, divisor: int) -> None:
    worked = work_out(quotient * divisor, "/", divisor)
    check_working(worked.text)
    facts = re.split(r": ", worked.text)[-1].split(",")
    digits = [fact.split("=")[-1].split("r")[0] for fact in facts if "=" in fact]
    assert worked.value == quotient
    assert int("".join(digits) or "0") == quotient


def test_a_single_column_needs_no_second_writing() -> None:
    assert work_out(5, "+", 3).text == "5+3=8"
    assert work_out(47, "+", 38).text == "47+38: 7+8=15,4+3+1=8"
    assert work_out(105, "-", 8).text == "105-8: 15-8=7,10-1=9,1-1=0"
    assert work_out(141, "/", 3).text == "141/3: 14/3=4r2,21/3=7"


@pytest.mark.parametrize(
    ("a", "operator", "b"), [(3, "-", 5), (7, "/", 2), (4, "*", 12), (4, "/", 0), (0, "/", 3)]
)
def test_calculations_outside_the_written_form_are_refused(a: int, operator: str, b: int) -> None:
    with pytest.raises(AssertionError):
        work_out(a, operator, b)  # type: ignore[arg-type]


def test_the_checker_itself_refuses_a_wrong_equation() -> None:
    with pytest.raises(AssertionError):
        check_working("47+8: 7+8=16,4+1=5")
    with pytest.raises(AssertionError):
        check_working("141/3: 14/3=4r1,21/3=7")
