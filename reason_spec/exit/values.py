"""What a growing text says of one value, and the row of features made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import log10
from typing import Final, NamedTuple

from reason_spec.exit.reading import NUM_OPERATIONS, Question, Value

_FADING: Final = 0.9
"""A value's weight, for the order of candidates, falls by this factor with each step without a mention."""
_NEVER: Final = 99.0
_RECENT_STEPS: Final = 5
VALUE_FEATURES: Final = (
    "in_question mentions results concluded answered boxed operands since_first since_last first_share "
    "steps result_steps asked asked_last after_check since_result calculations affirmed since_answered "
    "now_mentions now_results now_concluded now_answered now_boxed now_asked now_operands now_stated "
    "now_unit now_asked_only is_last_conclusion is_last_result is_last_number recent_conclusions weight "
    "weight_lead rank share operand_share fraction negative magnitude above_question later_results "
    "density unused_others unused_named unused_recent coverage missing coverage_lead first_coverage "
    "children larger_children depth depth_lead asked_only unit_share unit told money adds subtracts "
    "multiplies divides revisited new_results_since new_results_now revisited_excess most_coverage"
).split()


@dataclass(slots=True)
class StepMentions:
    """What the last step says of a value."""

    mentions: int = 0
    results: int = 0
    concluded: int = 0
    answered: int = 0
    boxed: int = 0
    asked: float = 0.0
    operands: int = 0
    stated: int = 0
    unit: int = 0
    asked_only: float = 0.0


@dataclass(slots=True)
class ValueRecord:
    """What the text so far says of a value; steps are counted from 0."""

    first: int
    last: int
    text: str
    mentions: int = 0
    results: int = 0
    concluded: int = 0
    answered: int = 0
    boxed: int = 0
    operands: int = 0
    affirmed: int = 0
    unit: int = 0
    with_money: int = 0
    steps: int = 0
    result_steps: int = 0
    after_check: int = 0
    first_result: int | None = None
    last_answered: int | None = None
    asked: float = 0.0
    asked_last: float = 0.0
    asked_only: float = 0.0
    told: float = 0.0
    calculations: set[str] = field(default_factory=set)
    operations: tuple[bool, ...] = (False,) * NUM_OPERATIONS
    sources: set[Fraction] = field(default_factory=set)
    """The numbers of the question that it was derived from."""
    first_sources: int | None = None
    depth: int = 0
    children: set[Value] = field(default_factory=set)
    larger_children: int = 0
    is_used: bool = False
    """Another value was first stated, or came out, after it in a sentence."""
    revisited: set[Fraction] = field(default_factory=set)
    new_results_since: int = 0
    new_results_now: int = 0

    @property
    def is_candidate(self) -> bool:
        return bool(self.results or self.concluded or self.answered or self.boxed)

    def weight(self, step: int) -> float:
        named = 2 * self.boxed + 2 * self.answered + self.concluded + self.results + self.after_check
        return named * _FADING ** (step - self.last)


class ValueRank(NamedTuple):
    """A value among the others after the last step: its weight, rank and part in the recent conclusions."""

    is_last_conclusion: bool
    is_last_result: bool
    is_last_number: bool
    recent_conclusions: int
    weight: float
    lead: float
    rank: int


class TextTotals(NamedTuple):
    """What a value is compared with: all values of the text so far."""

    total_mentions: int
    most_sources: int
    most_depth: int
    unused: dict[Value, ValueRecord]
    """Derived values from which no other was derived; after the last calculation only the answer is one."""
    result_firsts: list[int]


def value_row(
    value: Value,
    record: ValueRecord,
    now: StepMentions,
    rank: ValueRank,
    totals: TextTotals,
    question: Question,
    step: int,
) -> tuple[float, ...]:
    """Return the features of a value after a step, in the order of ``VALUE_FEATURES``."""
    number = value if isinstance(value, Fraction) else None
    shares = (record.mentions / totals.total_mentions, record.operands / max(1, record.mentions))
    row = (
        number in question.numbers,
        *_history(record, step),
        *(getattr(now, name) for name in StepMentions.__slots__),
        *rank,
        *shares,
        *_form(number, question),
        sum(first > record.first for first in totals.result_firsts),
        record.steps / (step - record.first + 1),
        *_unused(value, totals, step),
        *_derivation(record, totals, question),
        *_relation(record, question),
        *_since(record, question),
        totals.most_sources / question.num_origins,
    )
    return tuple(map(float, row))


def _history(record: ValueRecord, step: int) -> tuple[float, ...]:
    return (
        record.mentions,
        record.results,
        record.concluded,
        record.answered,
        record.boxed,
        record.operands,
        step - record.first,
        step - record.last,
        record.first / (step + 1),
        record.steps,
        record.result_steps,
        record.asked,
        record.asked_last,
        record.after_check,
        -1 if record.first_result is None else step - record.first_result,
        len(record.calculations),
        record.affirmed,
        _NEVER if record.last_answered is None else step - record.last_answered,
    )


def _form(number: Fraction | None, question: Question) -> tuple[float, ...]:
    if number is None:
        return (False, False, 0.0, False)
    magnitude = min(6.0, log10(min(1e7, abs(float(number))) + 1))
    return (number.denominator != 1, number < 0, magnitude, number > question.most_number)


def _unused(value: Value, totals: TextTotals, step: int) -> tuple[float, ...]:
    others = [record for other, record in totals.unused.items() if other != value]
    named = sum(record.concluded > 0 or record.mentions > 1 for record in others)
    return (len(others), named, sum(step - record.first < _RECENT_STEPS for record in others))


def _derivation(record: ValueRecord, totals: TextTotals, question: Question) -> tuple[float, ...]:
    num_sources = len(record.sources)
    return (
        num_sources / question.num_origins,
        question.num_origins - num_sources,
        num_sources - totals.most_sources,
        (record.first_sources or 0) / question.num_origins,
        len(record.children),
        record.larger_children,
        record.depth,
        record.depth - totals.most_depth,
    )


def _relation(record: ValueRecord, question: Question) -> tuple[float, ...]:
    return (
        record.asked_only,
        record.unit / max(1, record.mentions),
        record.unit,
        record.told,
        record.with_money / max(1, record.mentions) - question.asks_money,
        *record.operations,
    )


def _since(record: ValueRecord, question: Question) -> tuple[float, ...]:
    return (
        len(record.revisited) / question.num_origins,
        record.new_results_since,
        record.new_results_now,
        len(record.revisited) - record.new_results_since,
    )
