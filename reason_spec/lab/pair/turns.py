"""Training text besides solutions: scores, judgements, corrections, checks and further questions.

Wrong steps are made as small models make them: with another person's number, another number of the
problem, the other operation, a slip in one column, or a result that does not follow. They are
shown and never part of the loss; only the answers to them are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias, get_args

from reason_spec.pair import wording as words
from reason_spec.pair.arithmetic import Operator, slip, work_out
from reason_spec.pair.generator import STEP_SEPARATOR, Example, recall_step
from reason_spec.pair.story import MAX_VALUE, PlannedStep, Quantity, ask_about, ask_about_two
from reason_spec.pair.tokenizer import next_question
from reason_spec.pair.wording import Wording

Mistake: TypeAlias = Literal["source", "operand", "operation", "column", "result"]

_OTHER_OPERATION: Mapping[Operator, Operator] = {"+": "-", "-": "+", "*": "+", "/": "-"}
_SCORED_SHARE = 0.6
"""Share of the steps of a conversation that are scored; the last one always is."""
_ABOUT_TWO_SHARE = 0.7
"""Share of the questions that follow a solution that ask about two quantities, where there are two."""
_RIGHT_SCORES = (9, 9, 9, 8)
_WRONG_SCORES: Mapping[Mistake, tuple[int, ...]] = {
    "source": (0, 0, 1),
    "operand": (0, 0, 1),
    "operation": (0, 0, 1),
    "column": (1, 2, 2),
    "result": (1, 2, 2),
}
"""Scores out of which one is drawn: wrong reasoning is worse than a slip in a calculation."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece of a conversation; those ``in_loss`` are what the model is trained to write.

    Where the text is judged, ``flawed_from`` is the index of the character that shows the first
    mistake, or the length of the text where all is right.
    """

    text: str
    in_loss: bool
    flawed_from: int | None = None


def make_mistake(step: PlannedStep, mistake: Mistake, numbers: Sequence[int], rng: Random) -> str | None:
    """Put ``step`` into words with one mistake of this kind; None where it cannot be made.

    ``numbers`` are what may be taken by mistake: values and given numbers of the same problem.
    """
    if mistake == "source":
        return _with_numbers(step, rng, [(n, step.b) for n in numbers if n != step.a])
    if mistake == "operand":
        # A percentage or the word for a fraction stands for another number than the one calculated with.
        return _with_numbers(step, rng, [(step.a, n) for n in numbers if n != step.b and step.k == step.b])
    if mistake == "operation":
        return _with_other_operation(step)
    if mistake == "column":
        return _with_slip(step, rng)
    works = [work_out(*calculation).text for calculation in step.calculations]
    return step.put(works, _another_value(step.value, rng))


def _with_numbers(step: PlannedStep, rng: Random, choices: Sequence[tuple[int, int]]) -> str | None:
    for a, b in rng.sample(choices, len(choices)):
        wrong = replace(step, a=a, b=b, k=b if step.k == step.b else step.k)
        if all(c.can_be_worked_out and c.value <= MAX_VALUE for c in wrong.calculations):
            return wrong.text()
    return None


def _with_other_operation(step: PlannedStep) -> str | None:
    first, *more = step.calculations
    wrong = first._replace(operator=_OTHER_OPERATION[first.operator])
    if more or not wrong.can_be_worked_out or wrong.value > MAX_VALUE or wrong.value == first.value:
        return None
    return step.put([work_out(*wrong).text], wrong.value)


def _with_slip(step: PlannedStep, rng: Random) -> str | None:
    *before, last = step.calculations
    slipped = slip(last, rng)
    if slipped is None:
        return None
    works = [work_out(*calculation).text for calculation in before]
    return step.put([*works, slipped.text], slipped.value)


def _another_value(value: int, rng: Random) -> int:
    near = (value + 1, value - 1, value + 10, value - 10, value + 100, int(str(value)[::-1]))
    return rng.choice([other for other in near if 0 < other <= MAX_VALUE and other != value])


def draw_mistake(example: Example, index: int, rng: Random) -> tuple[Mistake, str]:
    """Draw a wrong version of step ``index`` of a problem, and say what is wrong with it."""
    step = example.plan[index]
    numbers = sorted({n for s in example.plan for n in (s.a, s.b, s.k, s.value)})
    mistakes = get_args(Mistake)
    for mistake in rng.choices(mistakes, (3, 2, 1, 2, 2), k=8):
        text = make_mistake(step, mistake, numbers, rng)
        if text is not None and text != example.steps[index]:
            return mistake, text
    text = make_mistake(step, "result", numbers, rng)
    assert text is not None
    return "result", text


def _first_difference(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def correct_turns(example: Example, rng: Random) -> list[Turn]:
    """Return a solution with one wrong step, which the next step corrects."""
    index = rng.randrange(len(example.plan))
    _, wrong = draw_mistake(example, index, rng)
    correction = rng.choice(words.CORRECTIONS).format(step=example.steps[index])
    before = "".join(step + STEP_SEPARATOR for step in example.steps[:index])
    after = STEP_SEPARATOR.join([correction, *example.steps[index + 1 :]])
    flawed_from = _first_difference(wrong, example.steps[index])
    return [
        Turn(before, in_loss=True),
        Turn(wrong + STEP_SEPARATOR, in_loss=False, flawed_from=flawed_from),
        Turn(after, in_loss=True),
    ]


def check_turns(example: Example, rng: Random) -> list[Turn]:
    """Return a solution in which one sum or difference is checked by a step of its own."""
    steps = list(example.steps)
    checkable = [
        i for i, step in enumerate(example.plan) if step.calculations[-1].operator in words.CHECK_STEPS
    ]
    if checkable:
        index = rng.choice(checkable)
        last = example.plan[index].calculations[-1]
        check = words.CHECK_STEPS[last.operator].format(value=last.value, a=last.a, b=last.b)
        steps.insert(index + 1, check)
    return [Turn(STEP_SEPARATOR.join(steps), in_loss=True)]


def score_turns(example: Example, rng: Random) -> list[Turn]:
    """Return a conversation about a solution in the making: scores for some steps, the last perhaps wrong.

    The steps are shown and the scores are in the loss. Nothing follows a wrong step.
    """
    turns: list[Turn] = []
    shown = ""
    for index, right in enumerate(example.steps[:-1]):
        step = right
        last = index == len(example.plan) - 1
        if rng.random() < _SCORED_SHARE or last:
            wrong = draw_mistake(example, index, rng) if rng.random() < (0.5 if last else 0.3) else None
            mistake, step = wrong or (None, right)
            score = rng.choice(_RIGHT_SCORES if mistake is None else _WRONG_SCORES[mistake])
            text = shown + step + STEP_SEPARATOR + next_question(words.SCORE_QUESTION)
            flawed_from = len(text) if mistake is None else len(shown) + _first_difference(step, right)
            turns += [
                Turn(text, in_loss=False, flawed_from=flawed_from),
                Turn(str(score), in_loss=True),
            ]
            if mistake is not None:
                break
            shown = next_question(words.CONTINUE)
        else:
            shown += step + STEP_SEPARATOR
    return turns


def follow_up_turns(example: Example, count: int, rng: Random, wording: Wording) -> list[Turn]:
    """Return up to ``count`` more questions about who has how many in the end, and the worked answers."""
    turns: list[Turn] = []
    asked: set[frozenset[str]] = set()
    for _ in range(count):
        first = rng.choice(example.quantities)
        others = [q for q in example.quantities if q.unit == first.unit and q.value != first.value]
        about = [first, rng.choice(others)] if others and rng.random() < _ABOUT_TWO_SHARE else [first]
        owners = frozenset(quantity.owner for quantity in about)
        if owners in asked:
            continue
        asked.add(owners)
        question, step, answer = _answer(about, rng, wording)
        worked = step + STEP_SEPARATOR + words.ANSWER_STEP.format(value=answer)
        turns += [Turn(next_question(question), in_loss=False), Turn(worked, in_loss=True)]
    return turns


def _answer(about: Sequence[Quantity], rng: Random, wording: Wording) -> tuple[str, str, int]:
    """Ask about one or two quantities; return the question, the step that answers it and its result."""
    first, *more = about
    if not more:
        return ask_about(rng, first), recall_step(first), first.value
    together = first.value + more[0].value <= MAX_VALUE and rng.random() < 0.5
    question, step = ask_about_two(rng, wording, "together" if together else "compare", first, more[0])
    return question, step.text(), step.value


def judge_turns(example: Example, rng: Random) -> list[Turn]:
    """Return the question whether a version of a step agrees with the right one, and its answer.

    The version is in the loss up to its mistake: a comparison needs an expectation.
    """
    index = rng.randrange(len(example.plan))
    step = replace(example.plan[index], phrasing=rng.choice(words.STEPS[example.plan[index].kind]))
    right = step.text()
    version = right
    if wrong := rng.random() < 0.5:
        plan = (*example.plan[:index], step, *example.plan[index + 1 :])
        _, version = draw_mistake(replace(example, plan=plan), index, rng)
    # A word's token begins with the space before it.
    before, after = words.JUDGE_QUESTION.format(first=example.steps[index], second="{}").split(" {}")
    flawed_from = _first_difference(version, right) if wrong else len(version)
    rest = version[flawed_from:] + after
    return [
        Turn(before, in_loss=False),
        Turn(" " + version[:flawed_from], in_loss=True, flawed_from=flawed_from + 1),
        Turn(rest, in_loss=False, flawed_from=0 if wrong else len(rest)),
        Turn(words.UNALIGNED if wrong else words.ALIGNED, in_loss=True),
    ]
