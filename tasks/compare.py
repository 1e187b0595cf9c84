"""Compares a prediction with a reference answer.

``compare_quickly`` decides numbers, equal writings and words without sympy. ``compare_symbolically`` uses
Math-Verify, which may hang or exhaust memory on hostile input: it runs in the worker process only.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from reason_spec.tasks.extract import AnswerKind
from reason_spec.tasks.numerals import BOLD, clean_number_text, parse_base_numeral, parse_number

MAX_EXPRESSION_CHARS: Final = 1000
"""Longer expressions are not parsed: the parser's time grows faster than linearly."""

RELATIVE_TOLERANCE: Final = 1e-6
"""Added because Math-Verify rounds to 6 decimals, which makes all numbers below 5e-7 equal."""

_LATEX_SPACING = re.compile(r"\\[!,;: ]|\\q?quad(?![A-Za-z])|~|\s+|\\(?:left|right|displaystyle)(?![A-Za-z])")
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textrm|textbf|textit|textnormal|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}"
)
_SINGLE_IN_BRACES = re.compile(r"(?<=[_^])\{(\w)\}")
_HALF_OF_DAY = re.compile(r"\d\s*([ap])\.?\s?m\b", re.IGNORECASE)
_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s+(?=\d)")
_CHOICE = re.compile(r"\(?\s*([A-Ja-j])\s*[).:]?")
_LABELLED_CHOICE = re.compile(
    r"(?:(?:option|choice)\s+)?(?:\(([A-J])\)|([A-J])(?:[).:]|$))[\s:~.]*(?=[\w\\$(-]|$)"
)
_RATIO = re.compile(r"\d\s*:\s*\d")
_UNICODE = str.maketrans(
    {"∞": "\\infty ", "²": "^2", "³": "^3", "≤": "\\leq ", "≥": "\\geq ", "∪": "\\cup ", "∩": "\\cap "}
)
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))")


class AnswerComparison(NamedTuple):
    """``equal`` is None if the comparison failed; ``reason`` says how it was decided."""

    equal: bool | None
    reason: str


def compare_quickly(reference: str, prediction: str, kind: AnswerKind) -> AnswerComparison | None:
    """Compare without sympy; None if the comparison needs algebra."""
    prediction = _without_choice_label(reference, prediction)
    if reference == prediction:
        return AnswerComparison(True, "same writing")
    expected, found = parse_number(reference), parse_number(prediction)
    if expected is not None and found is not None:
        halves = {half[1].casefold() for half in map(_HALF_OF_DAY.search, (reference, prediction)) if half}
        same = expected.equals(found) and len(halves) < 2
        return AnswerComparison(same, "same number" if same else "different numbers")
    if _normal_form(reference) == _normal_form(prediction):
        return AnswerComparison(True, "same writing")
    in_base = _compare_base_numerals(reference, prediction)
    if in_base is not None:
        return in_base
    if _is_words(reference):
        return _compare_words(reference, prediction)
    if (kind == "number" or expected is not None) and not re.search(
        r"\d|\\[A-Za-z]", _without_text(prediction)
    ):
        return AnswerComparison(False, "the prediction is not a number")
    if max(len(reference), len(prediction)) > MAX_EXPRESSION_CHARS:
        return AnswerComparison(None, f"not compared: longer than {MAX_EXPRESSION_CHARS} characters")
    return None


def compare_symbolically(reference: str, prediction: str) -> AnswerComparison:
    """Compare two expressions with Math-Verify, without a time limit.

    Raises:
        MemoryError, RecursionError: the expressions are too large for the worker's limits.
    """
    from math_verify import verify

    expected = _parse_latex(reference)
    if not _is_expression(expected):
        return AnswerComparison(None, "the reference answer could not be parsed")
    found = _parse_latex(prediction)
    if not _is_expression(found):
        return AnswerComparison(False, "the prediction could not be parsed")
    try:
        equal = bool(verify(expected, found, timeout_seconds=None, raise_on_error=True))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # sympy raises many types for expressions of different kinds
        return AnswerComparison(False, f"not comparable ({type(error).__name__})")
    if equal and bool(_RATIO.search(reference)) != bool(_RATIO.search(prediction)):
        return AnswerComparison(False, "only one is a ratio")
    if equal and "%" not in reference + prediction and _differ_relatively(expected[0], found[0]):
        return AnswerComparison(False, "different numbers")
    return AnswerComparison(equal, "equal expressions" if equal else "different expressions")


