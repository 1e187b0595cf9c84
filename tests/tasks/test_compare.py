"""Answers as models write them, from the response to the verdict."""

from __future__ import annotations

import pytest

from reason_spec.tasks.compare import compare_quickly, compare_symbolically
from reason_spec.tasks.extract import AnswerKind, find_answer


def is_right(response: str, reference: str, kind: AnswerKind) -> bool | None:
    answer = find_answer(response, kind)
    assert answer is not None
    compared = compare_quickly(reference, answer, kind) or compare_symbolically(reference, answer)
    return compared.equal


@pytest.mark.parametrize(
    ("response", "right", "wrong"),
    [
        (r"The answer is $\sqrt{16}$.", "4", "16"),
        (r"The answer is $2\sqrt{3}$.", r"\sqrt{12}", "2"),
        (r"The answer is $\frac{3}{\sqrt{4}}$.", "3/2", "3"),
        ("The answer is √4.", "2", "4"),
        (r"The answer is $\binom{10}{3}$.", "120", "10"),
        ("The answer is $5!$.", "120", "5"),
        ("The answer is 5!", "5", "120"),
        ("The answer is 2(3+4).", "14", "2"),
        ("The answer is minus 7.", "-7", "7"),
        (r"\boxed{\text{negative } 7}", "-7", "7"),
        ("#### negative 7", "-7", "7"),
        ("The answer is 10 (ten) eggs.", "10", "100"),
        ("The answer is 9 * 2 = 18 dollars.", "18", "9"),
    ],
)
def test_a_number_is_what_the_phrase_says_and_no_part_of_it(response: str, right: str, wrong: str) -> None:
    assert is_right(response, right, "number") is True
    assert is_right(response, wrong, "number") is False


@pytest.mark.parametrize(
    "response", ["The answer is 3 or 5.", "The answer is 3-5 days.", "It is: answer = 3 to 5."]
)
def test_a_range_is_none_of_its_ends(response: str) -> None:
    assert is_right(response, "3", "number") is not True
    assert is_right(response, "5", "number") is not True


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("The correct answer is C) Paris.", "C"),
        ("The answer is C: Paris", "C"),
        (r"\boxed{C) 27}", "C"),
        (r"\boxed{C. 27}", "C"),
        (r"\boxed{\text{B) } 27}", "B"),
        ("Answer: **B) Paris**", "B"),
        ("The answer is option (B).", "B"),
        ("The correct option is B.", "B"),
        ("A: 12\nB: 15\nC: 18\nIt cannot be A. The correct choice is (B).", "B"),
    ],
)
def test_the_letter_of_a_choice_is_read_with_its_text(response: str, letter: str) -> None:
    assert is_right(response, letter, "expression") is True
    assert is_right(response, "D", "expression") is False


@pytest.mark.parametrize("response", [r"\boxed{(C) 27}", r"\boxed{C) 27}", r"\boxed{\textbf{(C) }27}"])
def test_a_value_is_compared_without_the_letter_of_its_choice(response: str) -> None:
    assert is_right(response, "27", "expression") is True
    assert is_right(response, "28", "expression") is False


@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("The answer is 3√2.", r"3\sqrt{2}"),
        ("The answer is √(x+1).", r"\sqrt{x+1}"),
        ("The answer is (-∞, 3].", r"(-\infty,3]"),
        ("The answer is x² + 1.", "x^2+1"),
        (r"\boxed{0.\overline{3}}", r"\frac13"),
        (r"\boxed{\frac{1}{6}}", r"0.1\overline{6}"),
        (r"\boxed{3:2}", "3:2"),
    ],
)
def test_mathematics_is_equal_in_other_signs(response: str, reference: str) -> None:
    assert is_right(response, reference, "expression") is True


@pytest.mark.parametrize(("answer", "reference"), [("on", "no"), ("10:1", "10"), (r"0.\overline{3}", "0.3")])
def test_what_looks_alike_is_not_equal(answer: str, reference: str) -> None:
    assert is_right(rf"\boxed{{{answer}}}", reference, "expression") is False
