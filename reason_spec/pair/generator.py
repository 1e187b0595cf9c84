"""Word problems in the form of GSM8K with worked steps, made to any number from a seed.

Example ``index`` of a seed is drawn from a random stream of its own, so any part of a data set can
be made again without the rest. Splits are disjoint by construction: the numbers and kinds of a
problem, without its words, are hashed into buckets, and each split owns its buckets. The shifted
test tells its problems in phrasings and with kinds that training never shows.

    python -m reason_spec.pair.generator --n 40 --split test --seed 1 --output problems.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias, get_args

from reason_spec.pair import wording as words
from reason_spec.pair.arithmetic import Calculation, Operator, work_out
from reason_spec.pair.wording import Family, Kind, NewKind, Wording

Split: TypeAlias = Literal["train", "validation", "test", "shifted"]
Drill: TypeAlias = Literal["arithmetic", "recall"]
AnyKind: TypeAlias = Kind | NewKind

STEP_SEPARATOR = "\n\n"
MAX_VALUE = 999
OPERATORS: Mapping[AnyKind, Operator] = {
    "more": "+",
    "fewer": "-",
    "times": "*",
    "fraction": "/",
    "percent": "/",
    "total": "+",
    "give": "-",
    "get": "+",
    "exchange": "-",
    "spend": "/",
    "share": "/",
    "price": "*",
    "rate": "*",
    "compare": "-",
    "together": "+",
    "inverse": "-",
    "gap": "-",
    "twice_and_more": "*",
}
"""Operator of the first calculation of each kind."""
_BUCKETS = 100
_VALIDATION_BUCKETS = range(4)
_TEST_BUCKETS = range(4, 12)
_DISTRACTOR_SHARE = 0.25
_SHUFFLED_SHARE = 0.25
_FINAL_QUESTION_SHARE, _MOST_FINAL_QUESTIONS = 0.3, 0.6
_KIND_WEIGHTS: Mapping[AnyKind, float] = {
    "more": 2.0,
    "fewer": 2.0,
    "times": 2.0,
    "fraction": 1.5,
    "total": 1.5,
    "give": 1.3,
    "get": 1.3,
    "exchange": 0.8,
    "spend": 0.8,
    "share": 1.5,
    "price": 1.0,
    "rate": 1.2,
    "percent": 1.0,
}
_SHIFTED_WEIGHTS: Mapping[AnyKind, float] = {
    **_KIND_WEIGHTS,
    "inverse": 2.0,
    "gap": 2.0,
    "twice_and_more": 2.0,
}
_CHANGES: frozenset[AnyKind] = frozenset({"give", "get", "exchange", "spend", "share", "price"})
"""Kinds that change what somebody has, so that their facts must stay in order."""
_TWO_SOURCES: frozenset[AnyKind] = frozenset({"total", "gap"})


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step before it is put into words: who, and which numbers.

    ``a`` and ``b`` are the numbers of the first calculation, ``m`` is the second number of a change
    in two parts, and ``k`` is the number that the fact gives, a percentage for ``percent``.
    """

    kind: AnyKind
    phrasing: str
    names: Mapping[str, str]
    a: int
    b: int
    k: int
    m: int = 0

    @property
    def calculations(self) -> tuple[Calculation, ...]:
        """The calculations of the step, in order; the value of the last is its result."""
        first = Calculation(self.a, OPERATORS[self.kind], self.b)
        if self.kind == "exchange":
            return (first, Calculation(first.value, "+", self.m))
        if self.kind == "spend":
            return (first, Calculation(self.a, "-", first.value))
        if self.kind == "twice_and_more":
            return (first, Calculation(first.value, "+", self.k))
        return (first,)

    @property
    def value(self) -> int:
        return self.calculations[-1].value

    def text(self) -> str:
        return self.put(tuple(work_out(*calculation).text for calculation in self.calculations), self.value)

    def put(self, works: Sequence[str], value: int) -> str:
        """Put the step into words with the workings and the result given, which may be wrong."""
        work2 = works[1] if len(works) > 1 else ""
        numbers = {"x": self.a, "y": self.b, "k": self.k, "m": self.m}
        return _sentence(self.phrasing, work=works[0], work2=work2, value=value, **numbers, **self.names)


@dataclass(frozen=True, slots=True)
class Quantity:
    """How many of what somebody has."""

    owner: str
    unit: str
    value: int


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

    @property
    def kinds(self) -> tuple[AnyKind, ...]:
        return tuple(step.kind for step in self.plan)


