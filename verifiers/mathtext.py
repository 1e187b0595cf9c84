"""Reads the mathematics in a step: LaTeX, Unicode and plain text become one stream of tokens.

Three stages: ``latex`` rewrites notation as plain text, ``scanner`` cuts it into raw tokens, and the passes
here fold these into quantities and operators. Values are exact fractions. The readings that are
conventions, not facts:

- ``x %`` is x/100 whatever follows; ``of`` between a fraction or percentage and a number multiplies;
- a proper fraction of two integers (``1/2``, ``\\frac{3}{4}``) is one quantity, ``12/4`` is a division;
- an integer before a proper fraction is a mixed number (``2 1/2``);
- ``50 cents`` is 0.5, as money; a currency sign says nothing else;
- ``one``, number words behind an article ("the two equations") and the numbers of lists and headings
  ("Step 3:") are *weak*: they may go unmatched, but not meet another number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from reason_spec.verifiers.latex import normalize
from reason_spec.verifiers.longhand import fold_longhand
from reason_spec.verifiers.scanner import MAX_DIGITS, Token, scan

Fold: TypeAlias = Callable[[list[Token], list[Token], int], int]
"""Writes to ``out`` what it makes of ``tokens[index:]`` and returns how many it read, 0 for none."""

_UNITS: Final = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen".split()
    )
}
_TENS: Final = {
    word: 10 * value
    for value, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2)
}
_SCALES: Final = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_MULTIPLES: Final = {
    "twice": 2, "double": 2, "doubles": 2, "doubled": 2, "doubling": 2, "thrice": 3, "triple": 3,
    "triples": 3, "tripled": 3, "tripling": 3, "quadruple": 4, "quadrupled": 4, "quadruples": 4,
}  # fmt: skip
_PARTS: Final = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
    "eighth": 8, "ninth": 9, "tenth": 10, "twelfth": 12, "hundredth": 100,
}  # fmt: skip
_ORDINALS: Final = {"first": 1, "second": 2, **_PARTS}


def tokenize(text: str) -> tuple[Token, ...]:
    """Return the canonical tokens of a text; equal notations of one quantity give equal tokens.

    Paragraphs are read one by one: of a solution that grows, only what is new is read again.
    """
    if "\n" not in text:
        return _tokenize_paragraph(text)
    return tuple(chain.from_iterable(map(_tokenize_with_blanks, _paragraphs(text))))


@lru_cache(maxsize=256)
def split_paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a text, which are read one by one.

    Blank lines behind a full stop are left out: a step reads as it will where others follow it.
    """
    return tuple(_body(paragraph) for paragraph in _paragraphs(text))


def _body(paragraph: str) -> str:
    body = paragraph.rstrip()
    if body is paragraph or not body.endswith(".") or body.endswith(".."):
        return paragraph
    last = _tokenize_paragraph(body)[-1]
    return body if last.text == "." and not last.math else paragraph


def _tokenize_with_blanks(paragraph: str) -> tuple[Token, ...]:
    body = _body(paragraph)
    tokens = _tokenize_paragraph(body)
    return tokens if body is paragraph else tokens + _tokenize_paragraph(paragraph[len(body) :])


def _paragraphs(text: str) -> Iterator[str]:
    """Cut behind blank lines, but for those inside a formula."""
    start = 0
    for blank in _BLANK_LINES.finditer(text):
        paragraph = text[start : blank.end()]
        if ("\\" not in paragraph and "$" not in paragraph) or (
            all(paragraph.count(opener) == paragraph.count(closer) for opener, closer in _DISPLAYS)
            and paragraph.count("$") % 2 == 0
        ):
            yield paragraph
            start = blank.end()
    if start < len(text):
        yield text[start:]


_BLANK_LINES: Final = re.compile(r"\n[ \t]*\n\s*")
_DISPLAYS: Final = (("\\[", "\\]"), ("\\(", "\\)"), ("\\begin", "\\end"))


