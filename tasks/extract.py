"""Finds the final answer in a response.

In order of preference: the last box, the last ``####`` line, the last phrase such as "The answer is 18" or
"A: 18", the result or the last number of the text. The text after ``</think>`` is searched first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from reason_spec.tasks.numerals import NUMBER_TOKEN, SIGN_WORD, clean_number_text, parse_number

AnswerKind: TypeAlias = Literal["number", "expression"]
"""``number``: the answer is one number. ``expression``: any mathematics or a few words."""

MAX_CANDIDATES = 50
"""Number of markers tried, from the end of the text; keeps the search linear in repetitive texts."""
MAX_ANSWER_CHARS = 4000
MAX_RESPONSE_CHARS = 400_000
"""Number of characters at the end of a response that are searched."""

_SPECIAL_TOKEN = re.compile(r"<\|[a-z_0-9]{1,40}\|>|</s>|<eos>", re.IGNORECASE)
_BOX = re.compile(r"\\f?boxed\s*(?=\{|-?\\?[\dA-Za-z])|\\fbox\s*(?=\{)")
_UNBRACED_BOX = re.compile(r"-?\\?[\w.,/]+")
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_PHRASE = re.compile(
    r"""(?:\b(?:final[ ]+)?ans(?:wer)?\b[^\n.:=]{0,60}?
          (?:\bis\b|\bare\b|\bequals\b|\b(?:would|should|must|will)\sbe\b|[:：=])
        |\b(?:correct|right|best)[ ](?:option|choice)[ ]is\b
        |^[ \t*>\#]*A[ \t]*[:：](?![^\n]*\n[ \t*>\#]*B[ \t]*[:：])
        |^[ \t*>\#]*(?:final[ \t]+)?answer[ \t*_]*$)
        [\s*_:]*""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_NEXT_QUESTION = re.compile(r"\n[ \t]*(?:Question|Problem|Q|User|Human)[ ]?\d{0,4}[ ]?[:：]")
_SENTENCE_END = re.compile(r"(?<!\.[A-Za-z])\.(?=\s|$)|\n|[,;]?\s{1,4}(?:because|since|so|which means)\s")
# A dollar sign before a digit closes no formula: "$20 - $2" are two sums.
_MATH = re.compile(
    r"\$\$(?P<a>.+?)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)|(?<!\\)\$(?P<d>[^$\n]+?)(?<!\\)\$(?!\d)",
    re.DOTALL,
)
_SHARE = re.compile(rf"(?P<number>{NUMBER_TOKEN.pattern})\s+out\s+of\b", re.VERBOSE | re.ASCII)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT_GROUP = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
_REMARK = re.compile(
    r"\W*(?:not\b|correct\b|incorrect\b|wrong\b|right\b|clear\b|verified\b|below\b|as follows\b|$)",
    re.IGNORECASE,
)
_OPERATION = re.compile(r"[-+*/=^]|\\(?:times|cdot|div)")
_BEFORE_ARGUMENT = re.compile(r"(?:√|\\(?:sqrt|[dt]?frac|[dt]?binom|log|ln|sin|cos|tan)(?:\[\w+\])?)[\s{]*$")
_GOES_ON = re.compile(
    r"\s?(?:\^|√|\\(?:sqrt|pi|cdot|times|div|pm|[dt]?frac|[dt]?binom)(?![A-Za-z]))|\(\d|!\s*(?:\$|\\\))"
    r"|(?:\s(?:or|to)\s|\s?[-\u2013]\s?)[$\d]"
)
_RESULT = re.compile(rf"(?:=|≈|\\approx)\s*(?P<number>{NUMBER_TOKEN.pattern})", re.VERBOSE | re.ASCII)


def find_answer(response: str, kind: AnswerKind) -> str | None:
    """Return the final answer of ``response`` as it is written there, None if there is none."""
    text = _SPECIAL_TOKEN.sub("", response[-MAX_RESPONSE_CHARS:])
    thinking, closed, conclusion = text.rpartition("</think>")
    parts = (conclusion, thinking) if closed else (text.replace("<think>", "\n"),)
    for part in map(_before_next_question, parts):
        answer = _marked_answer(part, kind) or _unmarked_answer(part, kind)
        if answer:
            return answer
    return None


def find_boxes(text: str) -> Iterator[str]:
    """Yield the contents of ``\\boxed{...}``, the last one first; braces may nest."""
    for match in reversed(list(_BOX.finditer(text))[-MAX_CANDIDATES:]):
        if not text.startswith("{", match.end()):
            unbraced = _UNBRACED_BOX.match(text, match.end())
            if unbraced:
                yield unbraced[0]
            continue
        content = _braced(text, match.end())
        if content is not None and content.strip():
            yield content


def _braced(text: str, start: int) -> str | None:
    """Return the text between the brace at ``start`` and its closing brace; None if there is none."""
    depth, position = 0, start
    end = min(len(text), start + MAX_ANSWER_CHARS)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position]
        position += 1
    return None


def _before_next_question(text: str) -> str:
    """Drop the next question of a few-shot prompt, which models write after their answer."""
    markers = (pattern.search(text) for pattern in (_HASHES, _PHRASE, _BOX))
    ends = [match.end() for match in markers if match]
    question = _NEXT_QUESTION.search(text, min(ends)) if ends else None
    return text[: question.start()] if question else text


def _marked_answer(text: str, kind: AnswerKind) -> str | None:
    read_box, read_phrase = _READERS[kind]
    for content in find_boxes(text):
        return read_box(content)
    for match in reversed(list(_HASHES.finditer(text))[-MAX_CANDIDATES:]):
        if answer := read_phrase(match[1][:MAX_ANSWER_CHARS]):
            return answer
    for match in reversed(list(_PHRASE.finditer(text))[-MAX_CANDIDATES:]):
        if answer := read_phrase(text[match.end() : match.end() + MAX_ANSWER_CHARS]):
            return answer
    return None


def _number_in_box(content: str) -> str:
    inner = next(find_boxes(content), content)
    if parse_number(inner) is not None:
        return _tidy(inner)
    numbers = NUMBER_TOKEN.findall(inner)
    without_text = _TEXT_GROUP.sub(" ", inner)
    if len(numbers) == 1 and not re.search(r"\\[A-Za-z]|[\^_+*/<>|!]", without_text.replace("\\frac", "")):
        return _tidy(numbers[0])
    return _tidy(inner)


def _number_in_phrase(text: str) -> str | None:
    sentence = SIGN_WORD.sub("-", _first_sentence(text))
    if _REMARK.match(sentence) and not NUMBER_TOKEN.search(sentence):
        return None
    if parse_number(sentence) is not None:
        return _bare_number(sentence)
    first = NUMBER_TOKEN.search(sentence)
    if first is None:
        return None
    arithmetic = sentence[first.start() :].strip()
    result = _result_of_chain(arithmetic)
    if result is None and _OPERATION.search(arithmetic[1:]) and not re.search(r"[A-Za-z(,;:=]", arithmetic):
        result = arithmetic
    if result is None and (
        _BEFORE_ARGUMENT.search(sentence[: first.start()]) or _GOES_ON.match(sentence, first.end())
    ):
        # The number is a part of an expression, or of a range.
        return _expression_in_phrase(text)
    return _tidy(result or first[0])


def _result_of_chain(text: str) -> str | None:
    """Return the result if the text starts with worked arithmetic ("9 * 2 = 18 dollars")."""
    left, equals, right = text.partition("=")
    if not equals or _WORD.search(left) or not _OPERATION.search(left) or left.count("(") != left.count(")"):
        return None
    while "=" in right and not _WORD.search(right.partition("=")[0]):
        right = right.partition("=")[2]
    number = NUMBER_TOKEN.match(right.strip(" *"))
    return number[0] if number else None


def _expression_in_box(content: str) -> str:
    return _tidy(next(find_boxes(content), content))


def _expression_in_phrase(text: str) -> str | None:
    formula = _MATH.search(text[:MAX_ANSWER_CHARS])
    sentence = _first_sentence(text)
    if formula and formula.start() < max(len(sentence), 1):
        lead = text[: formula.start()]
        if not (_WORD.search(lead) and NUMBER_TOKEN.search(lead)):
            return _tidy(formula[formula.lastgroup or 0])
    if _REMARK.match(sentence):
        return None
    if share := _SHARE.match(sentence):
        return _tidy(share["number"])
    if parse_number(sentence) is None and len(_WORD.findall(_TEXT_GROUP.sub("", sentence))) > 2:
        number = NUMBER_TOKEN.search(sentence)
        if number:
            return _tidy(number[0])
    return _tidy(sentence) or None


_READERS: dict[AnswerKind, tuple[Callable[[str], str], Callable[[str], str | None]]] = {
    "number": (_number_in_box, _number_in_phrase),
    "expression": (_expression_in_box, _expression_in_phrase),
}


def _unmarked_answer(text: str, kind: AnswerKind) -> str | None:
    stripped = text.strip()
    if kind == "expression":
        answer = _whole_text(stripped) or _last_formula(stripped)
        if answer:
            return answer
    line = next((line for line in reversed(stripped.splitlines()) if NUMBER_TOKEN.search(line)), None)
    if line is None:
        return _whole_text(stripped) if parse_number(stripped) is not None else None
    line = line[-MAX_ANSWER_CHARS:]
    if parse_number(line) is not None:
        return _bare_number(line)
    results = [match["number"] for match in _RESULT.finditer(line)]
    numbers = results or [match[0] for match in NUMBER_TOKEN.finditer(line)]
    return _tidy(numbers[-1]) if numbers else None


def _whole_text(text: str) -> str | None:
    """Return the text if it is only an answer: one short line without prose."""
    if not text or "\n" in text or len(text) > 200:
        return None
    num_words = len(_WORD.findall(_TEXT_GROUP.sub("", text)))
    if parse_number(text) is not None or num_words == 0 or (num_words == 1 and not _MATH.search(text)):
        return _tidy(text)
    return None


def _last_formula(text: str) -> str | None:
    formulas = list(_MATH.finditer(text[-MAX_ANSWER_CHARS:]))
    if not formulas:
        return None
    content = formulas[-1][formulas[-1].lastgroup or 0]
    return _tidy(re.split(r"(?<![<>!\\])=", content)[-1]) or None


def _first_sentence(text: str) -> str:
    text = text.lstrip()
    formula = _MATH.match(text)
    start = formula.end() if formula else 0
    end = _SENTENCE_END.search(text, start)
    return text[: end.start()] if end else text


def _bare_number(text: str) -> str:
    """Return the number of a text that is a number with its unit."""
    token = NUMBER_TOKEN.match(clean_number_text(text).rpartition("=")[2].strip())
    if token is None:
        return _tidy(text)
    rest = clean_number_text(text).rpartition("=")[2].strip()[token.end() :]
    return (
        _tidy(token[0]) if not re.search(r"\d|%|percent|dozen|hundred|thousand|illion", rest) else _tidy(text)
    )


def _tidy(text: str) -> str:
    """Strip markup, math delimiters, currency signs and a full stop around an answer."""
    text = text.strip()
    for _ in range(4):
        before = text
        text = text.strip(" \t\n*`").rstrip(".,;:").strip()
        for opening, closing in (("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("$", "$")):
            if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
                text = text[len(opening) : -len(closing)]
        text = re.sub(r"^(-?)\s*\\?\$\s*(?=[-\d.])", r"\1", text)
        if text == before:
            break
    return text