@dataclass(frozen=True, slots=True)
class _Draw:
    """The numbers of one operation on a known quantity; ``ratio`` is ``k`` as a word."""

    k: int
    b: int
    m: int = 0
    ratio: str = ""


@dataclass(slots=True)
class _Story:
    """A problem while it grows; ``latest`` is the quantity the next operation builds on.

    ``two_sources`` multiplies the chances of operations that take two quantities, and ``answer`` is
    that of a final question, where it is not the latest quantity.
    """

    rng: Random
    wording: Wording
    family: Family
    names: list[str]
    groups: list[str]
    nouns: list[str]
    latest: Quantity
    two_sources: float = 1.0
    earlier: list[Quantity] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    plan: list[PlannedStep] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    question: str = ""
    answer: int | None = None

    @property
    def kinds(self) -> list[AnyKind]:
        return [step.kind for step in self.plan]


def _sentence(template: str, **values: object) -> str:
    text = template.format(**values)
    return text[0].upper() + text[1:]


def _number(rng: Random, low: int, high: int) -> int:
    """Draw a number in ``low..high``, small ones more often."""
    ceiling = rng.choice((12, 30, 30, 99, 99, 250))
    return rng.randint(low, max(low, min(high, ceiling)))


def _add_base_fact(story: _Story, quantity: Quantity) -> None:
    story.facts.append(_base_fact(story, quantity))
    story.numbers.append(quantity.value)


def _base_fact(story: _Story, quantity: Quantity) -> str:
    template = story.rng.choice(story.family.base_facts)
    return _sentence(template, new=quantity.owner, value=quantity.value, unit=quantity.unit)


def _begin(rng: Random, wording: Wording, family: Family, two_sources: float) -> _Story:
    names, nouns, groups = list(words.NAMES), list(words.NOUNS), list(words.GROUPS)
    for pool in (names, nouns, groups):
        rng.shuffle(pool)
    latest = Quantity(names.pop(), nouns.pop(), _number(rng, 2, MAX_VALUE))
    story = _Story(rng, wording, family, names, groups, nouns, latest, two_sources)
    _add_base_fact(story, latest)
    return story