@lru_cache(maxsize=8192)
def _tokenize_paragraph(text: str) -> tuple[Token, ...]:
    tokens = scan(normalize(text))
    texts = [token.text for token in tokens]
    for fold, places in _PASSES:
        if indices := places(tokens, texts):
            num_tokens = len(tokens)
            rewritten = _rewrite(tokens, fold, indices)
            if len(rewritten) != num_tokens or rewritten != tokens:
                tokens, texts = rewritten, [token.text for token in rewritten]
    return tuple(tokens)


def _rewrite(tokens: list[Token], fold: Fold, indices: Iterable[int] | None = None) -> list[Token]:
    """Apply ``fold`` from left to right, at ``indices`` alone or everywhere.

    It sees what is already written and what is still to read.
    """
    out: list[Token] = []
    index = 0
    for place in range(len(tokens)) if indices is None else indices:
        if place < index:
            continue
        out += tokens[index:place]
        num_read = fold(out, tokens, place)
        if num_read == 0:
            out.append(tokens[place])
        index = place + (num_read or 1)
    out += tokens[index:]
    return out


_NO_TOKEN: Final = Token("break", "")


def _at(tokens: Sequence[Token], index: int) -> Token:
    return tokens[index] if 0 <= index < len(tokens) else _NO_TOKEN


def _is_integer(token: Token) -> bool:
    return token.value is not None and token.value.denominator == 1


_FUNCTION_WORDS: Final = frozenset({"root", "floor"})


def _fold_letters(out: list[Token], tokens: list[Token], index: int) -> int:
    """Tell variables from words: ``a`` and ``I`` beside an operator, ``train A``; a floor is no function.

    ``$a$`` regions end where words begin.
    """
    token, following, previous = tokens[index], _at(tokens, index + 1), _at(out, len(out) - 1)
    if token.kind == "symbol" and token.text in _FUNCTION_WORDS and following.kind != "open":
        out.append(Token("word", token.text, initial=token.initial, spaced=token.spaced, math=token.math))
        return 1
    if token.text == "a" and token.capital and not token.initial and previous.kind == "word":
        out.append(replace(token, kind="symbol", text="A", capital=False))
        return 1
    if token.kind == "word" and token.text in ("a", "i") and not token.possessive:
        arithmetic = ("operator", "relation")
        tight = not following.spaced or following.text in "=+-*/^<>"
        if (following.kind in arithmetic and tight) or previous.kind in arithmetic:
            out.append(replace(token, kind="symbol", text=token.text))
            return 1
    if token.text == "x" and previous.value is not None and following.value is not None and token.spaced:
        out.append(Token("operator", "*", spaced=True))
        return 1
    delimiter = token.kind == "break" and token.text == ""
    separates = previous.ends_operand and following.kind in ("number", "symbol", "open")
    return 1 if delimiter and not separates else 0


def _fold_number_words(out: list[Token], tokens: list[Token], index: int) -> int:
    cardinal = _read_cardinal(tokens, index)
    value, end = cardinal.value, cardinal.end
    article = tokens[index].text == "a" and value is None
    after = index + 1 if article else end
    if value is not None and _at(tokens, after).text == "-" and _at(tokens, after + 1).text in _PLURAL_PARTS:
        after += 1
    part = _PLURAL_PARTS.get(_at(tokens, after).text) if _at(tokens, after).kind == "word" else None
    if part and (value is not None or article):
        out.append(_quantity(Fraction(1 if value is None else value, part)))
        return after + 1 - index
    if article and (scale := _SCALES.get(_at(tokens, after).text)):
        value, end = Fraction(scale), after + 1
    elif _at(tokens, after).text == "dozen" and (value is not None or article):
        value, end = Fraction(12) * (1 if value is None else value), after + 1
    if value is not None:
        words = [_at(tokens, end + offset).text for offset in range(3)]
        if words[:2] == ["and", "a"] and words[2] in ("half", "quarter", "third"):
            value, end = value + Fraction(1, _PARTS[words[2]]), end + 3
        lone = tokens[index].kind == "word" and end == index + 1
        weak = lone and (value == 1 or _at(out, len(out) - 1).text in _DETERMINERS)
        if tokens[index].kind == "number" and end == index + 1:
            return 0
        out.append(_quantity(value, weak))
        return end - index
    return _fold_lone_word(out, tokens, index)


