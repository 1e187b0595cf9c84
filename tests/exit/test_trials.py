"""A trial answer is read as far as the text shows that it is whole, and rated by its own tokens."""

from __future__ import annotations

from math import exp, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.scripted import ScriptedTokenizer
from reason_spec.exit.reading import read_value
from reason_spec.exit.trials import DEER_PROMPT, DYNASOR_PROMPT, AnswerForm, Trial, agree, read_trial

TOKENIZER = ScriptedTokenizer()


def trial(prompt: str, text: str, *, is_over: bool = False, chance: float = 0.5) -> Trial:
    tokens = TOKENIZER.encode(text)
    return read_trial(AnswerForm.of(prompt), tokens, [log(chance)] * len(tokens), TOKENIZER, is_over=is_over)


@pytest.mark.parametrize(
    ("prompt", "text", "answer"),
    [
        (DEER_PROMPT, "{42}\n", "42"),
        (DEER_PROMPT, " {\\frac{1}{2}} and", "\\frac{1}{2}"),
        (DEER_PROMPT, "{42", None),
        (DEER_PROMPT, "{}", None),
        (DYNASOR_PROMPT, "\\frac{3}{4}}", "\\frac{3}{4}"),
        (DYNASOR_PROMPT, "a\\}b}", "a\\}b"),
        ("The answer is", " 172.\n\nThen", "172"),
        ("The answer is", " 3.5", None),
        ("The answer is", " 3.5 m. So", "3.5 m"),
        ("The answer is", "", None),
    ],
)
def test_an_answer_ends_with_its_box_or_its_sentence(prompt: str, text: str, answer: str | None) -> None:
    assert trial(prompt, text).answer == answer


def test_the_end_of_the_text_ends_a_sentence_but_no_box() -> None:
    assert trial("The answer is", " 3.5", is_over=True).answer == "3.5"
    assert trial(DEER_PROMPT, "{3.5", is_over=True).answer is None


@given(st.integers(0, 10**6), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_the_confidence_is_the_geometric_mean_over_the_answers_own_tokens(
    number: int, chance: float, beside: float
) -> None:
    tokens = TOKENIZER.encode(f"{{{number}}} so")
    inner = range(1, len(str(number)) + 1)
    logprobs = [log(chance) if place in inner else log(beside) for place in range(len(tokens))]
    found = read_trial(AnswerForm.of(DEER_PROMPT), tokens, logprobs, TOKENIZER, is_over=False)
    assert found.answer == str(number)
    assert found.confidence == pytest.approx(chance)
    unequal = [log(0.5), log(0.9), log(0.4), *[log(0.1)] * 3]
    two = read_trial(
        AnswerForm.of(DEER_PROMPT), TOKENIZER.encode("{42}.."), unequal, TOKENIZER, is_over=False
    )
    assert two.confidence == pytest.approx(exp((log(0.9) + log(0.4)) / 2))


def test_an_answer_without_log_probabilities_has_no_confidence() -> None:
    found = read_trial(
        AnswerForm.of(DEER_PROMPT), TOKENIZER.encode("{42}"), [0.0, nan, 0.0, 0.0], TOKENIZER, is_over=False
    )
    assert (found.answer, found.confidence) == ("42", 0.0)


def test_an_unknown_answer_has_no_confidence_and_agrees_with_nothing() -> None:
    unknown = trial(DEER_PROMPT, "no idea")
    assert (unknown.answer, unknown.confidence) == (None, 0.0)
    assert not agree([unknown, unknown])
    assert not agree([trial(DEER_PROMPT, "{4}"), unknown])
    assert not agree([])


@pytest.mark.parametrize(
    ("one", "other"), [("1,125", "1125"), ("$42$", "42 dollars"), ("0.50", "\\frac{1}{2}"), ("x + 1", "x+1")]
)
def test_answers_agree_by_value_not_by_notation(one: str, other: str) -> None:
    assert read_value(one) == read_value(other)


@pytest.mark.parametrize(("one", "other"), [("3", "3x"), ("3 + x", "3"), ("1 or 2", "12"), ("x", "y")])
def test_expressions_are_not_taken_for_their_numbers(one: str, other: str) -> None:
    assert read_value(one) != read_value(other)
