"""Features of the values that a growing text states, after each of its steps.

A value gets one row: counts and places of its mentions, how it was derived from the numbers of the question,
its sentences beside the question's words, what happened since it was first stated, the last step, and the
other values. `ExitReader` sees one step after another, so a row depends on the question and on the text up to
the step, never on what follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from math import log1p, log10
from typing import Final, NamedTuple

from reason_spec.exit.reading import (
    NUM_ASKED_KINDS,
    NUM_OPERATIONS,
    Mention,
    Question,
    Sentence,
    StepCues,
    Value,
    read_cues,
    read_sentences,
    words_of,
)

MOST_CANDIDATES: Final = 4
_FADING: Final = 0.9
"""A value's weight, for the order of candidates, falls by this factor with each step without a mention."""
_NEVER: Final = 99.0
_MOST_VALUES: Final = 400
"""Values that are followed. The work grows with their number, and only tables of numbers have more."""

VALUE_FEATURES: Final = (
    "in_question mentions results concluded answered boxed operands since_first since_last first_share "
    "steps result_steps asked asked_last after_check since_result calculations affirmed since_answered "
    "now_mentions now_results now_concluded now_answered now_boxed now_asked now_operands now_stated "
    "now_unit now_asked_only is_last_conclusion is_last_result is_last_number recent_conclusions weight "
    "weight_lead rank share operand_share fraction negative magnitude above_question later_results density "
    "coverage missing coverage_lead first_coverage children larger_children depth depth_lead asked_only "
    "unit_share unit told money adds subtracts multiplies divides revisited new_results_since "
    "new_results_now revisited_excess most_coverage"
).split()
TEXT_FEATURES: Final = (
    "step log_step question_numbers question_used question_sentences question_length asks_money asks_percent "
    + " ".join(f"asks_kind_{kind}" for kind in range(NUM_ASKED_KINDS))
    + " sentences words checks turns affirmations all_checks all_turns log_all_checks redundancy new_results "
    "step_results values streak conclusions_of_3 conclusions_of_6 says_answer says_boxed ends_question "
    "ends_colon numbers length log_length"
).split()
FEATURE_NAMES: Final = (*VALUE_FEATURES, *TEXT_FEATURES)


class Candidate(NamedTuple):
    """A value that the text may answer with: as it is written there, and its features."""

    value: Value
    text: str
    features: tuple[float, ...]


@dataclass(slots=True)
class _Now:
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
class _Record:
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
    revisited: set[Fraction] = field(default_factory=set)
    new_results_since: int = 0
    new_results_now: int = 0

    @property
    def is_candidate(self) -> bool:
        return bool(self.results or self.concluded or self.answered or self.boxed)

    def weight(self, step: int) -> float:
        named = 2 * self.boxed + 2 * self.answered + self.concluded + self.results + self.after_check
        return named * _FADING ** (step - self.last)