def _parse_latex(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    bare = BOLD.sub("", re.sub(r"(?<!\\)\$|\\[()\[\]]", " ", text)).replace("**", "^").strip()
    bare = _ROOT.sub(lambda root: f"\\sqrt{{{root[1] or root[2]}}}", bare.translate(_UNICODE))
    parsed: list[Any] = parse(
        f"${bare}$", [LatexExtractionConfig()], parsing_timeout=None, raise_on_error=True
    )
    return parsed


def _is_expression(parsed: list[Any]) -> bool:
    return bool(parsed) and not isinstance(parsed[0], str)


def _differ_relatively(expected: Any, found: Any) -> bool:
    try:
        if not (expected.is_number and found.is_number):
            return False
        first, second = complex(expected.evalf(20)), complex(found.evalf(20))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return abs(first - second) > RELATIVE_TOLERANCE * max(abs(first), abs(second))


def _normal_form(text: str) -> str:
    """Remove spacing, text commands and delimiters, which do not change the meaning of an expression."""
    text = BOLD.sub("", re.sub(r"(?<!\\)\$|\\[()\[\]]", "", text.strip()))
    text = _TEXT_COMMAND.sub(r"\1", text)
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\u2212", "-")
    # Only the space in "\pi r" is significant: without it the command would be "\pir".
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])", r"\1{}", text)
    # "1 2" is not 12.
    text = _LATEX_SPACING.sub("", _BETWEEN_DIGITS.sub("{}", text))
    return _SINGLE_IN_BRACES.sub(r"\1", text).rstrip(".,;:")


def _without_text(text: str) -> str:
    return _TEXT_COMMAND.sub("", text)


def _is_words(text: str) -> bool:
    """Whether a text is one or more words, a choice letter or a time rather than mathematics."""
    plain = clean_number_text(text)
    if _TEXT_COMMAND.fullmatch(text.strip()):
        return parse_number(plain) is None
    return bool(
        re.fullmatch(
            r"\(?[A-J]\)?|[Nn]o|[A-Za-z][A-Za-z'-]{2,}(?:[ ,]+[A-Za-z'-]+)*|\d{1,2}:\d\d(?:\s*[ap]\.?m?\.*)?",
            plain,
        )
    )


def _compare_words(reference: str, prediction: str) -> AnswerComparison:
    expected, found = _words(reference), _words(prediction)
    choice = _CHOICE.fullmatch(clean_number_text(reference))
    labelled = _LABELLED_CHOICE.match(BOLD.sub("", _TEXT_COMMAND.sub(r"\1", prediction)).strip())
    if choice and labelled:
        found = (labelled[1] or labelled[2]).casefold()
    same = expected == found
    return AnswerComparison(same, "same words" if same else "different words")


def _words(text: str) -> str:
    plain = _TEXT_COMMAND.sub(r"\1", clean_number_text(text)).casefold()
    words = re.sub(r"[^\w:+\-/^]", "", plain)
    return re.sub(r"(?<=\d)([ap])$", r"\1m", words)


def _without_choice_label(reference: str, prediction: str) -> str:
    """Drop the letter of "(C) 27" if the reference is a value and not a letter."""
    if _CHOICE.fullmatch(clean_number_text(reference)):
        return prediction
    bare = re.sub(r"(?<!\\)\$|\\[()]", "", prediction.strip())
    labelled = re.match(
        r"(?:\\(?:text|textbf|mathrm|mathbf|text(?:bf|rm))\s*\{\s*(?:\([A-J]\)|[A-J]\))[\s~:.]*\}[\s~\\]*"
        r"|(?:\([A-J]\)|[A-J][).:])[\s~]+)(?=\S)",
        bare,
    )
    return bare[labelled.end() :] if labelled else prediction


def _compare_base_numerals(reference: str, prediction: str) -> AnswerComparison | None:
    """Compare numerals with a base; the prediction may omit the base of the reference."""
    expected, found = parse_base_numeral(reference), parse_base_numeral(prediction)
    if expected is None and found is None:
        return None
    if expected is not None and found is None:
        digits = clean_number_text(prediction).replace(" ", "").upper().lstrip("0")
        if not digits.isalnum():
            return None
        same = digits == expected[0]
    elif expected is None and found is not None:
        value = parse_number(reference)
        if value is None:
            return None
        same = value.value == int(*found)
    else:
        assert expected is not None
        assert found is not None
        same = int(*expected) == int(*found)
    return AnswerComparison(same, "same number" if same else "different numbers")
