"""Cuts plain text into raw tokens: one for each number, word, symbol and sign, as it is written.

Words stay words here: ``two thirds`` is two tokens, which ``mathtext`` folds into one quantity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

TokenKind: TypeAlias = Literal["number", "word", "symbol", "operator", "relation", "open", "close", "break"]

MAX_DIGITS: Final = 60
"""Longer numbers are symbols: compared as written, never calculated with."""
_MAX_EXPONENT: Final = 60


# Not frozen, which would make each of the thousands in a solution three times as slow to make.
@dataclass(slots=True)
class Token:
    """One unit of a step; nothing changes it once ``scan`` has yielded it.

    ``text`` is canonical: ``*`` for every multiplication sign, lower case for words. ``value`` is set
    for numbers only. ``capital`` marks a word written with a capital letter, ``initial`` one that
    opens a sentence, where a capital says nothing. ``decimals`` counts the digits after the point as
    written (-1 for exact notations) and bounds the rounding error. ``money`` marks dollars and cents.
    """

    kind: TokenKind
    text: str
    value: Fraction | None = None
    weak: bool = False
    capital: bool = False
    initial: bool = False
    possessive: bool = False
    decimals: int = -1
    percent: bool = False
    spaced: bool = False
    math: bool = False
    money: bool = False

    def __hash__(self) -> int:
        return hash((self.kind, self.text))

    @property
    def ends_operand(self) -> bool:
        return self.kind in ("number", "symbol", "close")


FUNCTIONS: Final = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan log ln exp gcd lcm max min mod sqrt root binom floor "
    "ceil det".split()
)

_SCANNER: Final = re.compile(
    r"""
      (?P<label>(?:^|(?<=\n))[ \t\x02]*\#*[ ]*
          (?:step[ ]+\d+[ ]*[.:)] | \d{1,2}[.)](?=[ ]+[A-Za-z\\\x02]) | [-*](?=[ ])))
    | (?P<ordinal>\d+(?:st|nd|rd|th)\b)
    | (?P<fraction>\d+⁄\d+)
    | (?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)? | \d+\.\d+ | (?<![\w.])\.\d+ | \d+)
          (?:[eE][+-]?\d+(?![\w.]))?)
    | \x04(?P<command>[A-Za-z]+(?:_\w+)?)
    | (?P<word>[^\W\d_]+(?:'[^\W\d_]+)*(?:_\w+)?)
    | (?P<relation><=|>=|==|!=|:=|=>|[=≈≠≡<>≤≥])
    | (?P<operator>[-+*/^!%°±_]|\.\.\.|…)
    | (?P<open>[(\[])
    | (?P<close>[)\]])
    | (?P<delimiter>[\x02\x03])
    | (?P<break>[.,;:?"\n|])
    | (?P<currency>[¤£€¥¢])
    """,
    re.VERBOSE | re.IGNORECASE,
)
_RELATIONS: Final = {"<=": "≤", ">=": "≥", "==": "=", "!=": "≠", ":=": "="}


def scan(text: str) -> list[Token]:
    """Return the raw tokens of ``text``, which ``latex.normalize`` has rewritten.

    Equal lexemes in equal places share their tokens.
    """
    tokens: list[Token] = []
    math = False
    initial = True
    currency = False
    end = 0
    for match in _SCANNER.finditer(text):
        kind, lexeme = match.lastgroup or "", match[0]
        spaced = match.start() > end
        if kind != "currency":
            end = match.end()
        if kind == "delimiter":
            math = lexeme == "\x02"
            tokens.append(_DELIMITER)
            continue
        inner = match[kind] if kind == "command" else lexeme
        read, initial = _read_lexeme(kind, lexeme, inner, math, initial, spaced)
        tokens += read
        if currency and kind == "number":
            tokens[-1] = replace(tokens[-1], money=True)
        currency = kind == "currency"
    return tokens


_DELIMITER: Final = Token("break", "")


class _Read(NamedTuple):
    """The tokens of a lexeme, and whether what follows opens a sentence."""

    tokens: tuple[Token, ...]
    initial: bool


@lru_cache(maxsize=16384)
def _read_lexeme(kind: str, lexeme: str, inner: str, math: bool, initial: bool, spaced: bool) -> _Read:
    tokens = tuple(_tokens_of(kind, lexeme, inner, math))
    for token in tokens:
        token.initial, token.spaced, token.math = initial, spaced, math
        spaced = False
        if token.kind == "break":
            initial = token.text in (".", "?", "\n", ":", "")
        else:
            initial = token.text == "label"
    return _Read(tokens, initial)


def _tokens_of(kind: str, lexeme: str, inner: str, math: bool) -> Iterator[Token]:
    match kind:
        case "label":
            digits = re.sub(r"\D", "", lexeme)
            yield Token("break", "\n")
            if digits:
                yield Token("number", digits, Fraction(int(digits)), weak=True)
            yield Token("break", "\n")
        case "ordinal":
            yield Token("word", f"ordinal{int(lexeme[:-2][:MAX_DIGITS])}")
        case "fraction":
            top, _, bottom = lexeme.partition("⁄")
            yield from _fraction(top, bottom)
        case "number":
            yield _number(lexeme)
        case "command":
            yield Token("symbol", inner)
        case "word":
            yield from _word(lexeme, math)
        case "relation":
            if lexeme == "=>":
                yield Token("break", ";")
            else:
                yield Token("relation", _RELATIONS.get(lexeme, lexeme))
        case "operator":
            yield Token("break", "…") if lexeme in ("...", "…") else Token("operator", lexeme)
        case "open" | "close":
            yield Token("open" if kind == "open" else "close", "(" if kind == "open" else ")")
        case "currency":
            if lexeme == "¢":
                yield Token("word", "cents")
        case _:
            yield Token("break", lexeme)


def _fraction(top: str, bottom: str) -> Iterator[Token]:
    if max(len(top), len(bottom)) <= MAX_DIGITS and int(bottom) and int(top) % int(bottom):
        yield Token("number", f"{int(top)}/{int(bottom)}", Fraction(int(top), int(bottom)))
        return
    yield from (
        Token("open", "("),
        _number(top),
        Token("operator", "/"),
        _number(bottom),
        Token("close", ")"),
    )


def _number(lexeme: str) -> Token:
    digits = lexeme.replace(",", "").lower()
    mantissa, _, exponent = digits.partition("e")
    if len(mantissa) > MAX_DIGITS or abs(int(exponent[:9] or 0)) > _MAX_EXPONENT:
        return Token("symbol", digits)
    decimals = len(mantissa.partition(".")[2])
    # Reading a fraction from text takes five times as long.
    value = Fraction(int(digits)) if digits.isdecimal() else Fraction(digits)
    return Token("number", digits, value, decimals=-1 if exponent else decimals)


def _word(lexeme: str, math: bool) -> Iterator[Token]:
    base, _, subscript = lexeme.partition("_")
    lower = base.lower()
    if lower in FUNCTIONS and (math or lower in ("sqrt", "binom", "root", "floor", "ceil")):
        yield Token("symbol", lower)
    elif math and len(base) > 1 and "'" not in base:
        for letter in base[:-1]:
            yield Token("symbol", letter)
        yield Token("symbol", f"{base[-1]}_{subscript}" if subscript else base[-1])
    elif subscript or (math and len(base) == 1) or (len(base) == 1 and base not in "aAI"):
        yield Token("symbol", f"{base}_{subscript}" if subscript else base)
    else:
        possessive = lower.endswith(("'s", "s'"))
        stem = lower.removesuffix("'s").removesuffix("'")
        yield Token("word", stem, capital=base[0].isupper(), possessive=possessive)
