"""Numbers and calculations of a step: plain text and LaTeX, units between numbers, chains of equalities.

``read_quantities`` turns ``9 \\times 60 \\text{ meters} = 540 meters`` into a calculation with the operands
9 and 60, the operator ``*`` and the result 540. What it cannot read as arithmetic it leaves out, so a missing
calculation says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final

from reason_spec.verifiers.arithmetic import (
    WORD_OPERATORS,
    Token,
    Value,
    equalities,
    evaluate,
    number_of_word,
    tokenize,
)
from reason_spec.verifiers.notation import normalize

_ROUNDING: Final = Fraction(1, 200)
"""Relative difference at which both sides of an equality may count as equal: people round."""
_ROUNDED_BEFORE: Final = Fraction(1, 1000)
"""Relative difference at which they do in any case: what went in may have been rounded."""
_PARTS: Final = {
    word: value
    for value, word in enumerate("half third fourth fifth sixth seventh eighth ninth tenth".split(), 2)
} | {"quarter": 4}
_ENDS: Final = re.compile(r"[.;:,?!](?=\s|$)|\n")
_COUNTS: Final = {"a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
_WORDED_SHARE: Final = re.compile(
    rf"(?:\b(?P<count>{'|'.join(_COUNTS)})[ -])?\b(?P<part>{'|'.join(_PARTS)})s?\s+of\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, order=True)
class Calculation:
    """An operation on numbers: sorted operands and operators, what it comes to, and what the step says."""

    operands: tuple[Fraction, ...]
    operators: str
    value: Fraction
    stated: Fraction

    @classmethod
    def of(cls, side: Value, stated: Fraction) -> Calculation:
        """Return the calculation of a side of an equality."""
        return cls(tuple(sorted(side.operands)), "".join(sorted(side.operators)), side.value, stated)

    def __str__(self) -> str:
        return f"{self.operators} of {', '.join(map(shown, self.operands))} = {shown(self.stated)}"


@dataclass(frozen=True, slots=True)
class Quantities:
    """What a step says in numbers.

    ``numbers`` are written in digits, a percentage as a share of 1; ``worded`` are in words, from two on, or
    ordinal; ``readings`` also holds numbers in words,
    a percentage as a number of its own (50 % is 1/2 and 50) and values that are computed. ``shares`` are
    fractions such as 2/3, ``worded_shares`` those in words: "two thirds of". ``results`` are the ends of
    the chains of equalities, in order. ``mistakes`` are equalities whose sides differ. ``first_operands``
    are those of the first calculation, in their order, ``ordered_operands`` those of the first subtraction or
    division.
    """

    numbers: frozenset[Fraction]
    worded: frozenset[Fraction]
    readings: frozenset[Fraction]
    shares: frozenset[Fraction]
    worded_shares: frozenset[Fraction]
    calculations: frozenset[Calculation]
    results: tuple[Fraction, ...]
    mistakes: frozenset[str]
    first_operands: tuple[Fraction, ...]
    ordered_operands: tuple[Fraction, ...]


@dataclass(slots=True)
class _Equations:
    """The calculations of a text, read from one chain of equalities after the other."""

    calculations: set[Calculation] = field(default_factory=set)
    results: list[Fraction] = field(default_factory=list)
    mistakes: set[str] = field(default_factory=set)
    values: set[Fraction] = field(default_factory=set)
    first_operands: tuple[Fraction, ...] = ()
    ordered_operands: tuple[Fraction, ...] = ()

    def read(self, chain: Sequence[Sequence[Token]]) -> None:
        """Read the sides of a chain, ``a + b = c + d = e``."""
        read = (evaluate(part, is_result=place > 0) for place, part in enumerate(chain))
        sides = [side for side in read if side is not None]
        operations = [side for side in sides if side.operators]
        ordered = (side.operands for side in operations if set(side.operators) <= {"-", "/"})
        self.first_operands = self.first_operands or next((side.operands for side in operations), ())
        self.ordered_operands = self.ordered_operands or next(ordered, ())
        if len(sides) < 2:
            # Without an equality: the step may leave the result to the next one.
            self.calculations |= {
                Calculation.of(side, side.value)
                for side in sides
                if len(side.operands) > 1 and set(side.operators) & {"*", "+"}
            }
        elif known := [side for side in sides if side.operands]:
            self._compare(known)

    def _compare(self, sides: Sequence[Value]) -> None:
        """Check each side against the next one; all come to the last."""
        stated = [
            other.operands[0] if _goes_on(one, other) and other is not sides[-1] else other.value
            for one, other in pairwise(sides)
        ]
        self.mistakes |= {
            f"{shown(one.value)} = {shown(value)}"
            for (one, other), value in zip(pairwise(sides), stated, strict=True)
            if (one.operators or other.operators) and not is_near(one.value, value)
        }
        self.results.append(sides[-1].value)
        self.values.update(side.value for side in sides)
        self.calculations |= {
            Calculation.of(side, value)
            for side, value in zip(sides, [*stated, sides[-1].value], strict=True)
            if side.operators
        }


@lru_cache(maxsize=4096)
def read_quantities(text: str) -> Quantities:
    """Return the numbers and calculations of a text."""
    tokens = list(tokenize(normalize(text)))
    numbers = frozenset(t.value for t in tokens if t.value is not None and t.kind == "number")
    readings = set(numbers)
    worded: set[Fraction] = set()
    for token in tokens:
        if token.kind == "number" and token.text.endswith(("%", "percent")) and token.value is not None:
            readings.add(token.value * 100)
        elif token.kind == "word" and (number := token.value or number_of_word(token.text)) is not None:
            readings.add(number)
            # "one" and parts stand for much else.
            if number >= 2:
                worded.add(number)
    shares = {
        one.value / other.value
        for one, sign, other in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if sign.text == "/" and one.value is not None and other.value and "number" == one.kind == other.kind
    }
    worded_shares = frozenset(
        Fraction(_COUNTS[(found["count"] or "a").lower()], _PARTS[found["part"].lower()])
        for found in _WORDED_SHARE.finditer(normalize(text))
        if found["count"] or found["part"].lower() == "half"
    )
    equations = _Equations()
    for chain in equalities(tokens):
        equations.read(chain)
    return Quantities(
        numbers,
        frozenset(worded),
        frozenset(readings | equations.values),
        frozenset(shares),
        worded_shares,
        frozenset(equations.calculations),
        tuple(equations.results),
        frozenset(equations.mistakes),
        equations.first_operands,
        equations.ordered_operands,
    )


@lru_cache(maxsize=4096)
def read_terms(text: str) -> tuple[str | Fraction, ...]:
    """Return the words of a text, in small letters, its numbers, in digits or words, and signs, in order."""
    found: list[str | Fraction] = []
    for token in tokenize(normalize(text)):
        word = token.text.lower()
        if token.value is not None:
            found.append(token.value)
        elif token.kind != "end":
            number = number_of_word(word)
            found.append(WORD_OPERATORS.get(word, word) if number is None else number)
    return tuple(found)


def _goes_on(one: Value, other: Value) -> bool:
    """Whether a side takes the value before it on, as in ``5 + 3 = 8 - 2 = 6``."""
    calculated = bool(one.operators and other.operators)
    return calculated and not is_near(one.value, other.value) and one.value == other.operands[0]


def read_phrases(text: str) -> list[tuple[str | Fraction, ...]]:
    """Return the terms of each part of a text between commas, ends of sentences and of lines."""
    return [read_terms(part) for part in _ENDS.split(text) if part]


def is_near(one: Fraction, other: Fraction) -> bool:
    """Whether two numbers are the same but for rounding to the last place of one; whole ones are exact."""
    if one == other or one.denominator == other.denominator == 1:
        return one == other
    difference, size = abs(one - other), max(abs(one), abs(other), Fraction(1, 10))
    last_place = max(_last_place(one), _last_place(other))
    return difference <= _ROUNDED_BEFORE * size or difference <= min(last_place, _ROUNDING * size)


def _last_place(number: Fraction) -> Fraction:
    """Return the value of the last decimal place, 1/100 for 2.25; 0 for a number with too many of them."""
    return next((Fraction(1, 10**n) for n in range(7) if 10**n % number.denominator == 0), Fraction(0))


def shown(number: Fraction) -> str:
    """Return a number for a message."""
    return f"{float(number):.6g}"