def _fold_lone_word(out: list[Token], tokens: list[Token], index: int) -> int:
    token = tokens[index]
    if token.kind != "word":
        return 0
    if token.text == "half":
        out.append(_quantity(Fraction(1, 2)))
    elif token.text in _MULTIPLES:
        out += [_quantity(Fraction(_MULTIPLES[token.text])), Token("word", "times")]
    elif token.text in _ORDINALS and not token.initial:
        out.append(Token("word", f"ordinal{_ORDINALS[token.text]}"))
    else:
        return 0
    return 1


@dataclass(frozen=True, slots=True)
class _Cardinal:
    value: Fraction | None
    end: int


def _read_cardinal(tokens: list[Token], index: int) -> _Cardinal:
    """Read ``25``, ``1.5 million``, ``two hundred and five`` or ``twenty-five`` at ``index``."""
    first = tokens[index]
    total, current, end = Fraction(0), first.value, index + 1
    if current is None:
        current = _small_cardinal(first)
        if current is None:
            return _Cardinal(None, index)
        hyphen = _at(tokens, end).text == "-"
        unit = _UNITS.get(_at(tokens, end + hyphen).text, 0)
        if first.text in _TENS and 0 < unit < 10:
            current, end = current + unit, end + hyphen + 1
    elif first.weak:
        return _Cardinal(None, index)
    while scale := _SCALES.get(_at(tokens, end).text):
        current, end = current * scale, end + 1
        step = 1 if _at(tokens, end).text == "and" and scale == 100 else 0
        lower = _small_cardinal(_at(tokens, end + step))
        if lower is None:
            continue
        rest = _read_cardinal(tokens, end + step)
        if rest.value is not None and rest.value < scale:
            total, current, end = total + current, rest.value, rest.end
    return _Cardinal(total + current, end)


def _small_cardinal(token: Token) -> Fraction | None:
    if token.kind != "word":
        return None
    value = _UNITS.get(token.text, _TENS.get(token.text))
    return None if value is None else Fraction(value)


def _quantity(value: Fraction, weak: bool = False) -> Token:
    return Token("number", str(value), value, weak=weak, spaced=True)


_INFIX_WORDS_EQUAL: Final = frozenset({"equals", "equal", "gives", "makes", "yields", "is", "are"})
_POSTFIX_WORDS: Final = {"squared": 2, "cubed": 3}


def _fold_word_operators(out: list[Token], tokens: list[Token], index: int) -> int:
    token, previous = tokens[index], _at(out, len(out) - 1)
    if token.kind != "word":
        return 0
    if token.text in ("percent", "degree", "degrees") and previous.kind == "number":
        out.append(Token("operator", "%" if token.text == "percent" else "°"))
        return 1
    if token.text in _POSTFIX_WORDS and previous.ends_operand:
        power = _POSTFIX_WORDS[token.text]
        out += [Token("operator", "^"), _quantity(Fraction(power))]
        return 1
    if not (previous.ends_operand or previous.text in ("%", "°")):
        return 0
    num_words, operator = _infix(out, tokens, index)
    if token.text in _RESULTING and _states_relation(tokens, index + num_words):
        return 0
    following = _at(tokens, index + num_words)
    starts_operand = following.kind in ("number", "symbol", "open") or following.text == "-"
    if not operator or not starts_operand:
        return 0
    out.append(Token("relation" if operator in "=≈" else "operator", operator, spaced=True))
    return num_words


_RESULTING: Final = frozenset({"gives", "makes", "yields"})


def _states_relation(tokens: Sequence[Token], start: int) -> bool:
    """Whether a formula with a relation begins at ``start``: ``dividing by m yields a = F/m``."""
    for token in tokens[start : start + _MAX_FORMULA]:
        if token.kind in ("word", "break"):
            return False
        if token.kind == "relation":
            return True
    return False


_MAX_FORMULA: Final = 40


