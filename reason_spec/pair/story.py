"""Grow the story of a word problem: facts, planned steps and a question, one operation after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from reason_spec.pair import wording as words
from reason_spec.pair.arithmetic import Calculation, Operator, work_out
from reason_spec.pair.wording import Kind, Wording

MAX_VALUE = 999
# fmt: off
OPERATORS: Mapping[Kind, Operator] = {
    "more": "+", "fewer": "-", "times": "*", "fraction": "/", "percent": "/", "total": "+", "give": "-",
    "get": "+", "exchange": "-", "spend": "/", "share": "/", "price": "*", "rate": "*", "compare": "-",
    "together": "+",
}
"""Operator of the first calculation of each kind."""
# The order of the kinds decides the draws of a seed.
_KIND_WEIGHTS: Mapping[Kind, float] = {
    "more": 2.0, "fewer": 2.0, "times": 2.0, "fraction": 1.5, "total": 1.5, "give": 1.3, "get": 1.3,
    "exchange": 0.8, "spend": 0.8, "share": 1.5, "price": 1.0, "rate": 1.2, "percent": 1.0,
}
# fmt: on
_CHANGES: frozenset[Kind] = frozenset({"give", "get", "exchange", "spend", "share", "price"})
"""Kinds that change an owner's quantity, so that their facts must stay in order."""
_SHUFFLED_SHARE = 0.25
_FINAL_QUESTION_SHARE, _MOST_FINAL_QUESTIONS = 0.3, 0.6


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step before it is put into words: who, and which numbers.

    ``a`` and ``b`` are the numbers of the first calculation, ``m`` is the second number of a change
    in two parts, and ``k`` is the number that the fact gives, a percentage for ``percent``.
    """

    kind: Kind
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
        return sentence(self.phrasing, work=works[0], work2=work2, value=value, **numbers, **self.names)


@dataclass(frozen=True, slots=True)
class Quantity:
    """How many of what somebody has."""

    owner: str
    unit: str
    value: int


@dataclass(frozen=True, slots=True)
class _Draw:
    """The numbers of one operation on a known quantity; ``ratio`` is ``k`` as a word."""

    k: int
    b: int
    m: int = 0
    ratio: str = ""


@dataclass(slots=True)
class Story:
    """A problem while it grows; ``latest`` is the quantity that the next operation builds on.

    ``two_sources`` multiplies the chances of operations on two quantities. ``final_answer`` is that of a
    final question about two quantities.
    """

    rng: Random
    wording: Wording
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
    final_answer: int | None = None

    @property
    def answer(self) -> int:
        return self.latest.value if self.final_answer is None else self.final_answer

    @property
    def skeleton(self) -> str:
        """The kinds and given numbers in the order in which they arose."""
        return f"{','.join(step.kind for step in self.plan)}|{','.join(map(str, self.numbers))}"


def sentence(template: str, **values: object) -> str:
    text = template.format(**values)
    return text[0].upper() + text[1:]


def draw_number(rng: Random, low: int, high: int) -> int:
    """Draw a number in ``low..high``; small ones are more frequent."""
    ceiling = rng.choice((12, 30, 30, 99, 99, 250))
    return rng.randint(low, max(low, min(high, ceiling)))


def _add_base_fact(story: Story, quantity: Quantity) -> None:
    story.facts.append(_base_fact(story, quantity))
    story.numbers.append(quantity.value)


def _base_fact(story: Story, quantity: Quantity) -> str:
    template = story.rng.choice(words.BASE_FACTS)
    return sentence(template, new=quantity.owner, value=quantity.value, unit=quantity.unit)


def _begin(rng: Random, wording: Wording, two_sources: float) -> Story:
    names, nouns, groups = list(words.NAMES), list(words.NOUNS), list(words.GROUPS)
    for pool in (names, nouns, groups):
        rng.shuffle(pool)
    latest = Quantity(names.pop(), nouns.pop(), draw_number(rng, 2, MAX_VALUE))
    story = Story(rng, wording, names, groups, nouns, latest, two_sources)
    _add_base_fact(story, latest)
    return story


def _draw(rng: Random, kind: Kind, latest: Quantity) -> _Draw | None:
    """Draw the numbers of an operation of ``kind`` on ``latest``; None where none fit."""
    value = latest.value
    if kind in ("more", "get") and value <= MAX_VALUE - 2:
        k = draw_number(rng, 2, MAX_VALUE - value)
        return _Draw(k, k)
    if kind in ("fewer", "give") and value >= 4:
        k = draw_number(rng, 2, value - 1)
        return _Draw(k, k)
    if kind == "exchange" and 4 <= value <= MAX_VALUE - 2:
        k = draw_number(rng, 2, value - 1)
        return _Draw(k, k, m=draw_number(rng, 2, MAX_VALUE - value + k))
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


def _second_source(story: Story, limit: int) -> Quantity | None:
    """Return an earlier quantity of the same unit, or a new one with a fact of its own."""
    known = [q for q in story.earlier if q.unit == story.latest.unit and q.value <= limit]
    if known and story.rng.random() < 0.8:
        return story.rng.choice(known)
    if limit < 2:
        return None
    new = Quantity(story.names.pop(), story.latest.unit, draw_number(story.rng, 2, limit))
    _add_base_fact(story, new)
    story.earlier.append(new)
    return new


def _add_step(story: Story, kind: Kind, names: Mapping[str, str], draw: _Draw) -> int:
    """Plan the step of one operation on the latest quantity; returns its result."""
    weights = words.step_weights(kind, story.wording)
    phrasing = story.rng.choices(words.STEPS[kind], weights)[0]
    step = PlannedStep(kind, phrasing, names, story.latest.value, draw.b, draw.k, draw.m)
    story.plan.append(step)
    return step.value


def _add_fact(story: Story, kind: Kind, names: Mapping[str, str], draw: _Draw) -> None:
    template = story.rng.choice(words.FACTS[kind])
    story.facts.append(sentence(template, k=draw.k, m=draw.m, ratio=draw.ratio, **names))


def _add_operation(story: Story) -> None:
    """Add one operation on the latest quantity: its fact and its step."""
    weights = {**_KIND_WEIGHTS, "total": _KIND_WEIGHTS["total"] * story.two_sources}
    while True:
        kind = story.rng.choices(list(weights), list(weights.values()))[0]
        if kind == "total":
            if _add_total(story):
                return
            continue
        draw = _draw(story.rng, kind, story.latest)
        if draw is not None:
            _add_from_one(story, kind, draw)
            return


def _add_total(story: Story) -> bool:
    old = story.latest
    other = _second_source(story, MAX_VALUE - old.value)
    if other is None:
        return False
    names = {"old": old.owner, "other": other.owner, "new": story.names.pop(), "unit": old.unit}
    draw = _Draw(other.value, other.value)
    _add_fact(story, "total", names, draw)
    story.earlier.append(old)
    story.latest = Quantity(names["new"], old.unit, _add_step(story, "total", names, draw))
    return True


def _add_from_one(story: Story, kind: Kind, draw: _Draw) -> None:
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
    rng: Random, wording: Wording, kind: Kind, old: Quantity, other: Quantity
) -> tuple[str, PlannedStep]:
    """Ask for the sum or the difference of two quantities; return the question and the step."""
    compares = kind == "compare"
    if compares and other.value > old.value:
        old, other = other, old
    names = {"old": old.owner, "other": other.owner, "unit": old.unit}
    questions = words.COMPARE_QUESTIONS if compares else words.TOGETHER_QUESTIONS
    question = sentence(rng.choice(questions), **names)
    phrasing = rng.choices(words.STEPS[kind], words.step_weights(kind, wording))[0]
    return question, PlannedStep(kind, phrasing, names, old.value, other.value, other.value)


def ask_about(rng: Random, quantity: Quantity) -> str:
    """Ask for one quantity."""
    return sentence(rng.choice(words.QUESTIONS), new=quantity.owner, unit=quantity.unit)


def _add_final_question(story: Story) -> bool:
    """End with a comparison or a sum of two quantities as the last operation."""
    kind: Kind = story.rng.choice(("compare", "together"))
    old = story.latest
    other = _second_source(story, MAX_VALUE if kind == "compare" else MAX_VALUE - old.value)
    if other is None or (kind == "compare" and other.value == old.value):
        return False
    story.question, step = ask_about_two(story.rng, story.wording, kind, old, other)
    story.plan.append(step)
    story.final_answer = step.value
    return True


def _add_bystander(story: Story) -> None:
    """Add a fact about somebody with the same unit who does not matter otherwise."""
    quantity = Quantity(story.names.pop(), story.latest.unit, draw_number(story.rng, 2, MAX_VALUE))
    story.facts.insert(story.rng.randint(0, len(story.facts)), _base_fact(story, quantity))
    story.earlier.append(quantity)


def _add_distractor(story: Story) -> None:
    unit = story.rng.choice((story.latest.unit, story.nouns.pop()))
    value = draw_number(story.rng, 2, MAX_VALUE)
    template = story.rng.choice(words.DISTRACTORS)
    text = sentence(template, new=story.names.pop(), value=value, unit=unit)
    story.facts.insert(story.rng.randint(0, len(story.facts)), text)


def tell_story(
    rng: Random,
    operations: int,
    wording: Wording,
    distractors: int,
    *,
    two_sources: float = 1.0,
    bystanders: int = 0,
) -> Story:
    """Draw a whole story; distractors and bystanders are facts that the question does not need."""
    story = _begin(rng, wording, two_sources)
    asks_final = rng.random() < min(_MOST_FINAL_QUESTIONS, _FINAL_QUESTION_SHARE * two_sources)
    for number in range(operations):
        last = number == operations - 1
        if not (last and asks_final and _add_final_question(story)):
            _add_operation(story)
    if not story.question:
        story.question = ask_about(rng, story.latest)
    for _ in range(distractors):
        _add_distractor(story)
    for _ in range(bystanders):
        _add_bystander(story)
    if not _CHANGES & {step.kind for step in story.plan} and rng.random() < _SHUFFLED_SHARE:
        rng.shuffle(story.facts)
    return story
