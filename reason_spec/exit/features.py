"""Features of the values that a growing text states, after each of its steps.

A value gets one row: counts and places of its mentions, how it was derived from the numbers of the question,
its sentences beside the question's words, what happened since it was first stated, the last step, and the
other values. `ExitReader` sees one step after another, so a row depends on the question and on the text up to
the step, never on what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import log1p
from typing import Final, NamedTuple

from reason_spec.exit.reading import (
    NUM_ASKED_KINDS,
    Mention,
    Question,
    Sentence,
    StepCues,
    Value,
    read_cues,
    read_sentences,
    words_of,
)
from reason_spec.exit.statements import Statement
from reason_spec.exit.values import (
    VALUE_FEATURES,
    StepMentions,
    TextTotals,
    ValueRank,
    ValueRecord,
    value_row,
)

MOST_CANDIDATES: Final = 4
_MOST_VALUES: Final = 400
"""Values that are followed. The work grows with their number, and only tables of numbers have more."""

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
    features: Sequence[float]


class ExitReader:
    """Reads the steps of one thinking; `read` returns the candidates after the step.

    ``statements`` are those of the last step, without one that repeats the value before it.
    """

    def __init__(self, question: str) -> None:
        self._question = Question.of(question)
        self._values: dict[Value, ValueRecord] = {}
        self._step = -1
        self._used: set[Fraction] = set()
        self._seen_numbers: set[Value] = set()
        self._trigrams: set[tuple[str, ...]] = set()
        self._conclusions: list[Value] = []
        self._streak = 0
        self._last_statement: Value | None = None
        self._num_checks = self._num_turns = self._num_characters = 0
        self._clear_step()

    @property
    def concludes(self) -> bool:
        """Whether the last step marks one of its values as a conclusion, by its words or a box."""
        return self._stated is not None

    def _clear_step(self) -> None:
        self._now: dict[Value, StepMentions] = {}
        self.statements: list[Statement] = []
        self._recent: list[Value] = []
        self._stated: Value | None = None
        self._last_result: Value | None = None
        self._new_results = self._num_results = self._num_sentences = 0

    def read(self, step: str) -> list[Candidate]:
        """Take the next step; return the values of most weight, at most `MOST_CANDIDATES`, with features."""
        self._step += 1
        self._num_characters += len(step.strip())
        self._clear_step()
        cues = read_cues(step)
        for sentence in read_sentences(step, self._question):
            self._num_sentences += 1
            for mention in sentence.mentions:
                self._take(mention, sentence)
            self._take_conclusion(sentence)
        self._end_step(cues)
        return self._candidates(self._text_features(step, cues))

    def _take_conclusion(self, sentence: Sentence) -> None:
        value = sentence.conclusion
        if value is not None and value != self._last_statement:
            self._last_statement = value
            self.statements.append(Statement(value, sentence.text))

    def _take(self, mention: Mention, sentence: Sentence) -> None:
        value, record = mention.value, self._values.get(mention.value)
        if record is None:
            if len(self._values) >= _MOST_VALUES:
                return
            record = self._values[value] = ValueRecord(self._step, self._step, mention.text)
        now = self._now.setdefault(value, StepMentions())
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

    def _derive(self, record: ValueRecord, mention: Mention) -> None:
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
        for number in earlier:
            if record.mentions == 1 and number in self._values:
                self._values[number].is_used = True
        if mention.result:
            for number in earlier:
                parent = self._values.get(number)
                if parent is not None and (record.mentions == 1 or parent.first < record.first):
                    if value not in parent.children or record.mentions == 1:
                        parent.larger_children += len(record.sources) > len(parent.sources)
                    parent.children.add(value)
                    parent.is_used = True

    def _take_result(self, record: ValueRecord, now: StepMentions, mention: Mention) -> None:
        record.results += 1
        now.results += 1
        self._num_results += 1
        self._new_results += mention.value not in self._seen_numbers
        if record.first_result is None:
            record.first_result = self._step
        record.operations = mention.operations
        record.calculations.add(mention.calculation)
        self._last_result = mention.value

    def _take_statement(
        self, record: ValueRecord, now: StepMentions, mention: Mention, sentence: Sentence
    ) -> None:
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
        recent = Counter(self._conclusions[-5:])
        totals = TextTotals(
            total_mentions=max(1, sum(record.mentions for record in self._values.values())),
            most_sources=max((len(record.sources) for record in self._values.values()), default=0),
            most_depth=max((record.depth for record in self._values.values()), default=0),
            unused={
                value: record
                for value, record in self._values.items()
                if (record.results or record.concluded)
                and not record.is_used
                and value not in self._question.origins
            },
            result_firsts=sorted(record.first for record in self._values.values() if record.results),
        )
        found = []
        for rank, value in enumerate(order):
            record, weight = self._values[value], weights[value]
            best_other = next((weights[other] for other in order[:2] if other != value), 0.0)
            among_others = ValueRank(
                bool(self._conclusions) and value == self._conclusions[-1],
                value == self._last_result,
                bool(self._recent) and value == self._recent[-1],
                recent[value],
                weight,
                weight - best_other,
                rank,
            )
            now = self._now.get(value, StepMentions())
            row = value_row(value, record, now, among_others, totals, self._question, self._step)
            found.append(Candidate(value, record.text, (*row, *text_features)))
        return found

    def _weight(self, value: Value) -> float:
        is_concluded = bool(self._conclusions) and value == self._conclusions[-1]
        return self._values[value].weight(self._step) + 3 * is_concluded + 0.5 * (value == self._last_result)
