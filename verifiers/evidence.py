"""What rules see in two steps that no rule decides alone: it is weighed beside the encoder's logit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from reason_spec.verifiers.notation import normalize
from reason_spec.verifiers.objections import missing_numbers
from reason_spec.verifiers.quantities import Quantities, read_quantities, read_terms

_OPENINGS: Final = frozenset("so thus therefore hence then now".split())
_UNREAD: Final = re.compile(r"[^A-Za-z0-9\s.,;:'$%=+*/^()\[\]{}\\-]|:(?=\d)")
"""Signs that are no terms: an inequality, a factorial, a question."""
_QUESTION_END: Final = 2000
"""Characters of a question that are read: a whole conversation may stand there."""
_ENDINGS: Final = ("ing", "ed", "es", "s")

Term: TypeAlias = str | Fraction


class Evidence(NamedTuple):
    """Five observations of two steps."""

    missing_number: bool
    """One step has a number that the other one neither has nor computes."""
    other_calculation: bool
    """One step makes a calculation that the other one does not make."""
    same_calculations: bool
    """Both make calculations, and the same ones: operands, operators and value."""
    other_noun: bool
    """Behind a number of both steps stand different words of the question: 150 tasks, 150 cycles."""
    same_terms: bool
    """Words, numbers and signs are the same, in whatever notation: two packs, 2 packs."""


def find_evidence(drafted: str, target: str, question: str) -> Evidence:
    """Compare two steps."""
    a, b = read_quantities(drafted), read_quantities(target)
    mine, other = _calculations(a), _calculations(b)
    terms = stemmed_terms(drafted), stemmed_terms(target)
    nouns = _nouns(terms[0], question), _nouns(terms[1], question)
    return Evidence(
        bool(missing_numbers(a, b) or missing_numbers(b, a)),
        mine != other,
        bool(mine) and mine == other,
        any(not nouns[0][number] & nouns[1][number] for number in nouns[0].keys() & nouns[1].keys()),
        terms[0] == terms[1] and _unread(drafted) == _unread(target),
    )


def stemmed_terms(text: str) -> list[Term]:
    """Return the words, numbers and signs of a text in order, words by `stem` and without openings."""
    stems = (stem(term) if isinstance(term, str) else term for term in read_terms(text))
    return [term for term in stems if term not in _OPENINGS]


def _unread(text: str) -> list[str]:
    return _UNREAD.findall(normalize(text))


def stem(word: str) -> str:
    """Return a word without the endings of plural and tense; crude, for finding shared words."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word[: -len(ending)]
    return word


def same_work(a: Quantities, b: Quantities) -> bool:
    """Whether two steps make the same calculations, at least one, and neither has a number of its own."""
    mine = _calculations(a)
    return bool(mine) and mine == _calculations(b) and not missing_numbers(a, b) | missing_numbers(b, a)


def _calculations(read: Quantities) -> set[tuple[tuple[Fraction, ...], str, Fraction]]:
    return {(c.operands, c.operators, c.value) for c in read.calculations}


def _nouns(terms: Sequence[Term], question: str) -> dict[Fraction, set[str]]:
    """Return the words right behind each number, of numbers with such a word of the question."""
    nouns: dict[Fraction, set[str]] = defaultdict(set)
    for number, word in pairwise(terms):
        if isinstance(number, Fraction) and isinstance(word, str) and word.isalpha() and len(word) > 1:
            nouns[number].add(word)
    if not nouns:
        return {}
    asked = _stems(question[-_QUESTION_END:])
    return {number: words for number, words in nouns.items() if words & asked}


@lru_cache(maxsize=64)
def _stems(text: str) -> frozenset[Term]:
    return frozenset(stemmed_terms(text))
