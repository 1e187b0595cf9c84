"""Arithmetic in text: its tokens, the equalities that they form, and the value of a side.

Units may stand between numbers and operators. A side that cannot be read as arithmetic has no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

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
}
_SCALES: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
WORD_OPERATORS: Final = {"times": "*", "plus": "+", "minus": "-", "over": "/"}
_VARIABLES: Final = frozenset("abcdefijnopqrtuvwxyzABCDNPQRSTXYZ")
"""Letters right behind a number that make it a term; the others are units."""
_EQUALITY_WORDS: Final = frozenset({"is", "are", "equals", "equal", "gives", "makes", "was", "leaves"})

_TOKEN: Final = re.compile(
    r"(?P<clock>\b\d{1,2}:\d{2}\b)"
    r"|(?P<number>\d+(?:\.\d+)?|\.\d+)(?P<percent>\s?(?:%|percent\b))?(?P<ordinal>(?:st|nd|rd|th)\b)?"
    r"(?P<scale>\s(?:thousand|million|billion|trillion)\b)?"
    r"|(?P<word>[A-Za-z][A-Za-z'\-]*[A-Za-z]|[A-Za-z])"
    r"|(?P<equal>=)|(?P<operator>[-+*/^])|(?P<paren>[()\[\]{}])|(?P<end>[.;:,?!\n])"
)


class Token(NamedTuple):
    """A piece of text; ``kind`` is a group of `_TOKEN`, ``worded`` (an operator in words) or ``variable``."""

    kind: str
    text: str
    value: Fraction | None = None


class Value(NamedTuple):
    """The value of an expression, with its operands and operators in their order."""

    value: Fraction
    operands: tuple[Fraction, ...]
    operators: str


def number_of_word(word: str) -> Fraction | None:
    """Return the number that a word names, such as ``twelve`` or ``twice``; None for other words."""
    return _NUMBER_WORDS.get(word.lower())


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a normalized text; numbers of very many digits are words."""
    before: tuple[str, str] = ("", "")
    scanned = list(_TOKEN.finditer(text))
    for index, found in enumerate(scanned):
        kind = found.lastgroup
        follows_number = index + 1 < len(scanned) and bool(scanned[index + 1]["number"])
        if found["clock"]:
            hours, minutes = found["clock"].split(":")
            yield Token("number", found["clock"], int(hours) + Fraction(int(minutes), 60))
        elif found["number"]:
            digits = found["number"]
            if len(digits) > _MOST_DIGITS:
                yield Token("word", digits)
                before = (before[1], digits)
                continue
            scale = _SCALES[found["scale"].strip()] if found["scale"] else 1
            value = Fraction(digits) * scale / (100 if found["percent"] else 1)
            yield Token("word" if found["ordinal"] else "number", found[0].strip(), value)
        elif kind == "word" and found[0].lower() in WORD_OPERATORS:
            yield Token("worded", found[0])
        elif found[0] == "of" and follows_number and _is_share(before):
            yield Token("worded", "times")
        elif kind == "word" and found[0] in _VARIABLES and text[found.start() - 1 : found.start()].isdigit():
            yield Token("variable", found[0])
        else:
            yield Token(kind or "end", found[0])
        before = (before[1], found[0].strip())


def _is_share(before: tuple[str, str]) -> bool:
    """Whether a number is taken of the next one: ``50 % of``, ``1/2 of``, ``(1/2) of``."""
    return before[1].endswith(("%", "percent", ")")) or before[0] == "/"


def equalities(tokens: Sequence[Token]) -> Iterator[list[list[Token]]]:
    """Yield the equalities of a text, each as the tokens of its sides."""
    sides: list[list[Token]] = [[]]
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


def _has_operation(side: Sequence[Token]) -> bool:
    """Whether an operator stands before a number: 5-day has none."""
    return any(one.kind in ("operator", "worded") and other.kind == "number" for one, other in pairwise(side))


def evaluate(side: Sequence[Token], *, is_result: bool) -> Value | None:
    """Return the value of the arithmetic in a side of an equality; None if there is none, or more.

    A value without operands is not known: it is one of something in words (``her age - 4``).

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
        if behind and arithmetic is behind and _is_operand(tokens[words[-1]], behind[0]):
            return Value(Fraction(0), (), "")
    parser = _Parser(arithmetic)
    try:
        return parser.read()
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def _is_operand(word: Token, sign: Token) -> bool:
    """Whether a quantity in words stands before an operator: ``her age - 4``, not ``gives -4``."""
    return sign.kind == "operator" and word.text.lower() not in _EQUALITY_WORDS


def _without_units(side: Sequence[Token]) -> list[Token]:
    """Drop the words behind a number, up to the operator or the end of the side, and units in fractions."""
    kept: list[Token] = []
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


def _is_wordy(side: Sequence[Token], place: int) -> bool:
    """Whether the bracket at ``place`` belongs to a bracket around words alone."""
    if side[place].text in "([{":
        inner = side[place + 1 : place + 1 + _UNIT_WORDS]
        close = next((i for i, t in enumerate(inner) if t.text in ")]}"), None)
        return close is not None and all(t.kind == "word" for t in inner[:close])
    opened = next((t for t in reversed(side[:place]) if t.kind != "word"), None)
    return opened is not None and opened.text in "([{"


class _Parser:
    """Recursive descent over numbers, ``+ - * / ^`` and brackets."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._operands: list[Fraction] = []
        self._operators: list[str] = []
        self._depth = 0

    def read(self) -> Value:
        value = self._sum()
        if self._place != len(self._tokens) or len(self._operands) > _MOST_OPERANDS:
            raise ValueError("no arithmetic")
        return Value(value, tuple(self._operands), "".join(self._operators))

    def _next_operator(self, among: str) -> str | None:
        if self._place >= len(self._tokens):
            return None
        token = self._tokens[self._place]
        operator = WORD_OPERATORS[token.text.lower()] if token.kind == "worded" else token.text
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
