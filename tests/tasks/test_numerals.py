from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.tasks import extract_answer
from reason_spec.tasks.compare import compare_quickly
from reason_spec.tasks.numerals import parse_base_numeral, parse_number

CENTS = st.integers(min_value=-(10**12), max_value=10**12)


def _decimal(cents: int) -> str:
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def _grouped(cents: int, separator: str = ",") -> str:
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100:,}.{abs(cents) % 100:02d}".replace(",", separator)


WRITINGS = (
    _decimal,
    _grouped,
    lambda cents: _grouped(cents, "{,}"),
    lambda cents: _grouped(cents, ",\\!"),
    lambda cents: _decimal(cents) + "000",
    lambda cents: f"${_decimal(cents)}$",
    lambda cents: f"\\${_grouped(cents)}",
    lambda cents: f"**{_decimal(cents)}**",
    lambda cents: f"{_decimal(cents)} dollars per day.",
    lambda cents: f"{_decimal(cents)}\\text{{ cm}}^2",
    lambda cents: f"x = {_decimal(cents)}",
    lambda cents: f"{cents}/100",
    lambda cents: f"\\frac{{{cents}}}{{100}}",
    lambda cents: f"{'-' if cents < 0 else ''}\\dfrac{{{abs(cents)}}}{{100}}",
    lambda cents: f"{cents} \\times 10^{{-2}}",
    lambda cents: f"{cents}e-2",
    lambda cents: _decimal(cents).replace("-", "\u2212"),
)


@given(CENTS, st.sampled_from(WRITINGS), st.sampled_from(WRITINGS))
def test_one_number_is_equal_in_all_writings(
    cents: int, write_reference: object, write_prediction: object
) -> None:
    reference, prediction = write_reference(cents), write_prediction(cents)  # type: ignore[operator]
    comparison = compare_quickly(reference, prediction, "number")
    assert comparison is not None
    assert comparison.equal is True, (reference, prediction)


@given(CENTS, CENTS, st.sampled_from(WRITINGS), st.sampled_from(WRITINGS))
def test_different_numbers_are_never_equal(
    cents: int, other: int, write_reference: object, write_prediction: object
) -> None:
    if cents == other:
        other += 1
    reference, prediction = write_reference(cents), write_prediction(other)  # type: ignore[operator]
    comparison = compare_quickly(reference, prediction, "number")
    assert comparison is not None
    assert comparison.equal is False, (reference, prediction)


NUMERALS = st.builds(
    lambda write, cents, unit: write(cents) + unit,
    st.sampled_from(WRITINGS),
    st.integers(min_value=-200, max_value=200),
    st.sampled_from(["", "%", "\\%", " percent", " million", " dozen", " x"]),
)
TEXTS = st.text(max_size=60) | NUMERALS


