"""Scores, judgements, checks and corrections: what they show and what they teach."""

from __future__ import annotations

import re
from random import Random
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.pair.generator import STEP_SEPARATOR, make_problem
from reason_spec.pair.grading import is_right_step
from reason_spec.pair.turns import (
    Mistake,
    check_turns,
    correct_turns,
    draw_mistake,
    judge_turn,
    make_mistake,
    score_turns,
)
from reason_spec.pair.wording import ALIGNED, UNALIGNED

seeds = st.integers(0, 10**6)


@given(seeds)
def test_a_corrected_solution_teaches_everything_but_the_wrong_step(seed: int) -> None:
    example = make_problem("train", seed, 0)
    turns = correct_turns(example, Random(seed))
    (wrong,) = [turn.text for turn in turns if not turn.learnt]
    wrong = wrong.removesuffix(STEP_SEPARATOR)
    learnt = [step for turn in turns if turn.learnt for step in turn.text.split(STEP_SEPARATOR) if step]
    assert len(learnt) == len(example.steps)
    corrected = next(i for i, step in enumerate(learnt) if step.startswith("Wait, "))
    assert not is_right_step(wrong, example.steps[corrected])
    assert all(is_right_step(a, b) for a, b in zip(learnt, example.steps, strict=True))


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
def test_a_score_is_high_for_right_steps_alone(seed: int) -> None:
    example = make_problem("train", seed, 2)
    steps, _, score = score_turns(example, Random(seed))
    shown = steps.removesuffix(STEP_SEPARATOR).split(STEP_SEPARATOR)
    right = is_right_step(shown[-1], example.steps[len(shown) - 1])
    assert shown[:-1] == list(example.steps[: len(shown) - 1])
    assert (int(score) >= 8) == right
    assert int(score) >= 8 or int(score) <= 2


@given(seeds)
def test_two_versions_of_a_step_are_aligned_where_they_say_the_same(seed: int) -> None:
    example = make_problem("train", seed, 3)
    question, answer = judge_turn(example, Random(seed))
    first, second = question.removesuffix(" Do they agree? Say aligned or unaligned.").split(" Second: ")
    agree = is_right_step(first.removeprefix("First: "), second)
    assert answer == (ALIGNED if agree else UNALIGNED)


def test_both_answers_and_all_mistakes_occur() -> None:
    examples = [make_problem("train", 5, i) for i in range(200)]
    answers = [judge_turn(example, Random(i))[1] for i, example in enumerate(examples)]
    assert 70 < answers.count(ALIGNED) < 130
    made = [draw_mistake(example, 0, Random(i))[0] for i, example in enumerate(examples)]
    assert set(made) == set(get_args(Mistake))


@given(seeds, st.sampled_from(get_args(Mistake)))
def test_a_mistake_leaves_the_words_of_the_step_alone(seed: int, mistake: Mistake) -> None:
    example = make_problem("train", seed, 4)
    step = example.plan[0]
    wrong = make_mistake(step, mistake, [n for s in example.plan for n in (s.a, s.b)], Random(seed))
    if wrong is not None:
        letters = lambda text: [w for w in text.split() if w.isalpha() and w not in ("carry", "borrow")]  # noqa: E731
        assert letters(wrong) == letters(step.text())
        assert wrong != step.text()
