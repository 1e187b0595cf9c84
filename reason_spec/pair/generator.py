"""Word problems in the form of GSM8K with worked steps, in any number from a seed.

Each example has a random stream of its own, drawn from split, seed and index, so any part of a data set can
be made without the rest. Splits are disjoint: the numbers and kinds of a problem, without its words, are
hashed into buckets, and each split owns its buckets.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias, get_args

from reason_spec.pair import wording as words
from reason_spec.pair.arithmetic import Operator, work_out
from reason_spec.pair.story import (
    MAX_VALUE,
    PlannedStep,
    Quantity,
    Story,
    draw_number,
    sentence,
    tell_story,
)
from reason_spec.pair.wording import Wording

Split: TypeAlias = Literal["train", "validation", "test"]
Drill: TypeAlias = Literal["arithmetic", "recall"]

STEP_SEPARATOR = "\n\n"
_BUCKETS = 100
_VALIDATION_BUCKETS = range(4)
_TEST_BUCKETS = range(4, 12)
_DISTRACTOR_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Example:
    """A problem with its worked solution.

    ``steps`` are one step for each operation and the answer step, without separators; ``plan`` holds
    the operations before they were put into words, and ``quantities`` who has how many of what in
    the end. Drills have few ``operations`` and may have no plan. ``skeleton`` is the problem without
    its words, the part that is hashed into a split.
    """

    id: str
    question: str
    steps: tuple[str, ...]
    answer: int
    operations: int
    plan: tuple[PlannedStep, ...]
    quantities: tuple[Quantity, ...]
    skeleton: str

    @property
    def solution(self) -> str:
        return STEP_SEPARATOR.join(self.steps)


def _split_of(skeleton: str) -> Split:
    bucket = zlib.crc32(skeleton.encode()) % _BUCKETS
    if bucket in _VALIDATION_BUCKETS:
        return "validation"
    return "test" if bucket in _TEST_BUCKETS else "train"


def _example(identifier: str, story: Story) -> Example:
    return Example(
        id=identifier,
        question=" ".join([*story.facts, story.question]),
        steps=(*(step.text() for step in story.plan), words.ANSWER_STEP.format(value=story.answer)),
        answer=story.answer,
        operations=len(story.plan),
        plan=tuple(story.plan),
        quantities=(*story.earlier, story.latest),
        skeleton=story.skeleton,
    )


def make_problem(
    split: Split,
    seed: int,
    index: int,
    *,
    operations: tuple[int, int] = (1, 8),
    wording: Wording = "target",
    two_sources: float = 1.0,
) -> Example:
    """Make problem ``index`` of ``seed``, with operations uniform in the closed range given.

    ``two_sources`` above 1 makes operations that take two quantities more frequent: a training with
    many of them teaches sooner to look up distant facts.
    """
    rng = Random(f"problem/{split}/{seed}/{index}")
    count = rng.randint(*operations)
    while True:
        distractors = int(rng.random() < _DISTRACTOR_SHARE)
        story = tell_story(rng, count, wording, distractors, two_sources=two_sources)
        if _split_of(story.skeleton) == split:
            return _example(f"{split}-{seed}-{index}", story)


def problems(
    split: Split,
    seed: int,
    *,
    operations: tuple[int, int] = (1, 8),
    wording: Wording = "target",
) -> Iterator[Example]:
    """Yield the problems of a split without end."""
    index = 0
    while True:
        yield make_problem(split, seed, index, operations=operations, wording=wording)
        index += 1


def make_drill(
    drill: Drill, seed: int, index: int, *, wording: Wording = "target", bystanders: bool = True
) -> Example:
    """Make an exercise of one skill: written arithmetic, or finding one fact among several.

    With ``bystanders`` there are up to six more people in a recall drill to be asked about.
    """
    rng = Random(f"drill/{drill}/{seed}/{index}")
    identifier = f"{drill}-{seed}-{index}"
    return (
        _arithmetic_drill(rng, identifier)
        if drill == "arithmetic"
        else _recall_drill(rng, identifier, wording, bystanders)
    )


def _arithmetic_drill(rng: Random, identifier: str) -> Example:
    operator: Operator = rng.choices(get_args(Operator), (1, 1.5, 1, 2))[0]
    if operator in "+-":
        a = draw_number(rng, 2, MAX_VALUE - 2)
        b = draw_number(rng, 2, MAX_VALUE - a)
        a, b = (a + b, b) if operator == "-" else (a, b)
    else:
        b = rng.randint(2, 9)
        a = rng.randint(2, MAX_VALUE // b)
        a = a * b if operator == "/" else a
    working = work_out(a, operator, b)
    question = rng.choice(words.CALCULATION_QUESTIONS).format(expression=f"{a}{operator}{b}")
    step = words.CALCULATION_STEP.format(work=working.text, value=working.value)
    answer = words.ANSWER_STEP.format(value=working.value)
    return Example(identifier, question, (step, answer), working.value, 1, (), (), f"{a}{operator}{b}")


def _recall_drill(rng: Random, identifier: str, wording: Wording, bystanders: bool) -> Example:
    while True:
        others = rng.randint(1, 6) if bystanders else 0
        story = tell_story(rng, rng.randint(0, 1), wording, rng.randint(1, 4), bystanders=others)
        if _split_of(story.skeleton) == "train":
            break
    example = _example(identifier, story)
    if story.plan:
        return example
    return replace(example, steps=(recall_step(story.latest), *example.steps))


def recall_step(quantity: Quantity) -> str:
    """Say how much somebody has."""
    return sentence(words.RECALL_STEP, new=quantity.owner, value=quantity.value, unit=quantity.unit)
