"""Sentences and questions are read by rules of notation, in the wording of any model."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.exit.reading import (
    MOST_MENTIONS,
    MOST_NUMBERS,
    Mention,
    Question,
    read_number,
    read_sentences,
    states_as_answer,
    stem,
)

QUESTION = Question.of("Ana has 3 apples and eats 20% of 10 pears. How many pears are left in total?")


def mentions(text: str) -> dict[str, Mention]:
    return {m.text: m for sentence in read_sentences(text, QUESTION) for m in sentence.mentions}


def test_a_question_is_split_into_what_it_tells_and_what_it_asks() -> None:
    assert QUESTION.numbers == {3, 20, 10}
    assert QUESTION.origins[Fraction(4, 5)] == 20
    assert QUESTION.asked == {"pear", "left", "total"}
    assert QUESTION.asked_only == {"left", "total"}
    assert QUESTION.kinds[0]
    assert not QUESTION.asks_money


@pytest.mark.parametrize("text", ["", "?", "...\n\n", "How", "½"])
def test_any_text_is_a_question(text: str) -> None:
    assert Question.of(text).num_origins >= 1


def test_results_and_operands_are_told_apart() -> None:
    found = mentions("So 10 - 2 = 8 pears.")
    assert found["8"].result
    assert found["8"].stated
    assert found["8"].fits_asked
    assert found["8"].earlier == (Fraction(10), Fraction(2))
    assert found["10"].operand
    assert not found["10"].stated


def test_boxes_hold_numbers_and_expressions() -> None:
    assert mentions(r"\boxed{8}")["8"].boxed
    assert mentions(r"Hence $\boxed{\frac{x}{2}}$.")[r"\frac{x}{2}"].value == r"\frac{x}{2}"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,250", 1250), ("$3.50", Fraction(7, 2)), ("3 / 4", Fraction(3, 4)), (r"\frac{1}{3}", Fraction(1, 3)),
     ("1/0", None)],
)  # fmt: skip
def test_numbers_are_exact(text: str, value: Fraction | None) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    ("sentence", "value", "text"),
    [
        ("So the profit is $70k.", Fraction(70_000), "$70000"),
        ("That leaves 1.5 million people.", Fraction(1_500_000), "1500000"),
        ("So there are 12k of them.", Fraction(12_000), "12000"),
        ("So the herd has 4k legs.", Fraction(4), "4"),
        ("It weighs 70kg.", Fraction(70), "70"),
    ],
)
def test_a_scale_behind_a_number_belongs_to_it(sentence: str, value: Fraction, text: str) -> None:
    (mention,) = next(read_sentences(sentence, Question.of("How much is left?"))).mentions
    assert (mention.value, mention.text) == (value, text)


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    for sentence in read_sentences(text, QUESTION):
        assert 0 <= sentence.asked <= 1


@given(st.text("abcdegins'", min_size=3))
def test_stems_keep_three_letters(word: str) -> None:
    assert word.startswith(stem(word))
    assert len(stem(word)) >= 3


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("The answer is 172.\n\n", True),
        ("**Final answer:** $172$\n", True),
        ("So the answer is \\boxed{172} apples.\n", True),
        ("The answer is 12. No, it is 172.\n", False),
        ("So she has 172 apples.\n", False),
        ("The answer will come next: 171 + 1.\n", False),
        ("\\boxed{12}, so the answer is 172.\n", False),
    ],
)
def test_an_answer_is_stated_as_such_in_a_box_or_by_its_name(step: str, expected: bool) -> None:
    assert states_as_answer(step, "172") is expected


def test_only_a_bounded_part_of_a_table_of_numbers_is_read() -> None:
    table = ", ".join(f"{number} is one + {number}" for number in range(3000))
    question = Question.of(table)
    assert len(question.numbers) <= MOST_NUMBERS
    assert question.num_origins <= MOST_NUMBERS + 1
    (sentence,) = read_sentences(table, question)
    assert len(sentence.mentions) == MOST_MENTIONS
    assert max(len(mention.earlier) for mention in sentence.mentions) < 2 * MOST_MENTIONS


def test_a_question_without_numbers_has_none_above_which_a_value_is() -> None:
    assert Question.of("How many?").most_number == 0
    assert Question.of("Of 5, 40 % and 7?").most_number == 40
