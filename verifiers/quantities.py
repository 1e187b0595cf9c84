"""Numbers and calculations of a step: plain text and LaTeX, units between numbers, chains of equalities.

``read_quantities`` turns ``9 \\times 60 \\text{ meters} = 540 meters`` into a calculation with the operands
9 and 60, the operator ``*`` and the result 540. What it cannot read as arithmetic it leaves out, so a missing
calculation says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from reason_spec.verifiers.notation import normalize

_ROUNDING: Final = Fraction(1, 200)
"""Relative difference at which both sides of an equality still count as equal: people round."""
_MOST_OPERANDS: Final = 24
_MOST_DIGITS: Final = 30
_DEEPEST: Final = 24
"""Brackets and signs within each other that are followed."""
_LARGEST: Final = 10**60
_UNIT_WORDS: Final = 5
"""Words between a number and the operator or equality behind it, such as a unit."""

_NUMBER_WORDS: Final = {
    **{
        word: Fraction(value)
        for value, word in enumerate(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
            "sixteen seventeen eighteen nineteen twenty".split()
        )
    },
    **{
        word: Fraction(10 * value)
        for value, word in enumerate("thirty forty fifty sixty seventy eighty ninety hundred".split(), 3)
    },
    "half": Fraction(1, 2),
    "third": Fraction(1, 3),
    "quarter": Fraction(1, 4),
    "thousand": Fraction(1000),
    "twice": Fraction(2),
    "double": Fraction(2),
    "triple": Fraction(3),
    "dozen": Fraction(12),
    "once": Fraction(1),
    "doubled": Fraction(2),
    "halves": Fraction(1, 2),
    "hundred": Fraction(100),
}
_PARTS: Final = {
    word: value
    for value, word in enumerate("half third fourth fifth sixth seventh eighth ninth tenth".split(), 2)
} | {"quarter": 4}
_COUNTS: Final = {"a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
_WORDED_SHARE: Final = re.compile(
    rf"(?:\b(?P<count>{'|'.join(_COUNTS)})[ -])?\b(?P<part>{'|'.join(_PARTS)})s?\s+of\b", re.IGNORECASE
)
_WORD_OPERATORS: Final = {"times": "*", "plus": "+", "minus": "-", "over": "/"}
_VARIABLES: Final = frozenset("abcdefijnopqrtuvwxyzABCDNPQRSTXYZ")
"""Letters right behind a number that make it a term; the others are units."""
_EQUALITY_WORDS: Final = frozenset({"is", "are", "equals", "equal", "gives", "makes", "was", "leaves"})

_TOKEN: Final = re.compile(
    r"(?P<clock>\b\d{1,2}:\d{2}\b)"
    r"|(?P<number>\d+(?:\.\d+)?|\.\d+)(?P<percent>\s?(?:%|percent\b))?(?P<ordinal>(?:st|nd|rd|th)\b)?"
    r"|(?P<word>[A-Za-z][A-Za-z'\-]*[A-Za-z]|[A-Za-z])"
    r"|(?P<equal>=)|(?P<operator>[-+*/^])|(?P<paren>[()\[\]{}])|(?P<end>[.;:,?!\n])"
)


@dataclass(frozen=True, slots=True, order=True)
class Calculation:
    """An operation on numbers: sorted operands and operators, what it comes to, and what the step says."""

    operands: tuple[Fraction, ...]
    operators: str
    value: Fraction
    stated: Fraction

    def __str__(self) -> str:
        return f"{self.operators} of {', '.join(map(shown, self.operands))} = {shown(self.stated)}"


@dataclass(frozen=True, slots=True)
class Quantities:
    """What a step says in numbers.

    ``numbers`` are written in digits, a percentage as a share of 1; ``readings`` also holds numbers in words,
    a percentage as a number of its own (50 % is 1/2 and 50) and values that are computed. ``shares`` are
    fractions such as 2/3, ``worded_shares`` those in words: "two thirds of". ``results`` are the ends of
    the chains of equalities, in order. ``mistakes`` are equalities whose sides differ. ``first_operands`` are
    those of the first calculation, in their order.
    """

    numbers: frozenset[Fraction]
    readings: frozenset[Fraction]
    shares: frozenset[Fraction]
    worded_shares: frozenset[Fraction]
    calculations: frozenset[Calculation]
    results: tuple[Fraction, ...]
    mistakes: frozenset[str]
    first_operands: tuple[Fraction, ...]


class _Token(NamedTuple):
    kind: str
    text: str
    value: Fraction | None = None


class _Value(NamedTuple):
    value: Fraction
    operands: tuple[Fraction, ...]
    operators: str


@lru_cache(maxsize=4096)
def read_quantities(text: str) -> Quantities:
    """Return the numbers and calculations of a text."""
    tokens = list(_tokens(normalize(text)))
    numbers = frozenset(t.value for t in tokens if t.value is not None and t.kind == "number")
    readings = set(numbers)
    for token in tokens:
        if token.kind == "number" and token.text.endswith(("%", "percent")) and token.value is not None:
            readings.add(token.value * 100)
        elif token.kind == "word" and token.text.lower() in _NUMBER_WORDS:
            readings.add(_NUMBER_WORDS[token.text.lower()])
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
    calculations: set[Calculation] = set()
    results: list[Fraction] = []
    mistakes: set[str] = set()
    first_operands: tuple[Fraction, ...] = ()
    for chain in _chains(tokens):
        read = (_evaluate(part, is_result=place > 0) for place, part in enumerate(chain))
        sides = [side for side in read if side is not None]
        first_operands = first_operands or next((s.operands for s in sides if s.operators), ())
        if len(sides) < 2:
            # Without an equality: the step may leave the result to the next one.
            calculations |= {
                Calculation(tuple(sorted(s.operands)), "".join(sorted(s.operators)), s.value, s.value)
                for s in sides
                if len(s.operands) > 1 and set(s.operators) & {"*", "+"}
            }
            continue
        # ``a + b = c + d = e``: each side is checked against the next one, and all come to the last.
        mistakes |= {
            f"{shown(one.value)} = {shown(other.value)}"
            for one, other in pairwise(sides)
            if (one.operators or other.operators) and not is_near(one.value, other.value)
        }
        results.append(sides[-1].value)
        readings.update(side.value for side in sides)
        calculations |= {
            Calculation(
                tuple(sorted(side.operands)), "".join(sorted(side.operators)), side.value, stated.value
            )
            for side, stated in zip(sides, [*sides[1:], sides[-1]], strict=True)
            if side.operators
        }
    return Quantities(
        numbers,
        frozenset(readings),
        frozenset(shares),
        worded_shares,
        frozenset(calculations),
        tuple(results),
        frozenset(mistakes),
        first_operands,
    )


@lru_cache(maxsize=4096)
def read_terms(text: str) -> tuple[str | Fraction, ...]:
    """Return the words of a text, in small letters, its numbers, in digits or words, and signs, in order."""
    found: list[str | Fraction] = []
    for token in _tokens(normalize(text)):
        word = token.text.lower()
        if token.value is not None:
            found.append(token.value)
        elif token.kind != "end":
            number = _NUMBER_WORDS.get(word)
            found.append(_WORD_OPERATORS.get(word, word) if number is None else number)
    return tuple(found)


def number_of_word(word: str) -> Fraction | None:
    """Return the number that a word names, such as ``twelve`` or ``twice``; None for other words."""
    return _NUMBER_WORDS.get(word.lower())


def _tokens(text: str) -> Iterator[_Token]:
    before: tuple[str, str] = ("", "")
    scanned = list(_TOKEN.finditer(text))
    for index, found in enumerate(scanned):
        kind = found.lastgroup
        follows_number = index + 1 < len(scanned) and bool(scanned[index + 1]["number"])
        if found["clock"]:
            hours, minutes = found["clock"].split(":")
            yield _Token("number", found["clock"], int(hours) + Fraction(int(minutes), 60))
        elif found["number"]:
            digits = found["number"]
            if len(digits) > _MOST_DIGITS:
                continue
            value = Fraction(digits) / (100 if found["percent"] else 1)
            yield _Token("word" if found["ordinal"] else "number", found[0].strip(), value)
        elif kind == "word" and found[0].lower() in _WORD_OPERATORS:
            yield _Token("worded", found[0])
        elif found[0] == "of" and follows_number and _is_share(before):
            yield _Token("worded", "times")
        elif kind == "word" and found[0] in _VARIABLES and text[found.start() - 1 : found.start()].isdigit():
            yield _Token("variable", found[0])
        else:
            yield _Token(kind or "end", found[0])
        before = (before[1], found[0].strip())


def _is_share(before: tuple[str, str]) -> bool:
    """Whether a number is taken of the next one: ``50 % of``, ``1/2 of``, ``(1/2) of``."""
    return before[1].endswith(("%", "percent", ")")) or before[0] == "/"


def _chains(tokens: Sequence[_Token]) -> Iterator[list[list[_Token]]]:
    """Yield the equalities of a text, each as the tokens of its sides."""
    sides: list[list[_Token]] = [[]]
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.kind == "equal" or (
            token.kind == "word"
            and token.text.lower() in _EQUALITY_WORDS
            and _has_operation(sides[-1])
            and following is not None
            and following.kind == "number"
        ):
            sides.append([])
        elif (
            len(sides) > 1 and token.text.lower() == "and" and any(one.kind == "number" for one in sides[-1])
        ):
            # 12 / 3 = 4 and 4 + 2 = 6 are two equalities.
            yield sides
            sides = [[]]
        elif token.kind == "end":
            # A line may break before its equality sign.
            if token.text == "\n" and following is not None and following.kind == "equal":
                continue
            yield sides
            sides = [[]]
        else:
            sides[-1].append(token)
    yield sides


def _has_operation(side: Sequence[_Token]) -> bool:
    """Whether an operator stands before a number: 5-day has none."""
    return any(one.kind in ("operator", "worded") and other.kind == "number" for one, other in pairwise(side))


def _evaluate(side: Sequence[_Token], *, is_result: bool) -> _Value | None:
    """Return the value of the arithmetic in a side of an equality; None if there is none, or more.

    Args:
        is_result: the side stands behind the sign of equality.
    """
    tokens = _without_units(side)
    arithmetic = [token for token in tokens if token.kind != "word"]
    words = [index for index, token in enumerate(tokens) if token.kind == "word"]
    if not arithmetic or not any(token.kind == "number" for token in arithmetic):
        return None
    if words:
        # Words before the arithmetic lead to it, words behind a result (15, carry 1) to something else.
        before, behind = tokens[: words[0]], tokens[words[-1] + 1 :]
        arithmetic = (before or behind) if is_result else (behind or before)
    parser = _Parser(arithmetic)
    try:
        return parser.read()
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def _without_units(side: Sequence[_Token]) -> list[_Token]:
    """Drop the words behind a number, up to the operator or the end of the side, and units in fractions."""
    kept: list[_Token] = []
    index = 0
    while index < len(side):
        token = side[index]
        kept.append(token)
        index += 1
        if token.kind != "number" and token.text not in ")]}":
            continue
        end, num_words = index, 0
        while end < len(side) and num_words <= _UNIT_WORDS:
            part = side[end]
            if part.kind == "word" and part.text.lower() not in ("and", "or", "by", "of", "to", "from"):
                num_words += 1
            elif part.text in "/-" and end + 1 < len(side) and side[end + 1].kind == "word":
                pass  # meters/session, 5-minute
            elif part.text in "()[]{}" and part.text and _is_wordy(side, end):
                pass
            else:
                break
            end += 1
        is_end = end == len(side)
        if num_words and (is_end or side[end].kind in ("operator", "worded") or side[end].text in ")]}"):
            index = end
    return kept


def _is_wordy(side: Sequence[_Token], place: int) -> bool:
    """Whether the bracket at ``place`` belongs to a bracket around words alone."""
    if side[place].text in "([{":
        inner = side[place + 1 : place + 1 + _UNIT_WORDS]
        close = next((i for i, t in enumerate(inner) if t.text in ")]}"), None)
        return close is not None and all(t.kind == "word" for t in inner[:close])
    opened = next((t for t in reversed(side[:place]) if t.kind != "word"), None)
    return opened is not None and opened.text in "([{"


class _Parser:
    """Recursive descent over numbers, ``+ - * / ^`` and brackets."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._operands: list[Fraction] = []
        self._operators: list[str] = []
        self._depth = 0

    def read(self) -> _Value:
        value = self._sum()
        if self._place != len(self._tokens) or len(self._operands) > _MOST_OPERANDS:
            raise ValueError("no arithmetic")
        return _Value(value, tuple(self._operands), "".join(self._operators))

    def _next_operator(self, among: str) -> str | None:
        if self._place >= len(self._tokens):
            return None
        token = self._tokens[self._place]
        operator = _WORD_OPERATORS[token.text.lower()] if token.kind == "worded" else token.text
        if operator not in among or token.kind not in ("operator", "worded"):
            return None
        self._place += 1
        return operator

    def _sum(self) -> Fraction:
        value = self._product()
        while operator := self._next_operator("+-"):
            self._operators.append(operator)
            other = self._product()
            value = value + other if operator == "+" else value - other
        return value

    def _product(self) -> Fraction:
        value = self._power()
        while True:
            operator = self._next_operator("*/")
            if operator is None and self._place < len(self._tokens) and self._tokens[self._place].text == "(":
                operator = "*"  # 2(3 + 4)
            if operator is None:
                return value
            self._operators.append(operator)
            other = self._power()
            value = value * other if operator == "*" else value / other
            if abs(value) > _LARGEST:
                raise ValueError("a number that is too large")

    def _power(self) -> Fraction:
        value = self._atom()
        if self._next_operator("^"):
            self._operators.append("^")
            exponent = self._atom()
            if exponent.denominator != 1 or abs(exponent) > 20:
                raise ValueError("a power that is not followed")
            if abs(value) ** abs(int(exponent)) > _LARGEST:
                raise ValueError("a number that is too large")
            value = value ** int(exponent)
        return value

    def _atom(self) -> Fraction:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("nested too deep")
        try:
            return self._signed()
        finally:
            self._depth -= 1

    def _signed(self) -> Fraction:
        if self._next_operator("-"):
            return -self._atom()
        if self._next_operator("+"):
            return self._atom()
        if self._place >= len(self._tokens):
            raise ValueError("nothing follows an operator")
        token = self._tokens[self._place]
        self._place += 1
        if token.text and token.text in "([{":
            value = self._sum()
            if self._place >= len(self._tokens) or self._tokens[self._place].text not in ")]}":
                raise ValueError("a bracket is not closed")
            self._place += 1
            return value
        if token.kind != "number" or token.value is None:
            raise ValueError("no number")
        self._operands.append(token.value)
        return token.value


def is_near(one: Fraction, other: Fraction) -> bool:
    """Whether two numbers are the same but for rounding; whole ones are not rounded."""
    if one.denominator == other.denominator == 1:
        return one == other
    return one == other or abs(one - other) <= _ROUNDING * max(abs(one), abs(other), Fraction(1, 10))


def shown(number: Fraction) -> str:
    """Return a number for a message."""
    return f"{float(number):.6g}"
