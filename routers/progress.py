"""Features that relate a step to its question: its arithmetic and the numbers it uses. No model is asked.

A solution uses the numbers of the question, mostly in their order, and its own results. A step may be wrong,
although the draft is confident, if it has a false equation or unknown operands, or skips a part of the
question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import fsum, log, sqrt
from typing import Final

from reason_spec.verifiers.quantities import read_quantities, read_terms

_SENTENCE_END: Final = re.compile(r"(?<=[.?!])\s+")
_LINE_OR_SENTENCE: Final = re.compile(r"\n|(?<=[.?!])[ \t]+")
_LONG: Final = 1000
"""Characters of a paragraph above which it is no single step: steps may end without a blank line."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The numbers that a step computes with, and their places in the question.

    ``num_wrong`` counts false equalities between numbers, ``num_calculations`` the calculations. Of the
    operands, ``num_taken`` are numbers of the question that no earlier step has used, ``num_reused`` used
    ones, and ``num_strange`` neither in the question nor computed. ``num_skipped`` counts the unused numbers
    before the last one taken, ``num_left`` those unused after the step. ``place`` (0 to 1) is the position of
    the sentence most similar to the step, ``sentence_jump`` its distance in sentences from that of the last
    step, and ``likeness`` its lead over the least similar sentence.
    """

    num_wrong: int = 0
    num_calculations: int = 0
    num_taken: int = 0
    num_reused: int = 0
    num_strange: int = 0
    num_skipped: int = 0
    num_left: int = 0
    uses_last_result: bool = False
    place: float = 0.0
    sentence_jump: int = 0
    likeness: float = 0.0


def read_progress(question: str, text_before: str, step: str) -> Progress:
    """Return the features of ``step`` after the steps ``text_before``."""
    asked = _read_question(question)
    earlier = list(_parts(text_before))
    used: set[int] = set()
    computed: set[str] = set()
    for part in earlier:
        used.update(asked.take(_operands(part), used))
        computed.update(_results(part))
    quantities = read_quantities(step)
    operands = _operands(step)
    taken = asked.take(operands, used)
    known = computed.union(_results(step))
    last_result = next((own for part in reversed(earlier) if (own := _results(part))), frozenset[str]())
    likeness = asked.likeness(step)
    sentence = _greatest(likeness)
    last_sentence = _greatest(asked.likeness(earlier[-1])) if earlier else 0
    used_now = used.union(taken)
    return Progress(
        num_wrong=len(quantities.mistakes),
        num_calculations=len(quantities.calculations),
        num_taken=len(taken),
        num_reused=sum(operand in asked.known for operand in operands) - len(taken),
        num_strange=sum(operand not in asked.known and operand not in known for operand in operands),
        num_skipped=sum(place not in used_now for place in range(max(taken, default=0))),
        num_left=len(asked.numbers) - len(used_now),
        uses_last_result=not last_result.isdisjoint(operands),
        place=sentence / max(1, len(likeness)),
        sentence_jump=sentence - last_sentence,
        likeness=max(likeness, default=0.0) - min(likeness, default=0.0),
    )


def _parts(text: str) -> Iterator[str]:
    """Yield the paragraphs of a text, of a long one its lines and sentences.

    What was read of a part is kept for the next step: only the last part is another one then.
    """
    for paragraph in text.split("\n\n"):
        parts = _LINE_OR_SENTENCE.split(paragraph) if len(paragraph) > _LONG else [paragraph]
        yield from (part for part in parts if part.strip())


@dataclass(frozen=True, slots=True)
class _Question:
    """The numbers of a question in order, and the words of each sentence."""

    numbers: tuple[str, ...]
    known: frozenset[str]
    sentences: tuple[frozenset[str], ...]
    weights: dict[str, float]

    def take(self, operands: Iterable[str], used: set[int]) -> list[int]:
        """Return the places of the first numbers, not yet used, that are equal to the operands."""
        taken: list[int] = []
        for operand in operands:
            free = (i for i, number in enumerate(self.numbers) if number == operand)
            place = next((i for i in free if i not in used and i not in taken), None)
            if place is not None:
                taken.append(place)
        return taken

    def likeness(self, text: str) -> list[float]:
        """Return the similarity of each sentence to the text; rare words weigh most.

        The sum is exact, because the order of words differs in each process.
        """
        words = frozenset(_words(text))
        return [
            fsum(self.weights[word] for word in sentence & words) / sqrt(1 + len(sentence))
            for sentence in self.sentences
        ]


@lru_cache(maxsize=256)
def _read_question(question: str) -> _Question:
    sentences = [_words(sentence) for sentence in _SENTENCE_END.split(question)]
    numbers = tuple(word for sentence in sentences for word in sentence if word[0].isdigit())
    counts = Counter(word for sentence in sentences for word in frozenset(sentence))
    weights = {word: log(1 + len(sentences) / count) for word, count in counts.items()}
    return _Question(numbers, frozenset(numbers), tuple(map(frozenset, sentences)), weights)


def _words(text: str) -> list[str]:
    """Return words and numbers; a part is named by its divisor, since a step divides by it."""
    terms = (term if isinstance(term, str) else _number(term) for term in read_terms(text))
    return [term for term in terms if term[0].isalnum()]


@lru_cache(maxsize=4096)
def _operands(step: str) -> tuple[str, ...]:
    """Return the numbers of a step's first calculation, in their order."""
    return tuple(_number(operand) for operand in read_quantities(step).first_operands)


@lru_cache(maxsize=4096)
def _results(step: str) -> frozenset[str]:
    """Return what the calculations of a step come to, and the number that it ends with."""
    found = read_quantities(step)
    numbers = [term for term in read_terms(step) if not isinstance(term, str)]
    return frozenset(map(_number, [*found.results, *(c.value for c in found.calculations), *numbers[-1:]]))


def _number(value: Fraction) -> str:
    return str(value.denominator if value.numerator == 1 < value.denominator else value)


def _greatest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__, default=0)
