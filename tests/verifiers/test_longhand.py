"""A working says what its equation says, if every number in it is right, and nothing otherwise."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reason_spec.verifiers.claims import read_claims
from reason_spec.verifiers.longhand import find_unproven
from reason_spec.verifiers.mathtext import tokenize
from reason_spec.verifiers.numbers import compare_numbers
from tests.verifiers.written_arithmetic import WORKED, Calculation, Notation, calculations, columns, write

OPENINGS = st.sampled_from([": ", ", ", ". ", ":\n"])
SEPARATORS = st.sampled_from([",", ", ", "; ", ". ", ", then ", " and "])


def read(text: str) -> list[str]:
    return [token.text for token in tokenize(text)]


@given(calculations(limit=99_999), WORKED, OPENINGS, SEPARATORS)
def test_a_sound_working_reads_as_its_equation(
    calculation: Calculation, notation: Notation, opening: str, separator: str
) -> None:
    worked = write(calculation, notation, opening=opening, separator=separator)
    equation = write(calculation, "equation")
    assert read(f"We find {worked}. Ben has apples.") == read(f"We find {equation}. Ben has apples.")
    assert read(worked) == read(equation)
    if worked != equation:
        assert read(f"{worked}, {calculation.value}.") == read(f"{equation}.")


@given(calculations(), WORKED, st.data())
def test_a_working_with_one_number_changed_is_no_equation_and_matches_no_right_one(
    calculation: Calculation, notation: Notation, data: st.DataObject
) -> None:
    worked = write(calculation, notation)
    assume(worked != write(calculation, "equation"))
    numbers = list(re.finditer(r"\d+", worked))
    number = data.draw(st.sampled_from(numbers))
    other = data.draw(st.integers(0, 99).filter(lambda n: n != int(number[0])))
    # With the divisor put in place of every digit of the quotient, 8/2: 8=2*4 is a right 8/4: 8=2*4.
    assume(
        not (
            calculation.operator == "/"
            and number is numbers[1]
            and set(str(calculation.value)) == {str(other)}
        )
    )
    changed = worked[: number.start()] + str(other) + worked[number.end() :]
    assert len(read(changed)) > 5
    for right in (worked, write(calculation, "equation")):
        for a, b in ((changed, right), (right, changed)):
            comparison = compare_numbers(f"{a}. That is all.", f"{b}. That is all.")
            assert comparison.decision != "accept"
            assert not comparison.only_words_open, (a, b)


def in_order(line: str) -> str:
    """A column with its terms in one order, whichever it was written in."""
    terms, equals, value = line.partition("=")
    return "+".join(sorted(terms.split("+"))) + equals + value


@given(calculations(), st.data())
def test_a_working_with_a_line_left_out_twice_or_elsewhere_is_no_equation(
    calculation: Calculation, data: st.DataObject
) -> None:
    lines = columns(calculation, "terms")
    equations = [i for i, line in enumerate(lines) if "=" in line]
    assume(len(equations) > 1)
    place = data.draw(st.sampled_from(equations))
    before, line, behind = lines[:place], lines[place], lines[place + 1 :]
    for wrong in ([*before, *behind], [*before, line, line, *behind], [*before, *behind, line]):
        # 2+6=8,6+2=8 in the place of 6+2=8,2+6=8 is the same working.
        if [*map(in_order, wrong)] != [*map(in_order, lines)]:
            text = f"{calculation.expression}: {','.join(wrong)}"
            assert len(read(text)) > 5, text
            assert find_unproven(tokenize(text)), text


@given(calculations("+-"), calculations("+-"), WORKED)
def test_two_workings_one_after_the_other_are_two_equations(
    first: Calculation, second: Calculation, notation: Notation
) -> None:
    worked = f"{write(first, notation)}, then {write(second, notation)}. Ben has them."
    stated = f"{write(first, 'equation')}, then {write(second, 'equation')}. Ben has them."
    assert read(worked) == read(stated)


@pytest.mark.parametrize(
    ("text", "equation"),
    [
        ("47+8, 7+8=15 carry 1, 4+1=5", "47+8=55"),
        ("52-38, 2-8 borrow, 12-8=4, 5-3-1=1", "52-38=14"),
        ("47*3, 7*3=21 carry 2, 4*3=12, 12+2=14", "47*3=141"),
        ("141/3, 3*4=12 rest 2, 3*7=21", "141/3=47"),
        ("145+3: 5+3=8,4,1", "145+3=148"),
        ("47 + 8: 7 plus 8 is 15, carry one, 4 plus 1 is 5, so 55", "47 + 8 = 55"),
        ("100-1: 0-1 borrow,10-1=9,0-1 borrow,10-1=9,1-1=0", "100-1=99"),
        ("3*47: 7*3=21, write 1, carry 2, 4*3=12, 12+2=14", "3*47=141"),
    ],
)
def test_usual_notations_are_known(text: str, equation: str) -> None:
    assert read(text) == read(equation)


@pytest.mark.parametrize(
    "text",
    [
        "47+8, 7+8=15 carry 1, 4+1=5, 54. Ben has 55 cards.",
        "47+8, 7+8=15 carry 1, 4+1=5 carry 8.",
        "141/3, 3*4=12 rest 2, 3*7=21 rest 3.",
        "47+8, 7+8=15 carry 1, 4+1=5, 8+1=9.",
    ],
)
def test_what_is_left_of_a_working_keeps_it_from_being_an_equation(text: str) -> None:
    assert find_unproven(tokenize(text))


@pytest.mark.parametrize(
    "text",
    [
        "Ben has 47 + 8, that is 55 apples.",
        "Compute 3 * 4.",
        "From x + 3, y + 4 = 7 follows.",
        "The pairs are 3 - 2, 5 - 4 and 9 - 8.",
        "47 + 8 = 55 and 55 - 3 = 52.",
    ],
)
def test_other_formulas_are_no_workings(text: str) -> None:
    assert not find_unproven(tokenize(text))


PARTS = ["47", "8", "7+8=15", "4+1=5", "+", "-", "*", "/", "=", ", ", ": ", " carry 1", " so ", ". "]


@given(st.lists(st.sampled_from(PARTS)).map("".join))
def test_reading_invents_no_number_that_no_true_equation_gives(text: str) -> None:
    written = {int(digits) for digits in re.findall(r"\d+", text)}
    claims = read_claims(text)
    given_by_equations = {relation.value for relation in claims.relations if relation.truth == "true"}
    whole = {abs(value) for value in claims.quantities if value.denominator == 1}
    assert whole <= written | given_by_equations


@pytest.mark.parametrize(
    ("text", "unproven"),
    [("1+1," * 5000, False), ("12+34: 2+4=6," * 1500, True), ("9" * 40 + "+1: 9+1=10", False)],
)
def test_long_rows_of_sums_are_read_whole(text: str, unproven: bool) -> None:
    # A search that began anew at every sum would take minutes and run into the test time-out.
    tokens = tokenize(text)
    assert len(tokens) >= len(re.findall(r"\d+", text))
    assert bool(find_unproven(tokens)) is unproven
