"""Recognises arithmetic worked out in writing, column by column, and puts its equation in its place.

``47+8, 7+8=15 carry 1, 4+1=5`` says no more than ``47 + 8 = 55``: its columns are no claims of the step.
A working is taken for its equation only if every number in it is the one that the calculation calls for,
place by place; any other stays in the text as it is written, and ``find_unproven`` names it.

What counts as a working, after ``a op b`` and any punctuation, from the ones up:

- sums and differences of the digits of one place; the carry as a third term or added afterwards, the
  borrowed one taken off with the lower digit or from the upper one beforehand;
- products by one digit, the carry added in the same line or in the next;
- quotients by one digit or by 10, part by part (``14 = 3*4 + 2``, ``3*4 = 12 rest 2``, ``14/3 = 4 rest 2``);
- after any of these what is carried, borrowed, written or left over, in words; in the end the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import islice, permutations
from typing import Final, NamedTuple, TypeAlias

from reason_spec.verifiers.lexicon import stem
from reason_spec.verifiers.scanner import Token

_MAX_DIGITS: Final = 12
_MAX_LINES_PER_PLACE: Final = 6
_SIGNS: Final = ("+", "-", "*", "/", "=")
_MAY_FOLLOW: Final = re.compile(r"\d+[-+*/]\d+;|[a-z];")
"""What may stand behind a working: the next calculation, or a note without a number (``55 are left``)."""
_NOTES: Final[Mapping[str, str]] = {
    stem(word): letter
    for letter, words in (
        ("c", "carry"),
        ("b", "borrow regroup"),
        ("r", "rest remainder remaining left over"),
        ("w", "write put down"),
    )
    for word in words.split()
}
"""Words beside a column to the letter that stands for them in a pattern."""
_LINKS: Final = frozenset(
    "and so then now thus therefore hence we it that this which is are gives get".split()
)
"""Words that may join the parts of a working."""


class _Calculation(NamedTuple):
    a: int
    operator: str
    b: int
    end: int

    @property
    def value(self) -> Fraction:
        return _value(self.a, self.operator, self.b)


def _value(a: int, operator: str, b: int) -> Fraction:
    if operator == "/":
        return Fraction(a, b)
    return Fraction({"+": a + b, "-": a - b, "*": a * b}[operator])


class _Line(NamedTuple):
    """An equation ``7+8=15;``, a column ``2-8;``, a digit ``4;``, one in words ``~4;`` or a note ``c1;``."""

    text: str
    end: int
    in_words: bool


def fold_longhand(out: list[Token], tokens: list[Token], index: int) -> int:
    """Write ``a op b = value`` for a calculation at ``index`` and its sound working; a ``Fold``."""
    calculation = _calculation(out, tokens, index)
    if calculation is None:
        return 0
    lines = _lines(tokens, calculation)
    end = _end_of_working(calculation, lines) if lines else None
    if end is None:
        return 0
    value = calculation.value
    out += tokens[index : index + 3]
    out += [Token("relation", "="), Token("number", str(value), value, spaced=True)]
    return end - index


def find_unproven(tokens: Sequence[Token]) -> frozenset[str]:
    """Return the workings that ``fold_longhand`` has left: calculations with columns of another."""
    found: set[str] = set()
    operators = [
        i for i, token in enumerate(tokens) if i and token.kind == "operator" and token.text in "+-*/"
    ]
    for index in (operator - 1 for operator in operators):
        calculation = _calculation(tokens[max(index - 1, 0) : index], tokens, index)
        if calculation is None:
            continue
        lines = _lines(tokens, calculation)
        if lines:
            expression = f"{calculation.a}{calculation.operator}{calculation.b}"
            found.add(f"{expression}: {''.join(line.text for line in lines)}")
    return frozenset(found)


def _calculation(before: Sequence[Token], tokens: Sequence[Token], index: int) -> _Calculation | None:
    """Read ``a op b`` of whole numbers, alone between words or punctuation."""
    if index + 3 >= len(tokens) or (before and before[-1].kind not in ("word", "break")):
        return None
    a, operator, b, behind = tokens[index : index + 4]
    if operator.kind != "operator" or operator.text not in "+-*/" or behind.kind != "break":
        return None
    top, bottom = _whole(a), _whole(b)
    if top is None or bottom is None or (operator.text == "/" and bottom == 0):
        return None
    return _Calculation(top, operator.text, bottom, index + 3)


def _whole(token: Token) -> int | None:
    value = token.value
    if value is None or value.denominator != 1 or not 0 <= value.numerator < 10**_MAX_DIGITS:
        return None
    return value.numerator


def _lines(tokens: Sequence[Token], calculation: _Calculation) -> list[_Line]:
    """Return what may be the working of ``calculation``, up to the first other word, and one line more.

    A working begins with an equation, or with a column and the note that it borrows.
    """
    lines = _read_lines(tokens, calculation.end)
    start = list(islice(lines, 2))
    if not any("=" in line.text for line in start[:1]) and not any(line.text[0] == "b" for line in start):
        return []
    num_places = len(str(max(calculation.a, calculation.b)))
    return start + list(islice(lines, _MAX_LINES_PER_PLACE * num_places))


def _read_lines(tokens: Sequence[Token], start: int) -> Iterator[_Line]:
    text, in_note, in_words = "", False, False
    for index in range(start, len(tokens)):
        token = tokens[index]
        word = stem(token.text) if token.kind == "word" else ""
        link = token.kind == "word" and token.text in _LINKS
        next_note = word in _NOTES and (not in_note or text[-1:].isdecimal())
        if text and (token.kind == "break" or link or next_note):
            yield _line(text, index, in_words)
            text, in_note, in_words = "", False, False
        number = _whole(token)
        if word in _NOTES:
            text, in_note = text or _NOTES[word], True
        elif link:
            in_words = True
        elif number is not None and not text[-1:].isdecimal() and (in_note or not token.weak):
            text += str(number)
        elif token.text in _SIGNS and not in_note:
            text += token.text
        elif token.kind != "break" and token.text not in ("the", "a"):
            return
    if text:
        yield _line(text, len(tokens), in_words)


def _line(text: str, end: int, in_words: bool) -> _Line:
    return _Line(f"{'~' if in_words and text.isdecimal() else ''}{text};", end, in_words)


def _end_of_working(calculation: _Calculation, lines: Sequence[_Line]) -> int | None:
    """Return where the working ends, None if it is not sound or something is left of it."""
    written = "".join(line.text for line in lines)
    parts = _working(calculation.a, calculation.operator, calculation.b)
    length = _match(written, 0, parts, 0) if parts else None
    if length is None or "=" not in written[:length]:
        return None
    num_lines = written.count(";", 0, length)
    behind = lines[num_lines] if num_lines < len(lines) else None
    if behind is not None and not behind.in_words and not _MAY_FOLLOW.fullmatch(behind.text):
        return None
    return lines[num_lines - 1].end


_Part: TypeAlias = tuple[str, ...]
"""The ways to write one part of a working, the first that leads to an end is taken; "" may be left out."""


def _match(text: str, start: int, parts: Sequence[_Part], index: int) -> int | None:
    """Return where a text that is written in one of the ways of each part ends, None if it is not."""
    if index == len(parts):
        return start
    for way in parts[index]:
        if text.startswith(way, start):
            end = _match(text, start + len(way), parts, index + 1)
            if end is not None:
                return end
    return None


@lru_cache(maxsize=1024)
def _working(a: int, operator: str, b: int) -> tuple[_Part, ...] | None:
    """Return the parts of all workings of ``a operator b``, None where none is known."""
    if operator == "+":
        places: Iterable[_Part] = _sum_places(a, b)
    elif operator == "-" and a >= b:
        places = _difference_places(a, b)
    elif operator == "*" and min(a, b) <= 9:
        places = _product_places(max(a, b), min(a, b))
    elif operator == "/" and 0 < b <= 10 and a % b == 0:
        places = _quotient_parts(a, b)
    else:
        return None
    value = _value(a, operator, b)
    return (*places, (f"~{value};", f"r{value};", f"{value};", ""))


def _digits(number: int) -> list[int]:
    """Return the digits, the ones first."""
    return [int(digit) for digit in reversed(str(number))]


def _sums(terms: Sequence[int]) -> list[str]:
    """Return the ways to write a sum, whose terms may stand in any order."""
    return ["+".join(map(str, order)) for order in sorted(set(permutations(terms)))]


def _products(a: int, b: int) -> tuple[str, ...]:
    return (f"{a}*{b}", f"{b}*{a}") if a != b else (f"{a}*{b}",)


def _notes_of_carry(total: int) -> Iterator[_Part]:
    yield (f"w{total % 10};", "")
    if total // 10:
        yield (f"c{total // 10};", "")


def _sum_places(a: int, b: int) -> Iterator[_Part]:
    tops, bottoms = _digits(a), _digits(b)
    carry = 0
    for place in range(max(len(tops), len(bottoms))):
        digits = [*tops[place : place + 1], *bottoms[place : place + 1]]
        total = sum(digits) + carry
        terms = [*digits, carry] if carry else digits
        if len(terms) == 1:
            yield (f"~{total};", f"{total};", "")
        else:
            at_once = [f"{way}={total};" for way in _sums(terms)]
            carried = [
                f"{column}={sum(digits)};{way}={total};"
                for column in (_sums(digits) if carry and len(digits) == 2 else ())
                for way in _sums((sum(digits), carry))
            ]
            yield (*at_once, *carried)
        carry = total // 10
        yield from _notes_of_carry(total)
    if carry:
        yield (f"~{carry};", f"{carry};", "")


def _difference_places(a: int, b: int) -> Iterator[_Part]:
    bottoms = _digits(b)
    borrowed = 0
    for place, top in enumerate(_digits(a)):
        bottom = bottoms[place] if place < len(bottoms) else None
        taken = (bottom or 0) + borrowed
        written = [str(digit) for digit in (bottom, borrowed or None) if digit is not None]
        lent = 10 if top < taken else 0
        digit = top + lent - taken
        if not written:
            yield (f"~{top};", f"{top};", "")
            continue
        column = _columns(top, "-".join(written), digit)
        if borrowed and bottom is not None:
            lowered = _columns(top - 1, str(bottom), digit)
            column += [f"{top}-1={top - 1};{way}" for way in lowered] + lowered
        yield tuple(column)
        yield (f"w{digit};", "")
        if lent:
            yield ("b1;", "b;", "")
        borrowed = 1 if lent else 0


def _columns(top: int, taken: str, digit: int) -> list[str]:
    """Return the ways to write ``top-taken=digit``; the open column may stand before one that borrows."""
    least = sum(map(int, taken.split("-")))
    if top >= least:
        return [f"{top}-{taken}={digit};"]
    return [
        f"{column}{note}{top + 10}-{taken}={digit};"
        for column in (f"{top}-{taken};", "")
        for note in ("b1;", "b;", "")
    ]


def _product_places(a: int, b: int) -> Iterator[_Part]:
    carry = 0
    for digit in _digits(a):
        product = digit * b
        total = product + carry
        if carry:
            ways = _products(digit, b)
            yield (
                *(f"{way}={product};{sums}={total};" for way in ways for sums in _sums((product, carry))),
                *(f"{way}+{carry}={total};" for way in ways),
            )
        else:
            yield tuple(f"{way}={product};" for way in _products(digit, b))
        carry = total // 10
        yield from _notes_of_carry(total)
    if carry:
        yield (f"~{carry};", f"{carry};", "")


def _quotient_parts(a: int, b: int) -> Iterator[_Part]:
    part = 0
    started = False
    for digit in str(a):
        part = 10 * part + int(digit)
        if part < b and not started:
            continue
        started = True
        quotient, rest = divmod(part, b)
        products = _products(b, quotient)
        remainders = (f"+{rest}",) if rest else ("+0", "")
        in_two = (*(f"{way}={b * quotient};" for way in products), f"{part}/{b}={quotient};")
        left_over = (f"r{rest};", f"{part}-{b * quotient}={rest};", "")
        yield (
            *(f"{part}={way}{more};" for way in products for more in remainders),
            *(f"{way}{more}={part};" for way in products for more in remainders),
            *(f"{way}{more}" for way in in_two for more in left_over),
        )
        part = rest
