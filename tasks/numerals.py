"""Parses numbers to exact fractions: thousand separators, fractions, percent, units, LaTeX.

Most reference answers are numbers. They are compared as fractions, without sympy and without rounding:
18, 18.0 and $18.00 are equal, 0.3333 and 1/3 are not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_NUMBER_CHARS = 400
"""Longer texts are not parsed: integer arithmetic is quadratic in the digits."""

_CHARACTERS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\uff0d": "-", "\uff0b": "+",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2007": " ", "\u3000": " ",
        "\uff0e": ".", "\uff0c": ",", "\uff05": "%", "\u00d7": "*", "\u2044": "/",
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    }
)  # fmt: skip
_VULGAR_FRACTIONS = {
    "\u00bd": "1/2", "\u00bc": "1/4", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3",
    "\u2155": "1/5", "\u2156": "2/5", "\u2157": "3/5", "\u2158": "4/5", "\u215b": "1/8",
    "\u215c": "3/8", "\u215d": "5/8", "\u215e": "7/8",
}  # fmt: skip

_TEXT_COMMAND = re.compile(
    r"\\(?:text|textrm|textbf|textit|textnormal|mbox|mathrm|mathbf|mathit|bf|rm)\s*\{([^{}]*)\}"
)
_DEGREES = re.compile(
    r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degrees?(?![A-Za-z])|°)(?:\s*[CF](?![A-Za-z]))?"
)
_SMALL_SPACES = re.compile(r"\\[!,]\s*|\{,\}\s*(?=\d)")
_WIDE_SPACES = re.compile(r"\\[;: ]|~|\\q?quad(?![A-Za-z])")
_CURRENCY = re.compile(r"\\?\$|[€£¥₹]|\\(?:pounds|euro)(?![A-Za-z])")
SIGN_WORD = re.compile(r"(?<![\w)}%])(?:minus|negative)\s+(?=[\d.$\\])", re.IGNORECASE)
"""A minus in words before a number, and not between two: ``5 minus 3``."""
_REPEATING = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<fixed>\d*\.\d*)\\overline\s*\{(?P<repeated>\d{1,9})\}", re.ASCII
)
_IN_PARENTHESES = re.compile(r"\([^,]*\)", re.DOTALL)
_LEAD = re.compile(
    r"(?:(?:about|approximately|approx\.?|around|roughly|nearly|almost|exactly|precisely|only|just|simply"
    r"|equals?(?:\s+to)?|a\s+total\s+of)\s+)+(?=\S)|[A-Za-z][A-Za-z ]{1,30}:\s+(?=\S)",
    re.IGNORECASE,
)
"""Words before a number that leave it what it is, and a label such as "Total: "."""
_DELIMITERS = re.compile(r"\\[()\[\]]|\\(?:left|right|displaystyle|boxed)(?![A-Za-z])|`")
# Markdown's bold marks, and not the power sign of 2**3.
BOLD = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w({-])")

_UNSIGNED = (
    r"(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d{1,3}(?:[ ]\d{3})+(?:\.\d+)?(?![\d/])|\d+(?:\.\d*)?|\.\d+)"
)
_FRACTION = re.compile(
    rf"""(?P<sign>[-+]?)\s*
    (?:(?P<whole>\d+)\s*(?=\\frac)|(?P<spaced>\d+)(?P<joint>[ -])(?=\d+\s*/))?\s*
    (?:\\frac\s*(?:\{{\s*(?P<ln>-?{_UNSIGNED})\s*\}}|(?P<sn>\d))\s*(?:\{{\s*(?P<ld>-?{_UNSIGNED})\s*\}}|(?P<sd>\d))
      |(?P<n>{_UNSIGNED})\s*/\s*(?P<d>-?{_UNSIGNED}))""",
    re.VERBOSE | re.ASCII,
)
_DECIMAL = re.compile(
    rf"""(?P<sign>[-+]?)\s*(?P<mantissa>{_UNSIGNED})
    (?:[eE](?P<exponent>[-+]?\d{{1,3}})(?![\d.])
      |\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{{?\s*(?P<power>[-+]?\d{{1,3}})(?!\d)\s*\}}?)?""",
    re.VERBOSE | re.ASCII,
)
_UNIT_WORD = re.compile(r"([A-Za-zµμ]+)\.?(?:\s*\^\s*\{?\s*[23]\s*\}?|[²³])?")
_UNIT_SEPARATOR = re.compile(r"[\s/·.,-]*")


def _words(text: str) -> list[str]:
    return text.split()


_SHORT_UNITS = frozenset(
    _words(
        "cm km mm dm kg mg lb lbs oz ft in yd mi ml cl dl kl hr hrs min mins sec secs kb mb gb tb hz mph kph "
        "rpm am pm sq cu of at by an us"
    )
)
_NOT_UNITS = frozenset(
    _words(
        "sin cos tan cot sec csc log exp sqrt abs mod and not plus minus times over pow frac dfrac tfrac "
        "cdot pi theta alpha beta gamma infty infinity cup cap pmod bmod choose binom other than less "
        "more squared cubed factorial"
    )
)
_SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_SMALL_NUMBER_WORDS = {
    word: value
    for value, word in enumerate(
        _words(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
            "sixteen seventeen eighteen nineteen"
        )
    )
}
_TENS_WORDS = {
    word: 10 * value
    for value, word in enumerate(_words("twenty thirty forty fifty sixty seventy eighty ninety"), start=2)
}
_PARTS_OF_NUMBERS = frozenset(
    _words(
        "half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths "
        "eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths point first "
        "second"
    )
).union(_SMALL_NUMBER_WORDS, _TENS_WORDS)
"""Words that make another number of the number word before them."""

_TOKEN_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
NUMBER_TOKEN = re.compile(
    rf"""(?:(?<![\w.)\]}}%])(?<!\d\ )[-\u2212](?=[\s$\\]*[\d.\\]))?\s?(?:\\?\$)?\s?
    (?:(?:\d+\s*)?\\[dt]?frac\s*\{{-?\d+\}}\s*\{{-?\d+\}}
      |{_TOKEN_DECIMAL}(?:[eE][-+]?\d{{1,3}}(?!\w)|(?:\s\d+)?\s?/\s?\d+(?![\d/]))?)""",
    re.VERBOSE | re.ASCII,
)
"""A number inside running text, with its sign, its currency and a fraction bar."""

_NAME = re.compile(r"\\?[A-Za-z][A-Za-z\\ ]*(?:_\{?\w+\}?)?(?:\([^()=]*\))?'?")
_ARITHMETIC = re.compile(r"[\d\s.,+\-*/^(){}%$]|\\(?:times|cdot|div|frac)(?![A-Za-z])")
# A single letter with an index is a name.
_BASE_NUMERAL = re.compile(
    r"(?P<digits>\d|[0-9A-Za-z]{2,})_(?:\{\s*(?P<long>\d{1,2})\s*\}|(?P<short>\d{1,2}))"
)


@dataclass(frozen=True, slots=True)
class Number:
    """A written number; ``factor`` is the value of its percent sign or of a word such as "million"."""

    value: Fraction
    factor: Fraction = Fraction(1)

    def equals(self, other: Number) -> bool:
        """Whether both are the same number.

        If only one side has a percent sign or a scale word, both readings count: 25 % equals 25 (a count of
        percent) and 0.25.
        """
        if self.factor != 1 and other.factor != 1:
            return self.value * self.factor == other.value * other.factor
        return bool(self._readings() & other._readings())

    def _readings(self) -> set[Fraction]:
        return {self.value, self.value * self.factor}


def clean_number_text(text: str) -> str:
    """Rewrite LaTeX spacing, text commands, currency and unusual characters as plain characters."""
    for character, fraction in _VULGAR_FRACTIONS.items():
        if character in text:
            text = text.replace(character, f" {fraction}")
    text = text.translate(_CHARACTERS)
    text = _TEXT_COMMAND.sub(r" \1 ", text)
    text = _DEGREES.sub(" degrees ", text)
    text = _SMALL_SPACES.sub(lambda match: "," if match[0].startswith("{") else "", text)
    text = _WIDE_SPACES.sub(" ", text)
    text = _CURRENCY.sub("", text)
    text = BOLD.sub("", _DELIMITERS.sub("", text))
    text = text.replace("\\%", "%").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _without_sign_words(text.strip().rstrip(".,;: "))
    # A pair or an interval is no number with thousands.
    while len(text) > 1 and ((text[0], text[-1]) == ("{", "}") or _IN_PARENTHESES.fullmatch(text)):
        text = text[1:-1].strip()
    return text


def _without_sign_words(text: str) -> str:
    """Write ``minus 7`` as ``-7``; after a number the word is an operation."""
    return SIGN_WORD.sub(
        lambda found: found[0] if text[: found.start()].rstrip()[-1:].isdigit() else "-", text
    )


def parse_number(text: str) -> Number | None:
    """Return the value of ``text`` if it is one number, with or without a unit, else None.

    Understood: signs, currency, thousand separators, decimals, powers of ten, fractions and mixed
    numbers (plain and LaTeX), percent, units, degrees, number words up to ninety-nine, and in front words
    such as "about", a label ("Total: 5"), or a name or worked arithmetic with an equals sign ("x = 5",
    "9 * 2 = 18").
    """
    if len(text) > MAX_NUMBER_CHARS:
        return None
    plain = _right_hand_side(_LEAD.sub("", clean_number_text(text), count=1))
    if plain is None:
        return None
    return _parse_repeating(plain) or _parse_fraction(plain) or _parse_decimal(plain) or _parse_word(plain)


def parse_base_numeral(text: str) -> tuple[str, int] | None:
    """Return digits and base of a numeral such as ``52_8`` or ``4210_{5}``, else None."""
    match = _BASE_NUMERAL.fullmatch(clean_number_text(text).replace(" ", ""))
    if match is None:
        return None
    base = int(match["long"] or match["short"])
    digits = match["digits"].upper()
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    return digits.lstrip("0") or "0", base


def _right_hand_side(text: str) -> str | None:
    *left_sides, last = text.split("=")
    for side in map(str.strip, left_sides):
        if not (_NAME.fullmatch(side) or (side and not _ARITHMETIC.sub("", side))):
            return None
    return last.strip()


def _parse_fraction(text: str) -> Number | None:
    match = _FRACTION.match(text)
    if match is None:
        return None
    numerator = _fraction(match["ln"] or match["sn"] or match["n"])
    denominator = _fraction(match["ld"] or match["sd"] or match["d"])
    if denominator == 0:
        return None
    if match["joint"] == "-" and numerator >= denominator:  # "10-5/2" is a difference, "2-1/2" a mixed number
        return None
    value = numerator / denominator + int(match["whole"] or match["spaced"] or 0)
    return _with_unit(-value if match["sign"] == "-" else value, text[match.end() :])


def _parse_repeating(text: str) -> Number | None:
    r"""Read a decimal whose last digits are repeated: ``0.1\overline{6}``."""
    match = _REPEATING.fullmatch(text)
    if match is None or match["fixed"] == ".":
        return None
    num_places = len(match["fixed"].partition(".")[2])
    period = Fraction(int(match["repeated"]), 10 ** len(match["repeated"]) - 1) / 10**num_places
    value = Fraction(match["fixed"] + ("0" if match["fixed"].endswith(".") else "")) + period
    return Number(-value if match["sign"] == "-" else value)


def _parse_decimal(text: str) -> Number | None:
    match = _DECIMAL.match(text)
    if match is None:
        return None
    value = _fraction(match["mantissa"])
    exponent = int(match["exponent"] or match["power"] or 0)
    value *= Fraction(10) ** exponent
    return _with_unit(-value if match["sign"] == "-" else value, text[match.end() :])


def _parse_word(text: str) -> Number | None:
    first, *rest = re.split(r"[\s-]+", text.lower())
    value = _SMALL_NUMBER_WORDS.get(first)
    if value is None:
        if first not in _TENS_WORDS:
            return None
        value = _TENS_WORDS[first]
        if rest and 0 < (ones := _SMALL_NUMBER_WORDS.get(rest[0], 0)) < 10:
            value, rest = value + ones, rest[1:]
    if next((word for word in rest if word not in _SCALES), None) in _PARTS_OF_NUMBERS:
        return None
    return _with_unit(Fraction(value), " " + " ".join(rest))


def _after_separator(text: str, start: int) -> int:
    found = _UNIT_SEPARATOR.match(text, start)
    assert found is not None, "the pattern matches nothing, too"
    return found.end()


def _with_unit(value: Fraction, tail: str) -> Number | None:
    """Apply a percent sign, scale words and units; None if the tail is anything else."""
    factor = Fraction(1)
    is_apart = tail[:1].isspace()
    tail = tail.strip() if is_apart else tail
    if tail.startswith("%"):
        factor, tail = Fraction(1, 100), tail[1:]
    position = _after_separator(tail, 0)
    if "-" in tail[:position] or "/" in tail[:position]:
        return None
    while position < len(tail):
        word = _UNIT_WORD.match(tail, position)
        if word is None:
            return None
        name = word[1].lower()
        if name in ("percent", "percentage"):
            factor *= Fraction(1, 100)
        elif name in _SCALES:
            factor *= _SCALES[name]
        else:
            is_joined = (
                position == 0 and not is_apart and len(name) < 4 and name not in _SHORT_UNITS
            )  # "5abc"
            if is_joined or not _is_unit(name, divides="/" in tail[:position][-2:]):
                return None
        position = _after_separator(tail, word.end())
    return Number(value, factor)


def _is_unit(name: str, divides: bool) -> bool:
    if divides and name in ("h", "s", "m", "l", "g"):  # km/h; alone a letter is rather a variable
        return True
    return name in _SHORT_UNITS or (len(name) >= 3 and name not in _NOT_UNITS)


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))