def _draw(rng: Random, kind: AnyKind, latest: Quantity) -> _Draw | None:
    """Draw the numbers of an operation of ``kind`` on ``latest``; None where none fit."""
    value = latest.value
    if kind in ("more", "get") and value <= MAX_VALUE - 2:
        k = _number(rng, 2, MAX_VALUE - value)
        return _Draw(k, k)
    if kind in ("fewer", "give", "inverse") and value >= 4:
        k = _number(rng, 2, value - 1)
        return _Draw(k, k)
    if kind == "exchange" and 4 <= value <= MAX_VALUE - 2:
        k = _number(rng, 2, value - 1)
        return _Draw(k, k, m=_number(rng, 2, MAX_VALUE - value + k))
    if kind == "twice_and_more" and 2 * value <= MAX_VALUE - 2:
        return _Draw(_number(rng, 2, MAX_VALUE - 2 * value), 2)
    if kind in ("times", "price", "rate") and 2 * value <= MAX_VALUE:
        if kind == "price" and latest.unit == words.DOLLARS:
            return None
        k = rng.randint(2, min(9, MAX_VALUE // value))
        return _Draw(k, k, ratio=words.MULTIPLES[k])
    if kind in ("fraction", "spend", "share"):
        divisors = range(2, 10) if kind == "share" else words.FRACTIONS
        fitting = [k for k in divisors if value % k == 0]
        if fitting:
            k = rng.choice(fitting)
            return _Draw(k, k, ratio=words.FRACTIONS.get(k, ""))
    if kind == "percent":
        percents = [p for p, divisor in words.PERCENTS.items() if value % divisor == 0]
        if percents:
            percent = rng.choice(percents)
            return _Draw(percent, words.PERCENTS[percent])
    return None


def _second_source(story: _Story, limit: int) -> Quantity | None:
    """Return an earlier quantity of the same unit, or a new one with a fact of its own."""
    known = [q for q in story.earlier if q.unit == story.latest.unit and q.value <= limit]
    if known and story.rng.random() < 0.8:
        return story.rng.choice(known)
    if limit < 2:
        return None
    new = Quantity(story.names.pop(), story.latest.unit, _number(story.rng, 2, limit))
    _add_base_fact(story, new)
    story.earlier.append(new)
    return new


def _add_step(story: _Story, kind: AnyKind, names: Mapping[str, str], draw: _Draw) -> int:
    """Plan the step of one operation on the latest quantity; returns its result."""
    weights = words.step_weights(kind, story.wording)
    phrasing = story.rng.choices(words.STEPS[kind], weights)[0]
    step = PlannedStep(kind, phrasing, names, story.latest.value, draw.b, draw.k, draw.m)
    story.plan.append(step)
    return step.value


def _add_fact(story: _Story, kind: AnyKind, names: Mapping[str, str], draw: _Draw) -> None:
    template = story.rng.choice(story.family.facts[kind])
    story.facts.append(_sentence(template, k=draw.k, m=draw.m, ratio=draw.ratio, **names))


def _add_operation(story: _Story) -> None:
    """Add one operation on the latest quantity: its fact and its step."""
    table = _SHIFTED_WEIGHTS if story.family is words.SHIFTED else _KIND_WEIGHTS
    kinds = list(table)
    weights = [
        weight * (story.two_sources if kind in _TWO_SOURCES else 1.0) for kind, weight in table.items()
    ]
    while True:
        kind = story.rng.choices(kinds, weights)[0]
        if kind in _TWO_SOURCES:
            if _add_from_two(story, kind):
                return
            continue
        draw = _draw(story.rng, kind, story.latest)
        if draw is not None:
            _add_from_one(story, kind, draw)
            return


def _add_from_two(story: _Story, kind: AnyKind) -> bool:
    old = story.latest
    other = _second_source(story, old.value - 1 if kind == "gap" else MAX_VALUE - old.value)
    if other is None:
        return False
    names = {"old": old.owner, "other": other.owner, "new": story.names.pop(), "unit": old.unit}
    draw = _Draw(other.value, other.value)
    _add_fact(story, kind, names, draw)
    story.earlier.append(old)
    story.latest = Quantity(names["new"], old.unit, _add_step(story, kind, names, draw))
    return True


def _add_from_one(story: _Story, kind: AnyKind, draw: _Draw) -> None:
    old = story.latest
    group = story.groups.pop() if kind == "share" else ""
    if kind == "share":
        owner = words.GROUPS[group]
    elif kind in _CHANGES:
        owner = old.owner
    else:
        owner = story.names.pop()
        story.earlier.append(old)
    story.numbers += [draw.k, draw.m] if kind == "exchange" else [draw.k]
    names = {"old": old.owner, "new": owner, "unit": old.unit, "group": group}
    _add_fact(story, kind, names, draw)
    value = _add_step(story, kind, names, draw)
    story.latest = Quantity(owner, words.DOLLARS if kind == "price" else old.unit, value)


def ask_about_two(
    rng: Random, wording: Wording, kind: Kind, old: Quantity, other: Quantity, family: Family = words.TRAINED
) -> tuple[str, PlannedStep]:
    """Ask for the sum or the difference of two quantities; return the question and the step."""
    compares = kind == "compare"
    if compares and other.value > old.value:
        old, other = other, old
    names = {"old": old.owner, "other": other.owner, "unit": old.unit}
    questions = family.compare_questions if compares else family.together_questions
    question = _sentence(rng.choice(questions), **names)
    phrasing = rng.choices(words.STEPS[kind], words.step_weights(kind, wording))[0]
    return question, PlannedStep(kind, phrasing, names, old.value, other.value, other.value)


def ask_about(rng: Random, quantity: Quantity, family: Family = words.TRAINED) -> str:
    """Ask for one quantity."""
    return _sentence(rng.choice(family.questions), new=quantity.owner, unit=quantity.unit)


def _add_final_question(story: _Story) -> bool:
    """End with a comparison or a sum of two quantities as the last operation."""
    kind: Kind = story.rng.choice(("compare", "together"))
    old = story.latest
    other = _second_source(story, MAX_VALUE if kind == "compare" else MAX_VALUE - old.value)
    if other is None or (kind == "compare" and other.value == old.value):
        return False
    story.question, step = ask_about_two(story.rng, story.wording, kind, old, other, story.family)
    story.plan.append(step)
    story.answer = step.value
    return True


def _add_bystander(story: _Story) -> None:
    """Tell of somebody who has some of the same things and of whom no more is told."""
    quantity = Quantity(story.names.pop(), story.latest.unit, _number(story.rng, 2, MAX_VALUE))
    story.facts.insert(story.rng.randint(0, len(story.facts)), _base_fact(story, quantity))
    story.earlier.append(quantity)


def _add_distractor(story: _Story) -> None:
    unit = story.rng.choice((story.latest.unit, story.nouns.pop()))
    value = _number(story.rng, 2, MAX_VALUE)
    template = story.rng.choice(story.family.distractors)
    text = _sentence(template, new=story.names.pop(), value=value, unit=unit)
    story.facts.insert(story.rng.randint(0, len(story.facts)), text)


def _tell(
    rng: Random,
    operations: int,
    wording: Wording,
    distractors: int,
    family: Family,
    *,
    two_sources: float = 1.0,
    bystanders: int = 0,
) -> _Story:
    story = _begin(rng, wording, family, two_sources)
    asks_final = rng.random() < min(_MOST_FINAL_QUESTIONS, _FINAL_QUESTION_SHARE * two_sources)
    for number in range(operations):
        last = number == operations - 1
        if not (last and asks_final and _add_final_question(story)):
            _add_operation(story)
    if not story.question:
        story.question = ask_about(rng, story.latest, family)
    for _ in range(distractors):
        _add_distractor(story)
    for _ in range(bystanders):
        _add_bystander(story)
    if not _CHANGES & set(story.kinds) and rng.random() < _SHUFFLED_SHARE:
        rng.shuffle(story.facts)
    return story


def _skeleton(story: _Story) -> str:
    """Name the kinds and given numbers in the order in which they arose."""
    return f"{','.join(story.kinds)}|{','.join(map(str, story.numbers))}"


def _split_of(skeleton: str) -> Split:
    bucket = zlib.crc32(skeleton.encode()) % _BUCKETS
    if bucket in _VALIDATION_BUCKETS:
        return "validation"
    return "test" if bucket in _TEST_BUCKETS else "train"


def _example(identifier: str, story: _Story) -> Example:
    answer = story.latest.value if story.answer is None else story.answer
    return Example(
        id=identifier,
        question=" ".join([*story.facts, story.question]),
        steps=(*(step.text() for step in story.plan), words.ANSWER_STEP.format(value=answer)),
        answer=answer,
        operations=len(story.plan),
        plan=tuple(story.plan),
        quantities=(*story.earlier, story.latest),
        skeleton=_skeleton(story),
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
    many of them learns sooner to look up what is told far back.
    """
    rng = Random(f"problem/{split}/{seed}/{index}")
    count = rng.randint(*operations)
    # Shifted problems share no phrasing with training, and their numbers are those of the test split.
    family, bucket = (words.SHIFTED, "test") if split == "shifted" else (words.TRAINED, split)
    while True:
        distractors = int(rng.random() < _DISTRACTOR_SHARE)
        story = _tell(rng, count, wording, distractors, family, two_sources=two_sources)
        if _split_of(_skeleton(story)) == bucket:
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
        a = _number(rng, 2, MAX_VALUE - 2)
        b = _number(rng, 2, MAX_VALUE - a)
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
        story = _tell(rng, rng.randint(0, 1), wording, rng.randint(1, 4), words.TRAINED, bystanders=others)
        if _split_of(_skeleton(story)) == "train":
            break
    example = _example(identifier, story)
    if story.plan:
        return example
    return replace(example, steps=(recall_step(story.latest), *example.steps))


def recall_step(quantity: Quantity) -> str:
    """Say how much somebody has."""
    return _sentence(words.RECALL_STEP, new=quantity.owner, value=quantity.value, unit=quantity.unit)


def main(argv: Sequence[str] | None = None) -> None:
    """Write fresh problems as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m reason_spec.pair.generator", description=main.__doc__)
    parser.add_argument("--n", type=int, default=40, help="number of problems (default: %(default)s)")
    parser.add_argument("--split", choices=get_args(Split), default="test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-operations", type=int, default=1)
    parser.add_argument("--max-operations", type=int, default=8)
    parser.add_argument("--output", type=Path, help="file to write (default: standard output)")
    arguments = parser.parse_args(argv)
    span = (arguments.min_operations, arguments.max_operations)
    if not 1 <= span[0] <= span[1] <= 12:
        parser.error(f"operations must satisfy 1 <= min <= max <= 12, not {span[0]}..{span[1]}")
    lines = [
        json.dumps({"id": p.id, "question": p.question, "answer": str(p.answer), "operations": p.operations})
        for p in islice(problems(arguments.split, arguments.seed, operations=span), arguments.n)
    ]
    text = "".join(line + "\n" for line in lines)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