class ExitReader:
    """Reads the steps of one thinking; `read` returns the candidates after the step."""

    def __init__(self, question: str) -> None:
        self._question = Question.of(question)
        self._values: dict[Value, _Record] = {}
        self._step = -1
        self._used: set[Fraction] = set()
        self._seen_numbers: set[Value] = set()
        self._trigrams: set[tuple[str, ...]] = set()
        self._conclusions: list[Value] = []
        self._streak = 0
        self._num_checks = self._num_turns = self._num_characters = 0
        self._clear_step()

    def _clear_step(self) -> None:
        self._now: dict[Value, _Now] = {}
        self._recent: list[Value] = []
        self._stated: Value | None = None
        self._last_result: Value | None = None
        self._new_results = self._num_results = self._num_sentences = 0

    def read(self, step: str) -> list[Candidate]:
        """Take the next step and return the likeliest values, by `_Record.weight`, with their features."""
        self._step += 1
        self._num_characters += len(step.strip())
        self._clear_step()
        cues = read_cues(step)
        for sentence in read_sentences(step, self._question):
            self._num_sentences += 1
            for mention in sentence.mentions:
                self._take(mention, sentence)
        self._end_step(cues)
        return self._candidates(self._text_features(step, cues))

    def _take(self, mention: Mention, sentence: Sentence) -> None:
        value, record = mention.value, self._values.get(mention.value)
        if record is None:
            if len(self._values) >= _MOST_VALUES:
                return
            record = self._values[value] = _Record(self._step, self._step, mention.text)
        now = self._now.setdefault(value, _Now())
        if isinstance(value, Fraction) and value in self._question.numbers:
            self._used.add(value)
        self._recent.append(value)
        record.last = self._step
        record.mentions += 1
        now.mentions += 1
        self._derive(record, mention)
        if mention.operand and not mention.result:
            record.operands += 1
            now.operands += 1
        if mention.result:
            self._take_result(record, now, mention)
        if mention.stated and not sentence.asks:
            self._take_statement(record, now, mention, sentence)

    def _derive(self, record: _Record, mention: Mention) -> None:
        """Follow a value back to the numbers of the question."""
        value, origins = mention.value, self._question.origins
        earlier: list[Value] = [number for number in mention.earlier if number != value]
        if not (mention.result or (mention.stated and not mention.operand)):
            return
        if not earlier:
            if record.first_sources is not None or value in origins:
                return
            earlier = [number for number in self._recent[-5:-1] if number != value]
        sources, depth = set(), 0
        for number in earlier:
            parent = self._values.get(number)
            if number in origins:
                sources.add(origins[number])
            elif parent is not None:
                sources |= parent.sources
                depth = max(depth, parent.depth)
        if record.first_sources is None:
            record.first_sources, record.depth = len(sources), depth + 1
        record.sources |= sources
        if mention.result:
            for number in earlier:
                parent = self._values.get(number)
                if parent is not None and (record.mentions == 1 or parent.first < record.first):
                    if value not in parent.children or record.mentions == 1:
                        parent.larger_children += len(record.sources) > len(parent.sources)
                    parent.children.add(value)

    def _take_result(self, record: _Record, now: _Now, mention: Mention) -> None:
        record.results += 1
        now.results += 1
        self._num_results += 1
        self._new_results += mention.value not in self._seen_numbers
        if record.first_result is None:
            record.first_result = self._step
        record.operations = mention.operations
        record.calculations.add(mention.calculation)
        self._last_result = mention.value

    def _take_statement(self, record: _Record, now: _Now, mention: Mention, sentence: Sentence) -> None:
        record.concluded += sentence.concludes
        now.concluded += sentence.concludes
        record.boxed += mention.boxed
        now.boxed += mention.boxed
        if sentence.answers:
            record.answered += 1
            now.answered += 1
            record.last_answered = self._step
        record.unit += mention.fits_asked
        now.unit += mention.fits_asked
        record.with_money += mention.has_money
        record.asked = max(record.asked, sentence.asked)
        record.asked_last = sentence.asked
        record.asked_only = max(record.asked_only, sentence.asked_only)
        record.told = sentence.told
        now.asked = max(now.asked, sentence.asked)
        now.asked_only = max(now.asked_only, sentence.asked_only)
        now.stated += 1
        record.affirmed += sentence.affirms
        record.text = mention.text
        if sentence.concludes or sentence.answers or mention.boxed:
            self._stated = mention.value

    def _end_step(self, cues: StepCues) -> None:
        for value, now in self._now.items():
            record = self._values[value]
            record.steps += 1
            record.result_steps += bool(now.results)
            checked = cues.checks or self._num_checks
            record.after_check += bool(checked and record.first < self._step and (now.stated or now.results))
        fresh = sum(self._values[v].first == self._step and self._values[v].results > 0 for v in self._now)
        back = {self._question.origins[value] for value in self._now if value in self._question.origins}
        for record in self._values.values():
            if record.first < self._step and (record.results or record.concluded):
                record.new_results_now = fresh
                record.new_results_since += fresh
                record.revisited |= back
        self._seen_numbers.update(self._now)
        self._num_checks += cues.checks
        self._num_turns += cues.turns
        concluded = self._last_result if self._stated is None else self._stated
        if concluded is not None:
            same = bool(self._conclusions) and self._conclusions[-1] == concluded
            self._streak = self._streak + 1 if same else 1
            self._conclusions.append(concluded)

    def _text_features(self, step: str, cues: StepCues) -> tuple[float, ...]:
        question, words = self._question, words_of(step)
        trigrams = set(zip(words, words[1:], words[2:], strict=False))
        redundancy = len(trigrams & self._trigrams) / max(1, len(trigrams))
        self._trigrams |= trigrams
        row = (
            self._step,
            log1p(self._step),
            len(question.numbers),
            len(self._used) / max(1, len(question.numbers)),
            question.num_sentences,
            question.num_characters / 100,
            question.asks_money,
            question.asks_percent,
            *question.kinds,
            self._num_sentences,
            len(words),
            cues.checks,
            cues.turns,
            cues.affirmations,
            self._num_checks,
            self._num_turns,
            log1p(self._num_checks),
            redundancy,
            self._new_results,
            self._num_results,
            len(self._values),
            self._streak,
            len(set(self._conclusions[-3:])),
            len(set(self._conclusions[-6:])),
            cues.answers,
            cues.boxed,
            cues.asks,
            cues.opens,
            len(self._now),
            self._num_characters / 1000,
            log1p(self._num_characters),
        )
        return tuple(map(float, row))

    def _candidates(self, text_features: tuple[float, ...]) -> list[Candidate]:
        weights = {
            value: self._weight(value) for value, record in self._values.items() if record.is_candidate
        }
        order = sorted(weights, key=weights.__getitem__, reverse=True)[:MOST_CANDIDATES]
        most = _Others(
            total_mentions=max(1, sum(record.mentions for record in self._values.values())),
            most_sources=max((len(record.sources) for record in self._values.values()), default=0),
            most_depth=max((record.depth for record in self._values.values()), default=0),
            recent=Counter(self._conclusions[-5:]),
            result_firsts=sorted(record.first for record in self._values.values() if record.results),
        )
        found = []
        for rank, value in enumerate(order):
            best_other = next((weights[other] for other in order[:2] if other != value), 0.0)
            row = self._value_features(value, rank, weights[value], weights[value] - best_other, most)
            features = (*map(float, row), *text_features)
            found.append(Candidate(value, self._values[value].text, features))
        return found

    def _weight(self, value: Value) -> float:
        is_concluded = bool(self._conclusions) and value == self._conclusions[-1]
        return self._values[value].weight(self._step) + 3 * is_concluded + 0.5 * (value == self._last_result)

    def _value_features(
        self, value: Value, rank: int, weight: float, lead: float, others: _Others
    ) -> tuple[float | bool, ...]:
        record, now, step, question = (
            self._values[value],
            self._now.get(value, _Now()),
            self._step,
            self._question,
        )
        number = value if isinstance(value, Fraction) else None
        return (
            number in question.numbers,
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
            now.mentions,
            now.results,
            now.concluded,
            now.answered,
            now.boxed,
            now.asked,
            now.operands,
            now.stated,
            now.unit,
            now.asked_only,
            bool(self._conclusions) and value == self._conclusions[-1],
            value == self._last_result,
            bool(self._recent) and value == self._recent[-1],
            others.recent[value],
            weight,
            lead,
            rank,
            record.mentions / others.total_mentions,
            record.operands / max(1, record.mentions),
            number is not None and number.denominator != 1,
            number is not None and number < 0,
            0.0 if number is None else min(6.0, log10(min(1e7, abs(float(number))) + 1)),
            number is not None and number > max(question.numbers, default=Fraction(0)),
            sum(first > record.first for first in others.result_firsts),
            record.steps / (step - record.first + 1),
            len(record.sources) / question.num_origins,
            question.num_origins - len(record.sources),
            len(record.sources) - others.most_sources,
            (record.first_sources or 0) / question.num_origins,
            len(record.children),
            record.larger_children,
            record.depth,
            record.depth - others.most_depth,
            record.asked_only,
            record.unit / max(1, record.mentions),
            record.unit,
            record.told,
            record.with_money / max(1, record.mentions) - question.asks_money,
            *record.operations,
            len(record.revisited) / question.num_origins,
            record.new_results_since,
            record.new_results_now,
            len(record.revisited) - record.new_results_since,
            others.most_sources / question.num_origins,
        )


class _Others(NamedTuple):
    """What a value is compared with: all values of the text so far."""

    total_mentions: int
    most_sources: int
    most_depth: int
    recent: Counter[Value]
    result_firsts: list[int]