@given(TEXTS, TEXTS)
def test_any_text_is_read_without_an_exception_and_alike_both_ways(first: str, second: str) -> None:
    expected, found = parse_number(first), parse_number(second)
    if expected is not None and found is not None:
        assert expected.equals(found) == found.equals(expected)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("033", 33),
        ("18.", 18),
        (".0000672", Fraction(672, 10**7)),
        ("1 000 000", 10**6),
        ("1\\frac{4}{5}", Fraction(9, 5)),
        ("137 \\frac{1}{2}", Fraction(275, 2)),
        ("-1 1/2", Fraction(-3, 2)),
        ("1½", Fraction(3, 2)),
        ("\\frac43", Fraction(4, 3)),
        ("\\frac 59", Fraction(5, 9)),
        ("\\frac9{19}", Fraction(9, 19)),
        ("-\\frac{35}{9}", Fraction(-35, 9)),
        ("\\frac{270}7\\text{ degrees}", Fraction(270, 7)),
        ("864 \\mbox{ inches}^2", 864),
        ("11,\\! 111,\\! 111,\\! 100", 11111111100),
        ("90^\\circ", 90),
        ("30^{\\circ}", 30),
        ("18°C", 18),
        ("5 km/h", 5),
        ("(7)", 7),
        ("9 * 2 = 18", 18),
        ("n = 204", 204),
        ("twenty-five", 25),
        ("Eighteen dollars", 18),
        ("eighteen boxes of one pound", 18),
        ("two thousand pens", 2),
        ("１８", 18),
    ],
)
def test_number_is_read_with_its_value(text: str, value: Fraction) -> None:
    number = parse_number(text)
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "2k", "5x", "5 x", "2 pi", "3\\pi", "x", "1, 2", "(1,2)", "3, 5, 7", "52_8", "1/0", "2^3",
        "2**3", "5 + 3", "x = 3, y = 5", "x=3 or x=5", "2x = 3", "4:30", "-", ".", "$", "1e999999999", "3!",
        "18 and 19", "5 sin x", "1.2.3", "1,00", "--5", "9" * 5000, "∞", "٣",
        "one half", "two-thirds", "five point two", "two hundred fifty", "three quarters", "ten tenths",
    ],
)  # fmt: skip
def test_text_that_is_not_one_number_is_not_read_as_one(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("reference", "prediction", "equal"),
    [
        ("25", "25%", True),
        ("25\\%", "25", True),
        ("25\\%", "0.25", True),
        ("0.25", "25 percent", True),
        ("25%", "0.25%", False),
        ("25%", "2.5", False),
        ("5", "5 million", True),
        ("5000000", "5 million", True),
        ("5 million", "5 billion", False),
        ("24", "2 dozen", True),
        ("1/3", "0.333333", False),
        ("1/3", "2/6", True),
    ],
)
def test_percent_and_scale_words_count_in_either_reading(
    reference: str, prediction: str, equal: bool
) -> None:
    expected, found = parse_number(reference), parse_number(prediction)
    assert expected is not None
    assert found is not None
    assert expected.equals(found) is equal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("52_8", ("52", 8)),
        ("4210_{5}", ("4210", 5)),
        ("FF_{16}", ("FF", 16)),
        ("58_8", None),
        ("52", None),
        ("a_{12}", None),
    ],
)
def test_numeral_with_a_base_is_read(text: str, expected: tuple[str, int] | None) -> None:
    assert parse_base_numeral(text) == expected


def test_terms_of_a_sequence_are_not_numerals_of_a_base() -> None:
    assert compare_quickly("a_{12}", "a_{13}", "expression") is None


def test_a_fraction_in_words_is_not_its_first_word() -> None:
    for reference, prediction in (("1", "one half"), ("5", "five point two"), ("200", "two hundred fifty")):
        comparison = compare_quickly(reference, prediction, "number")
        assert comparison is not None
        assert comparison.equal is False


@pytest.mark.parametrize(
    ("reference", "prediction"),
    [
        ("1 1/2", "11/2"),
        ("3 4/5", "34/5"),
        ("12", "1 2"),
        ("3 am", "3 pm"),
        ("(0,100)", "100"),
        ("(1,100)", "1100"),
        ("5", "5abc"),
        ("5", "5 squared"),
        ("20", "twenty-first"),
        ("12.5", "10-5/2"),
    ],
)
def test_what_looks_like_the_same_number_and_is_another_is_not_equal(reference: str, prediction: str) -> None:
    for first, second in ((reference, prediction), (prediction, reference)):
        for kind in ("number", "expression"):
            comparison = compare_quickly(first, second, kind)
            assert comparison is None or comparison.equal is not True


@pytest.mark.parametrize(
    "prediction", ["about 12", "exactly 12 apples", "equal to 12", "\\text{Total: } 12", "12apples"]
)
def test_words_that_leave_a_number_what_it_is_do_not_matter(prediction: str) -> None:
    assert parse_number(prediction) == parse_number("12")
    assert parse_number(prediction.replace("12", "minus 12")) == parse_number("-12")


@pytest.mark.parametrize(
    "response", ["Total cost: $20 - $2 = $18", "The answer is about 18.", "\\boxed{\\text{Total: } 18}"]
)
def test_an_answer_is_right_with_its_words(response: str) -> None:
    answer = extract_answer(response, "auto")
    assert answer is not None
    comparison = compare_quickly("18", answer, "expression")
    assert comparison is not None
    assert comparison.equal is True