class _Infix(NamedTuple):
    num_words: int
    operator: str


def _infix(out: list[Token], tokens: list[Token], index: int) -> _Infix:
    word, second = tokens[index].text, _at(tokens, index + 1).text
    if second == "by" and word in ("divided", "multiplied"):
        return _Infix(2, "/" if word == "divided" else "*")
    if word in ("plus", "minus", "times"):
        return _Infix(1, {"plus": "+", "minus": "-", "times": "*"}[word])
    if word == "of" and out[-1].kind == "number" and (out[-1].percent or _is_part(out[-1])):
        return _Infix(1 + (second in _DETERMINERS), "*")
    if word == "of" and out[-1].text == "%":
        return _Infix(1 + (second in _DETERMINERS), "*")
    if word in _INFIX_WORDS_EQUAL and (_ends_expression(out) or out[-1].kind == "symbol"):
        num_words = 3 if [second, _at(tokens, index + 2).text] == ["equal", "to"] else 1
        approximate = second in ("about", "approximately", "roughly")
        return _Infix(num_words + approximate, "≈" if approximate else "=")
    return _Infix(1, "")


_DETERMINERS: Final = frozenset({"the", "these", "those", "her", "his", "their", "its", "all"})


def _is_part(token: Token) -> bool:
    return token.value is not None and 0 < token.value < 1 and token.decimals < 0


def _ends_expression(out: list[Token]) -> bool:
    """Whether the operand at the end of ``out`` closes an expression that holds an operator."""
    for token in reversed(out[-40:]):
        if token.kind == "operator" and token.text in "+-*/^":
            return True
        if token.kind not in ("number", "symbol", "open", "close", "operator"):
            return False
    return False


def _fold_hyphens(out: list[Token], tokens: list[Token], index: int) -> int:
    """Drop hyphens, emphasis and stray marks; a spaced dash between words separates clauses."""
    token, following, previous = tokens[index], _at(tokens, index + 1), _at(out, len(out) - 1)
    if token.kind != "operator":
        return 0
    beside_word = previous.kind == "word" or following.kind == "word"
    if token.text == "!":
        arithmetic = token.math or following.kind in ("relation", "operator", "close")
        if not (previous.ends_operand and not token.spaced and arithmetic):
            out.append(Token("break", "."))
            return 1
    elif token.text in "*_" and beside_word:
        return 0 if token.spaced and following.spaced else 1
    elif token.text == "-" and beside_word and not (token.math and following.value is not None):
        if not token.spaced and not following.spaced:
            return 1
        if following.spaced:
            out.append(Token("break", ";"))
            return 1
    elif token.text == "/" and beside_word:
        out.append(Token("word", "per"))
        return 1
    return 0


def _fold_powers(out: list[Token], tokens: list[Token], index: int) -> int:
    base, caret = tokens[index], _at(tokens, index + 1)
    if base.value is None or caret.text != "^":
        return 0
    exponent = _read_exponent(tokens, index + 2)
    if exponent.value is None or exponent.value.denominator != 1 or _at(tokens, exponent.end).text == "^":
        return 0
    size = abs(exponent.value) * max(len(str(base.value)), 1)
    if size > 4 * MAX_DIGITS or (base.value == 0 and exponent.value <= 0):
        return 0
    value = base.value ** int(exponent.value)
    text = f"10^{exponent.value}" if base.value == 10 else str(value)
    out.append(replace(base, text=text, value=value, decimals=-1))
    return exponent.end - index


def _read_exponent(tokens: list[Token], index: int) -> _Cardinal:
    """Read ``3``, ``-3``, ``(3)`` or ``(-3)``; ``end`` is the index after it."""
    bracket = _at(tokens, index).kind == "open"
    at = index + bracket
    negative = _at(tokens, at).text == "-"
    number = _at(tokens, at + negative)
    end = at + negative + 1
    if number.value is None or (bracket and _at(tokens, end).kind != "close"):
        return _Cardinal(None, index)
    return _Cardinal(-number.value if negative else number.value, end + bracket)


