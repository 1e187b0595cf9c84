"""Scores, judgements, checks and corrections: what they show and what they teach."""

from __future__ import annotations

import re
from random import Random
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.lab.pair.grading import is_right_step
from reason_spec.lab.pair.turns import (
    Mistake,
    check_turns,
    correct_turns,
    draw_mistake,
    follow_up_turns,
    judge_turns,
    make_mistake,
    score_turns,
)
from reason_spec.pair.generator import STEP_SEPARATOR, make_problem
from reason_spec.pair.tokenizer import END_TOKEN, next_question
from reason_spec.pair.wording import ALIGNED, CONTINUE, SCORE_QUESTION, UNALIGNED
from tests.pair.test_generator import solve

seeds = st.integers(0, 10**6)


@given(seeds)
def test_a_corrected_solution_teaches_everything_but_the_wrong_step(seed: int) -> None:
    example = make_problem("train", seed, 0)
    turns = correct_turns(example, Random(seed))
    (wrong,) = [turn.text for turn in turns if not turn.in_loss]
    (flawed_from,) = [turn.flawed_from for turn in turns if turn.flawed_from is not None]
    wrong = wrong.removesuffix(STEP_SEPARATOR)
    trained = [step for turn in turns if turn.in_loss for step in turn.text.split(STEP_SEPARATOR) if step]
    assert len(trained) == len(example.steps)
    corrected = next(i for i, step in enumerate(trained) if step.startswith("Wait, "))
    assert not is_right_step(wrong, example.steps[corrected])
    assert example.steps[corrected].startswith(wrong[:flawed_from])
    assert not example.steps[corrected].startswith(wrong[: flawed_from + 1])
    assert all(is_right_step(a, b) for a, b in zip(trained, example.steps, strict=True))


@given(seeds)
def test_a_check_says_what_is_true_of_the_step_before_it(seed: int) -> None:
    example = make_problem("train", seed, 1)
    (turn,) = check_turns(example, Random(seed))
    steps = turn.text.split(STEP_SEPARATOR)
    checks = [i for i, step in enumerate(steps) if step.startswith("Let me check: ")]
    can_be_checked = any(step.calculations[-1].operator in "+-" for step in example.plan)
    assert len(checks) == can_be_checked
    for index in checks:
        value, sign, b, a = re.fullmatch(
            r"Let me check: (\d+)([+-])(\d+) is (\d+) again, as it should be\.", steps[index]
        ).groups()  # type: ignore[union-attr]
        assert int(value) + int(sign + b) == int(a)
        assert steps[index - 1].rstrip(".").split()[-2:-1] == [value] or f" {value} " in steps[index - 1]
        assert a in steps[index - 1]


@given(seeds)
def test_scores_are_high_for_right_steps_alone_and_nothing_follows_a_wrong_one(seed: int) -> None:
    example = make_problem("train", seed, 2)
    *shown, last = score_turns(example, Random(seed))
    assert last.in_loss
    steps: list[str] = []
    turns = [*shown, last]
    for turn, score in zip(turns[::2], turns[1::2], strict=True):
        assert (turn.in_loss, score.in_loss) == (False, True)
        new, asked = turn.text.removeprefix(next_question(CONTINUE)).split(END_TOKEN, 1)
        assert END_TOKEN + asked == next_question(SCORE_QUESTION)
        steps += new.removesuffix(STEP_SEPARATOR).split(STEP_SEPARATOR)
        right = [is_right_step(a, b) for a, b in zip(steps, example.steps, strict=False)]
        assert all(right) if int(score.text) >= 8 else right.index(False) == len(steps) - 1
        assert all(right) == (turn.flawed_from == len(turn.text))
        if not all(right):
            assert turn.flawed_from is not None
            assert example.steps[len(steps) - 1].startswith(
                turn.text[: turn.flawed_from].split(STEP_SEPARATOR)[-1].removeprefix(next_question(CONTINUE))
            )
        assert int(score.text) >= 8 or (int(score.text) <= 2 and score is last)
    assert not all(right) or len(steps) == len(example.plan)


@given(seeds, st.integers(1, 4))
def test_questions_that_follow_a_solution_are_answered_from_what_was_told(seed: int, count: int) -> None:
    example = make_problem("train", seed, 2)
    facts = " ".join(re.split(r"(?<=[.?])\s", example.question)[:-1])
    turns = follow_up_turns(example, count, Random(seed), "target")
    assert 0 < len(turns) <= 2 * count
    asked = [turn.text.removeprefix(END_TOKEN).split("user\n")[1].split(END_TOKEN)[0] for turn in turns[::2]]
    assert len(set(asked)) == len(asked)
    for question, turn in zip(asked, turns[1::2], strict=True):
        assert turn.in_loss
        step, answer = turn.text.split(STEP_SEPARATOR)
        value = solve(f"{facts} {question}")
        assert answer == f"The answer is {value}."
        assert str(value) in step


@given(seeds)
def test_two_versions_of_a_step_are_aligned_where_they_say_the_same(seed: int) -> None:
    example = make_problem("train", seed, 3)
    before, version, rest, answer = judge_turns(example, Random(seed))
    asked = before.text + version.text + rest.text
    first, second = asked.removesuffix(" Do they agree? Say aligned or unaligned.").split(" Second: ")
    agree = is_right_step(first.removeprefix("First: "), second)
    assert answer.text == (ALIGNED if agree else UNALIGNED)
    # What is right of the version is in the loss, and flawed is what follows where it goes wrong.
    assert [turn.in_loss for turn in (before, version, rest, answer)] == [False, True, False, True]
    assert version.flawed_from == len(version.text)
    assert rest.flawed_from == (len(rest.text) if agree else 0)
    assert agree == (" " + second == version.text)


def test_both_answers_and_all_mistakes_occur() -> None:
    examples = [make_problem("train", 5, i) for i in range(200)]
    answers = [judge_turns(example, Random(i))[-1].text for i, example in enumerate(examples)]
    assert 70 < answers.count(ALIGNED) < 130
    made = [draw_mistake(example, 0, Random(i))[0] for i, example in enumerate(examples)]
    assert set(made) == set(get_args(Mistake))


def words_of(text: str) -> list[str]:
    return [word for word in text.split() if word.isalpha() and word not in ("carry", "borrow")]


@given(seeds, st.sampled_from(get_args(Mistake)))
def test_a_mistake_leaves_the_words_of_the_step_alone(seed: int, mistake: Mistake) -> None:
    example = make_problem("train", seed, 4)
    step = example.plan[0]
    wrong = make_mistake(step, mistake, [n for s in example.plan for n in (s.a, s.b)], Random(seed))
    if wrong is not None:
        assert words_of(wrong) == words_of(step.text())
        assert wrong != step.text()
