"""What rules see in two steps that no rule decides alone: it is weighed beside the encoder's logit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from reason_spec.verifiers.notation import normalize
from reason_spec.verifiers.objections import missing_numbers
from reason_spec.verifiers.quantities import Quantities, read_quantities
from reason_spec.verifiers.words import FUNCTION_WORDS, Term, exact_terms, stem, stemmed_terms

_UNREAD: Final = re.compile(r"[^A-Za-z0-9\s.,;:'$%=+*/^()\[\]{}\\-]|:(?=\d)")
"""Signs that are no terms: an inequality, a factorial, a question."""
_QUESTION_END: Final = 2000
"""Characters of a question that are read: a whole conversation may stand there."""
_FUNCTION_STEMS: Final = frozenset(map(stem, FUNCTION_WORDS))


class Evidence(NamedTuple):
    """Six observations of two steps.

    The question's words are those that are no function words; without a question, those of both steps.
    """

    missing_number: bool
    """One step has a number that the other one neither has nor computes."""
    other_calculation: bool
    """One step makes a calculation that the other one does not make."""
    same_calculations: bool
    """Both make calculations, and the same ones: operands, operators and value."""
    other_words: bool
    """Each step has a word of the question that the other one has not."""
    replaced_word: bool
    """Between what both say alike, a word of the question stands for another one: 150 tasks, 150 cycles."""
    same_terms: bool
    """Words, numbers and signs are the same, in whatever notation: two packs, 2 packs."""


def find_evidence(drafted: str, target: str, question: str) -> Evidence:
    """Compare two steps; which of them was drafted does not matter."""
    one, two = sorted((drafted, target))  # A difference of sequences depends on their order.
    a, b = read_quantities(one), read_quantities(two)
    mine, other = _calculations(a), _calculations(b)
    terms = stemmed_terms(one), stemmed_terms(two)
    words = _content_words(one), _content_words(two)
    asked = _content_words(question[-_QUESTION_END:]) if question else words[0] | words[1]
    return Evidence(
        bool(missing_numbers(a, b) or missing_numbers(b, a)),
        mine != other,
        bool(mine) and mine == other,
        bool(asked & (words[0] - words[1]) and asked & (words[1] - words[0])),
        _has_replaced_word(*terms, asked),
        exact_terms(one) == exact_terms(two) and _unread(one) == _unread(two),
    )


def _unread(text: str) -> list[str]:
    return _UNREAD.findall(normalize(text))


def same_work(a: Quantities, b: Quantities) -> bool:
    """Whether two steps make the same calculations, at least one, and neither has a number of its own."""
    mine = _calculations(a)
    return bool(mine) and mine == _calculations(b) and not missing_numbers(a, b) | missing_numbers(b, a)


def _calculations(read: Quantities) -> set[tuple[tuple[Fraction, ...], str, Fraction]]:
    return {(c.operands, c.operators, c.value) for c in read.calculations}


def _is_word(term: Term) -> bool:
    return isinstance(term, str) and len(term) > 1 and term.isalpha()


@lru_cache(maxsize=256)
def _content_words(text: str) -> frozenset[Term]:
    return frozenset(term for term in stemmed_terms(text) if _is_word(term) and term not in _FUNCTION_STEMS)


def _has_replaced_word(a: Sequence[Term], b: Sequence[Term], asked: frozenset[Term]) -> bool:
    matched = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return any(
        a[i] in asked and b[j] in asked
        for tag, i, i_end, j, j_end in matched
        if tag == "replace" and i_end - i == j_end - j == 1
    )