def _fold_scientific(out: list[Token], tokens: list[Token], index: int) -> int:
    mantissa, times, power = (_at(tokens, index + offset) for offset in range(3))
    if mantissa.value is None or times.text != "*" or power.value is None or not power.text.startswith("10^"):
        return 0
    if _at(out, len(out) - 1).text in ("/", "^"):
        return 0
    out.append(replace(mantissa, text=str(mantissa.value * power.value), value=mantissa.value * power.value))
    return 3


def _fold_fractions(out: list[Token], tokens: list[Token], index: int) -> int:
    top, slash, bottom = (_at(tokens, index + offset) for offset in range(3))
    tight = slash.text == "/" and not slash.spaced and not bottom.spaced
    if not (tight and _is_integer(top) and _is_integer(bottom)):
        return 0
    assert top.value is not None
    assert bottom.value is not None
    beside = (_at(out, len(out) - 1).text, _at(tokens, index + 3).text)
    alone = _at(out, len(out) - 1).kind == "relation" and _at(tokens, index + 3).kind in ("break", "word")
    improper = alone and bottom.value > 1 and top.value % bottom.value != 0
    if not (0 < top.value < bottom.value or improper) or beside[0] in ("/", "^") or beside[1] in ("/", "^"):
        return 0
    out.append(replace(top, text=str(top.value / bottom.value), value=top.value / bottom.value, decimals=-1))
    return 3


def _fold_mixed_numbers(out: list[Token], tokens: list[Token], index: int) -> int:
    whole, part = tokens[index], _at(tokens, index + 1)
    if not (_is_integer(whole) and _is_part(part)) or whole.weak or _at(out, len(out) - 1).text in ("/", "^"):
        return 0
    assert whole.value is not None
    assert part.value is not None
    out.append(
        replace(whole, text=str(whole.value + part.value), value=whole.value + part.value, decimals=-1)
    )
    return 2


def _fold_shares(out: list[Token], tokens: list[Token], index: int) -> int:
    """Read ``25 of every 100`` and ``1 out of each 4`` as fractions."""
    part = tokens[index]
    behind = [_at(tokens, index + offset).text for offset in range(1, 4)]
    num_words = next((n for n in (2, 3) if behind[:n] in _SHARE_WORDS), 0)
    whole = _at(tokens, index + num_words + 1)
    if not num_words or part.value is None or not whole.value or part.weak or whole.weak:
        return 0
    out.append(_quantity(part.value / whole.value))
    return num_words + 2


_SHARE_WORDS: Final = [
    [*prepositions, determiner]
    for prepositions in (["of"], ["in"], ["out", "of"])
    for determiner in ("every", "each")
]


def _fold_percent_and_money(out: list[Token], tokens: list[Token], index: int) -> int:
    number, unit = tokens[index], _at(tokens, index + 1)
    if number.value is None:
        return 0
    if unit.text == "%" or (unit.kind == "word" and unit.text in ("cent", "cents")):
        value = number.value / 100
        percent = unit.text == "%"
        decimals = -1 if number.decimals < 0 else number.decimals + 2
        out.append(
            replace(
                number,
                text=str(value),
                value=value,
                percent=percent,
                decimals=decimals,
                weak=False,
                money=not percent,
            )
        )
        return 2
    if unit.kind == "word" and unit.text in ("dollar", "dollars"):
        out.append(replace(number, money=True))
        return 2
    return 0


def _fold_signs(out: list[Token], tokens: list[Token], index: int) -> int:
    sign, number = tokens[index], _at(tokens, index + 1)
    unary = sign.text == "-" and not _at(out, len(out) - 1).ends_operand
    if not unary or _at(out, len(out) - 1).text in ("!", "°") or number.value is None:
        return 0
    out.append(replace(number, text=str(-number.value), value=-number.value))
    return 2


