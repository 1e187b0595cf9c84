"""Written arithmetic: true line by line, and complete."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.pair.arithmetic import Calculation, slip, work_out


def check_working(text: str) -> None:
    """Evaluate every equation of a working by itself, and every carry and borrow against it."""
    for column in re.split(r",|: ", text):
        match = re.fullmatch(r"([\d+*/-]+)=([\d+*]+)(?: carry (\d))?", column)
        if match is None:
            assert re.fullmatch(r"\d+(?:[-+*/]\d+)*(?: borrow)?", column), column
            if column.endswith(" borrow"):
                assert _evaluate(column.removesuffix(" borrow")) < 0, column
            continue
        left, right, carried = match.groups()
        assert _evaluate(left) == _evaluate(right), column
        if carried:
            assert int(right) // 10 == int(carried), column


def _evaluate(text: str) -> int:
    if "/" in text:
        dividend, divisor = map(int, text.split("/"))
        assert dividend % divisor == 0, text
        return dividend // divisor
    total = 0
    for sign, product in re.findall(r"([+-]?)(\d+(?:\*\d+)*)", text):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def columns_of(text: str) -> list[str]:
    """The last word on each column: the digit, or digits, that it comes to."""
    columns = [c for c in text.rsplit(": ", maxsplit=1)[-1].split(",") if not c.endswith(" borrow")]
    return [column.split(" carry")[0].split("=")[-1] for column in columns]


numbers = st.integers(0, 999)


@given(numbers, numbers)
def test_sums_are_true_and_spell_the_result_from_the_ones_up(a: int, b: int) -> None:
    worked = work_out(a, "+", b)
    check_working(worked.text)
    *columns, last = columns_of(worked.text)
    assert int(last + "".join(column[-1] for column in reversed(columns))) == a + b == worked.value
    assert worked.text.count("carry") == sum(len(column) > 1 for column in columns)


@given(numbers, numbers)
def test_differences_are_true_and_spell_the_result_from_the_ones_up(a: int, b: int) -> None:
    a, b = max(a, b), min(a, b)
    worked = work_out(a, "-", b)
    check_working(worked.text)
    assert int("".join(reversed(columns_of(worked.text)))) == a - b == worked.value


@given(numbers, st.integers(1, 9))
def test_products_are_true_and_carry_in_the_open(a: int, b: int) -> None:
    worked = work_out(a, "*", b)
    check_working(worked.text)
    assert worked.value == a * b
    columns = columns_of(worked.text)
    assert str(worked.value).startswith(columns[-1])


@given(st.integers(1, 999), st.integers(1, 9))
def test_quotients_are_true_and_their_digits_stand_in_order(quotient: int, divisor: int) -> None:
    worked = work_out(quotient * divisor, "/", divisor)
    check_working(worked.text)
    digits = re.findall(rf"={divisor}\*(\d)", worked.text)
    assert int("".join(digits)) == quotient == worked.value


def test_the_written_form() -> None:
    assert work_out(5, "+", 3).text == "5+3=8"
    assert work_out(47, "+", 38).text == "47+38: 7+8=15 carry 1,4+3+1=8"
    assert work_out(105, "-", 8).text == "105-8: 5-8 borrow,15-8=7,0-1 borrow,10-1=9,1-1=0"
    assert work_out(47, "*", 3).text == "47*3: 7*3=21 carry 2,4*3=12,12+2=14"
    assert work_out(141, "/", 3).text == "141/3: 14=3*4+2,21=3*7"
    assert work_out(70, "/", 10).text == "70/10=7"


@pytest.mark.parametrize(
    ("a", "operator", "b"), [(3, "-", 5), (7, "/", 2), (4, "*", 12), (4, "/", 0), (0, "/", 3)]
)
def test_calculations_outside_the_written_form_are_refused(a: int, operator: str, b: int) -> None:
    with pytest.raises(AssertionError):
        work_out(a, operator, b)  # type: ignore[arg-type]


@given(numbers, numbers, st.sampled_from("+-"), st.integers())
def test_a_slip_changes_one_column_and_the_value_that_follows_from_it(
    a: int, b: int, operator: str, seed: int
) -> None:
    a, b = max(a, b), min(a, b)
    calculation = Calculation(a, operator, b)  # type: ignore[arg-type]
    slipped = slip(calculation, Random(seed))
    if slipped is None:
        assert "=" not in work_out(*calculation).text.split(": ")[-1]
        return
    with pytest.raises(AssertionError):
        check_working(slipped.text)
    assert abs(slipped.value - calculation.value) in (1, 10, 100)
    right = re.split(r",|: ", work_out(*calculation).text)
    assert sum(x != y for x, y in zip(re.split(r",|: ", slipped.text), right, strict=True)) == 1


@pytest.mark.parametrize(
    "wrong", ["47+8: 7+8=16 carry 1,4+1=5", "141/3: 14=3*4+1,21=3*7", "47*3: 7*3=21 carry 1,4*3=12,12+1=13"]
)
def test_the_checker_itself_refuses_a_wrong_equation(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_working(wrong)
