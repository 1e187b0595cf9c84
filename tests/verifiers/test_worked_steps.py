"""Worked steps: one calculation in other words is accepted, another number, person or operation never."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import VerificationContext
from reason_spec.verifiers.encoder import SentenceEncoder
from reason_spec.verifiers.numbers import compare_numbers
from reason_spec.verifiers.semantic import SemanticVerifier
from tests.verifiers.written_arithmetic import NOTATIONS, Calculation, Notation, calculations, write

NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Hugo", "Mia", "Omar", "Will", "Zoe")
UNITS = ("cards", "apples", "coins", "books", "stamps")

ONE_SOURCE: dict[str, tuple[str, ...]] = {
    "+": (
        "For {new} we add {b} to {old}: {work}. {new} has {value} {unit}.",
        "{new} has {b} more than {old}, {work}. So {new} has {value} {unit}.",
        "Since {new} owns {b} {unit} more than {old}: {work}. That makes {value} {unit} for {new}.",
        "We begin with what {old} has and add {b}, {work}. So {new} has {value} {unit}.",
        "{old} has {b} fewer {unit} than {new}: {work}. {new} has {value} {unit} now.",
    ),
    "-": (
        "For {new} we subtract {b} from {old}: {work}. {new} has {value} {unit}.",
        "{new} has {b} fewer than {old}, {work}. So {new} has {value} {unit}.",
        "We take {b} away from what {old} has, {work}. So {new} has {value} {unit}.",
        "{old} has {b} more {unit} than {new}: {work}. {new} has {value} {unit} now.",
    ),
    "*": (
        "For {new} we multiply {old} by {b}: {work}. {new} has {value} {unit}.",
        "{new} has {b} times as many as {old}, {work}. So {new} has {value} {unit}.",
        "Multiplying what {old} has by {b}: {work}. That is {value} {unit} for {new}.",
    ),
    "/": (
        "For {new} we divide {old} by {b}: {work}. {new} has {value} {unit}.",
        "Dividing what {old} has by {b}, {work}. So {new} has {value} {unit}.",
        "We split the {unit} of {old} into {b} equal parts: {work}. {new} gets {value} {unit}.",
    ),
}
TWO_SOURCES: dict[str, tuple[str, ...]] = {
    "+": (
        "Adding {old}'s {a} and {new}'s {b}: {work}. Together they have {value} {unit}.",
        "{old} with {a} plus {new} with {b}, {work}. They have {value} {unit} in all.",
        "The sum of {a} from {old} and {b} from {new}: {work}. It is {value} {unit}.",
    ),
    "-": (
        "From {old} with {a} we take {new} with {b}: {work}. So {old} has {value} {unit} more.",
        "The difference between {old}'s {a} and {new}'s {b}: {work}. It is {value} {unit}.",
        "Comparing {old} with {a} and {new} with {b}, {work}. The difference is {value} {unit}.",
    ),
}
CORRECTIONS = (
    "Wait, that is wrong. ",
    "That is not right. ",
    "Wait, let me do this again. ",
    "No, there is a mistake in the last step. ",
    "Hmm, I made an error. ",
)


@dataclass(frozen=True)
class Told:
    """A calculation put into words, and what the words must not change."""

    calculation: Calculation
    new: str
    old: str
    unit: str
    template: str
    notation: Notation

    @property
    def text(self) -> str:
        working = write(self.calculation, self.notation)
        return self.with_working(working)

    def with_working(self, working: str, value: int | None = None) -> str:
        return self.template.format(
            new=self.new,
            old=self.old,
            unit=self.unit,
            a=self.calculation.a,
            b=self.calculation.b,
            work=working,
            value=self.calculation.value if value is None else value,
        )

    @property
    def context(self) -> str:
        return f"{self.old} has {self.calculation.a} {self.unit}."


@dataclass(frozen=True)
class TwoTold:
    first: Told
    second: Told


@st.composite
def told_twice(draw: st.DrawFn, two_sources: bool = False) -> TwoTold:
    calculation = draw(calculations("+-" if two_sources else "+-*/"))
    numbers = {calculation.a, calculation.b, calculation.value}
    assume(len(numbers) == 3 and min(numbers) > 1)
    new, old = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True))
    templates = (TWO_SOURCES if two_sources else ONE_SOURCE)[calculation.operator]
    unit = draw(st.sampled_from(UNITS))
    first = Told(calculation, new, old, unit, draw(st.sampled_from(templates)), draw(NOTATIONS))
    return TwoTold(first, replace(first, template=draw(st.sampled_from(templates)), notation=draw(NOTATIONS)))


ANY_KIND = told_twice() | told_twice(two_sources=True)
with_model = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)


def judge(minilm: SentenceEncoder, a: str, b: str, context: str) -> Verdict:
    steps = (Step(a, (), "draft", "boundary"), Step(b, (), "target", "boundary"))
    verifier = SemanticVerifier(minilm, deadline_seconds=120)
    return asyncio.run(verifier.verify(VerificationContext(context), *steps))


@with_model
@given(ANY_KIND)
def test_one_calculation_in_other_words_and_notation_is_accepted(
    minilm: SentenceEncoder, pair: TwoTold
) -> None:
    verdict = judge(minilm, pair.first.text, pair.second.text, pair.first.context)
    assert verdict.accepted, (verdict.reason, pair.first.text, pair.second.text)


@given(ANY_KIND)
def test_numbers_leave_only_the_words_of_one_calculation_open(pair: TwoTold) -> None:
    comparison = compare_numbers(pair.first.text, pair.second.text, pair.first.context)
    assert comparison.decision == "accept" or comparison.only_words_open, comparison.reason


@with_model
@given(ANY_KIND, st.data())
def test_a_number_changed_anywhere_is_never_accepted(
    minilm: SentenceEncoder, pair: TwoTold, data: st.DataObject
) -> None:
    text = pair.first.text
    calculation = pair.first.calculation
    number = data.draw(st.sampled_from(list(re.finditer(r"\d+", text))))
    in_step = {int(digits) for digits in re.findall(r"\d+", text)}
    known = in_step | {calculation.a, calculation.b, calculation.value}
    other = data.draw(st.integers(0, 1200).filter(lambda n: n not in known))
    changed = text[: number.start()] + str(other) + text[number.end() :]
    for a, b in ((changed, pair.second.text), (pair.second.text, changed)):
        assert not judge(minilm, a, b, pair.first.context).accepted, (a, b)


@with_model
@given(ANY_KIND)
def test_swapped_people_are_never_accepted(minilm: SentenceEncoder, pair: TwoTold) -> None:
    swapped = replace(pair.first, new=pair.first.old, old=pair.first.new).text
    for a, b in ((swapped, pair.second.text), (pair.second.text, swapped)):
        assert not judge(minilm, a, b, pair.first.context).accepted, (a, b)


@with_model
@given(ANY_KIND, st.sampled_from(NAMES))
def test_another_person_is_never_accepted(minilm: SentenceEncoder, pair: TwoTold, other: str) -> None:
    assume(other not in (pair.first.new, pair.first.old))
    for changed in (replace(pair.first, new=other), replace(pair.first, old=other)):
        assert not judge(minilm, changed.text, pair.second.text, pair.first.context).accepted, changed.text


@with_model
@given(ANY_KIND, st.sampled_from("+-*/"), NOTATIONS)
def test_another_operation_is_never_accepted_whatever_result_follows(
    minilm: SentenceEncoder, pair: TwoTold, operator: str, notation: Notation
) -> None:
    a, b = pair.first.calculation.a, pair.first.calculation.b
    other = Calculation(a, operator, b)
    assume(operator != pair.first.calculation.operator)
    assume((operator != "/" or a % b == 0) and (operator != "*" or b < 10) and other.value > 0)
    for value in (other.value, pair.first.calculation.value):
        changed = pair.first.with_working(write(other, notation), value)
        assert not judge(minilm, changed, pair.second.text, pair.first.context).accepted, changed


@with_model
@given(told_twice(), st.sampled_from(CORRECTIONS), st.sampled_from(CORRECTIONS))
def test_a_correction_agrees_with_a_correction_and_with_nothing_else(
    minilm: SentenceEncoder, pair: TwoTold, opening: str, other_opening: str
) -> None:
    first, second = pair.first.text, pair.second.text
    context = pair.first.context
    verdict = judge(minilm, opening + first, other_opening + second, context)
    assert verdict.accepted, (verdict.reason, opening + first, other_opening + second)
    for a, b in ((opening + first, second), (first, other_opening + second), (opening + first, first)):
        assert not judge(minilm, a, b, context).accepted, (a, b)
        assert compare_numbers(a, b, context).decision != "accept"


TWO_PARTS = (
    "{name} gives away {k} and then finds {m}: {first}, {second}. {name} has {value} {unit}.",
    "First {name} gives away {k}, {first}, and then finds {m}, {second}. Now {name} has {value} {unit}.",
    "Without {k} {name} has {first}. With {m} more, {second}. So {name} has {value} {unit}.",
)


@st.composite
def changed_twice(draw: st.DrawFn) -> tuple[Calculation, Calculation]:
    loss = draw(calculations("-"))
    # With 10 the borrowed column is the calculation itself, and the working is left open.
    assume(loss.a != 10)
    gain = Calculation(loss.value, "+", draw(st.integers(2, 300)))
    numbers = [loss.a, loss.b, loss.value, gain.b, gain.value]
    assume(len(set(numbers)) == len(numbers))
    return loss, gain


@with_model
@given(
    changed_twice(), st.sampled_from(TWO_PARTS), st.sampled_from(TWO_PARTS), NOTATIONS, NOTATIONS, st.data()
)
def test_two_calculations_in_one_step_are_held_together(
    minilm: SentenceEncoder,
    parts: tuple[Calculation, Calculation],
    template: str,
    other_template: str,
    notation: Notation,
    other_notation: Notation,
    data: st.DataObject,
) -> None:
    loss, gain = parts

    def tell(template: str, notation: Notation, loss: Calculation = loss, gain: Calculation = gain) -> str:
        first, second = write(loss, notation), write(gain, notation)
        numbers = {"k": loss.b, "m": gain.b, "value": gain.value}
        return template.format(name="Ben", unit="cards", first=first, second=second, **numbers)

    context = f"Ben has {loss.a} cards."
    right, other = tell(template, notation), tell(other_template, other_notation)
    verdict = judge(minilm, right, other, context)
    assert verdict.accepted, (verdict.reason, right, other)

    changed_loss = Calculation(loss.a, "-", loss.b + data.draw(st.sampled_from([-1, 1])))
    changed_gain = Calculation(gain.a, "+", gain.b + data.draw(st.sampled_from([-1, 1])))
    turned = Calculation(loss.a, "+", loss.b)
    for wrong in (
        tell(template, notation, gain=changed_gain),
        tell(template, notation, loss=turned, gain=Calculation(turned.value, "+", gain.b)),
        tell(template, notation, loss=changed_loss),
    ):
        if wrong != right:
            assert not judge(minilm, wrong, other, context).accepted, (wrong, other)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (
            "Ben gives away 5 and then finds 8: 52-5=47, 47+8=55.",
            "Ben finds 5, gives away 8: 52-5=47, 47+8=55.",
        ),
        ("Adding Ana's 47 and Ben's 8: 47+8=55.", "Adding Ana's 8 and Ben's 47: 47+8=55."),
        ("Wait, that is wrong. 47+8=55.", "Wait, that is right. 47+8=55."),
    ],
)
def test_words_that_contradict_the_same_arithmetic_are_refused(
    minilm: SentenceEncoder, a: str, b: str
) -> None:
    assert not judge(minilm, a, b, "").accepted
    assert not judge(minilm, b, a, "").accepted