def _fold_units_in_equations(out: list[Token], tokens: list[Token], index: int) -> int:
    """Drop what is counted inside an equation: ``47 apples + 8 apples = 55 apples``, ``(5 km)/(2 h)``."""
    if _at(out, len(out) - 1).value is None:
        return 0
    num_words = 0
    while num_words < 5 and _at(tokens, index + num_words).kind == "word":
        if tokens[index + num_words].capital:
            return 0
        num_words += 1
    following, behind = _at(tokens, index + num_words), _at(tokens, index + num_words + 1)
    arithmetic = following.kind == "relation" or (following.kind == "operator" and following.text in "+-*/")
    in_term = following.kind == "close" and behind.kind in ("operator", "relation", "close")
    return num_words if arithmetic or in_term else 0


_PLURAL_PARTS: Final = {**_PARTS, **{part + "s": value for part, value in _PARTS.items()}}

_NUMBER_WORDS: Final = frozenset(
    {*_UNITS, *_TENS, *_SCALES, *_MULTIPLES, *_ORDINALS, *_PLURAL_PARTS, "dozen"}
)
_WORD_OPERATORS: Final = frozenset(
    {"percent", "degree", "degrees", "divided", "multiplied", "plus", "minus", "times", "of"}
    | _POSTFIX_WORDS.keys()
    | _INFIX_WORDS_EQUAL
)
_MONEY: Final = frozenset({"%", "cent", "cents", "dollar", "dollars"})
_ARITHMETIC: Final = frozenset("+-*/")

Places: TypeAlias = Callable[[Sequence[Token], Sequence[str]], list[int]]
"""Finds, in tokens and their texts, all indices where a fold may read anything."""


def _beside(triggers: frozenset[str], first: int = 0, last: int | None = None) -> Places:
    """Return the places from which one of ``triggers`` stands ``first`` to ``last`` tokens further on."""
    offsets = range(first, (first if last is None else last) + 1)

    def places(_: Sequence[Token], texts: Sequence[str]) -> list[int]:
        if triggers.isdisjoint(texts):
            return []
        found = [index for index, text in enumerate(texts) if text in triggers]
        if len(offsets) == 1:
            return [index - first for index in found if index >= first]
        return sorted({index - offset for index in found for offset in offsets if index >= offset})

    return places


def _before_parts(tokens: Sequence[Token], _: Sequence[str]) -> list[int]:
    return [
        index - 1
        for index, token in enumerate(tokens)
        if index and token.value is not None and token.value.denominator != 1
    ]


def _behind_numbers(tokens: Sequence[Token], texts: Sequence[str]) -> list[int]:
    """Return the words behind numbers, where anything in the text calculates."""
    if _CALCULATING.isdisjoint(texts):
        return []
    return [
        index
        for index, token in enumerate(tokens)
        if index and token.kind == "word" and tokens[index - 1].value is not None
    ]


_CALCULATING: Final = _ARITHMETIC | frozenset("=≈≠≡<>≤≥)")

# Most steps need few of the passes, and these at few places. Word operators come before powers ("squared"),
# powers before fractions and signs: -3^2 is -9.
_PASSES: Final[tuple[tuple[Fold, Places], ...]] = (
    (_fold_letters, _beside(frozenset({"a", "i", "x", ""}) | _FUNCTION_WORDS)),
    (_fold_number_words, _beside(_NUMBER_WORDS, 0, 3)),
    (_fold_hyphens, _beside(frozenset("!*_-/"))),
    (_fold_powers, _beside(frozenset("^"), 1)),
    (_fold_scientific, _beside(frozenset("*"), 1)),
    (_fold_fractions, _beside(frozenset("/"), 1)),
    (_fold_mixed_numbers, _before_parts),
    (_fold_percent_and_money, _beside(_MONEY, 1)),
    (_fold_shares, _beside(frozenset({"every", "each"}), 2, 3)),
    (_fold_word_operators, _beside(_WORD_OPERATORS)),
    (_fold_powers, _beside(frozenset("^"), 1)),
    (_fold_percent_and_money, _beside(_MONEY, 1)),
    (_fold_signs, _beside(frozenset("-"))),
    (_fold_units_in_equations, _behind_numbers),
    (fold_longhand, _beside(_ARITHMETIC, 1)),
)
