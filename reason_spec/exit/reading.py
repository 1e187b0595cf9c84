"""What a question asks and what a step states, by rules of language and notation alone.

The rules name no model. A *value* is a number, or the content of a box that is not a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from reason_spec.verifiers.arithmetic import number_of_word

Value: TypeAlias = Fraction | str

NUMBER: Final = re.compile(
    r"(?<![\w.])-?(?:\\?\$\s?)?"
    r"(?:\\[dt]?frac\s*\{-?\d+\}\s*\{-?\d+\}"
    r"|(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:\s(?:thousand|million|billion)\b|(?:(?<=\d\d)|(?<=[$.]\d))k\b)"
    r"|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:\s?/\s?\d+(?![\d/]))?|\.\d+)",
    re.ASCII,
)
_SCALED: Final = re.compile(r"(.*\d)\s*(k|thousand|million|billion)")
_SCALES: Final = {"k": 10**3, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_MOST_CHARACTERS: Final = 40
MOST_NUMBERS: Final = 1000
"""Numbers of a question that are read; only tables of numbers have more."""
MOST_MENTIONS: Final = 200
"""Numbers, and number words, of a sentence that are read. The work grows with the square of either."""
_LATEX_FRACTION: Final = re.compile(r"(-?)\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}")
_BOX: Final = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_UNIT_BESIDE: Final = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|[\s$*.,%\\(){}\[\]]|[A-Za-z]{2,}")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD: Final = re.compile(r"[a-z']+")
_COMMON: Final = frozenset(
    "a an the of in is are was were to and or for on at by with from how many much what does do did will "
    "would she he it they his her their its if that this there be has have had each per as so i you we than "
    "then when who which can could should all more some let".split()
)
_CONCLUDES: Final = re.compile(
    r"\b(?:so|therefore|thus|hence|total|altogether|means|overall|in all|conclude|conclusion|final|finally"
    r"|result)\b",
    re.IGNORECASE,
)
_ANSWERS: Final = re.compile(r"\b(?:answer|solution)\b", re.IGNORECASE)
_NAMES_ANSWER: Final = re.compile(r"\banswer\b[^\n.:=]{0,60}?(?:\bis\b|[:=])", re.IGNORECASE)
_CHECKS: Final = re.compile(
    r"\b(?:wait|check|verify|double-check|alternatively|again|mistake|confirm|make sure|another way|hold on"
    r"|actually|hmm|but)\b",
    re.IGNORECASE,
)
_TURNS: Final = re.compile(
    r"\b(?:wait|hold on|hmm|alternatively|actually|mistake|wrong|no|unless|perhaps|maybe|but)\b",
    re.IGNORECASE,
)
_AFFIRMS: Final = re.compile(
    r"\b(?:correct|right|yes|yep|matches|consistent|same|makes sense|good|confirmed|confident)\b",
    re.IGNORECASE,
)
_EQUALS: Final = re.compile(r"[=≈]\s*(?:\\?\$|\\text\{[^}]*\}|\\\(|about|approximately|\\approx|\*\*|\s)*$")
_OPERATOR_BEHIND: Final = re.compile(
    r"\s*(?:[A-Za-z%/]+\s+){0,3}\)?\s*"
    r"(?:[-+*/×÷=]|\\times|\\cdot|\\div|times\b|plus\b|minus\b|divided\b)"
)
_OPERATOR_BEFORE: Final = re.compile(r"(?:[-+*/×÷(]|\\times|\\cdot|times|plus|minus|by)\s*\\?\$?$")
_IS_BEFORE: Final = re.compile(
    r"\b(?:is|are|be|equals|equal to|makes|gives|of|get|earns|that's|at|has|have|leaves|needs?|costs?|pays?)"
    r"\s+(?:\w+\s){0,2}[*$\\(\s]*$",
    re.IGNORECASE,
)
_OPERATIONS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\d[^=]*(?:\+|plus)[^=]*\d",
        r"\d[^=]*(?:[-−–]|minus|subtract)[^=]*\d",
        r"\d[^=]*(?:\*|×|\\times|\\cdot|times)[^=]*\d",
        r"\d[^=]*(?:/|÷|\\div|divided)[^=]*\d|frac",
    )
)
_ASKED_KINDS: Final = tuple(
    re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for words in (
        "total|altogether|combined|in all|sum|all",
        r"left|remain\w*|more|fewer|less|difference|change|still|older|younger|longer|extra",
        r"profit|save[sd]?|saving|earn\w*|make|gain|lose",
        "each|per|average|every",
        "long|hours?|minutes?|days?|weeks?|years?|months?|time|old",
    )
)
NUM_OPERATIONS: Final = len(_OPERATIONS)
NUM_ASKED_KINDS: Final = len(_ASKED_KINDS)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, as far as the text of an answer is compared with it.

    ``numbers`` are written in digits, ``most_number`` is the largest of them. ``origins`` maps them, number
    words and simple forms of percentages (20 % is also 0.2, 0.8 and 1.2) to the number of the question from
    which they come, one of ``num_origins``. ``asked`` holds the word stems of the sentence with the question
    mark, ``asked_only`` those that no other sentence has, and ``told`` those of the other sentences.
    ``kinds`` says which kinds of quantity the asking sentence names.
    """

    numbers: frozenset[Fraction]
    most_number: Fraction
    origins: dict[Value, Fraction]
    num_origins: int
    asked: frozenset[str]
    asked_only: frozenset[str]
    told: frozenset[str]
    kinds: tuple[bool, ...]
    asks_money: bool
    asks_percent: bool
    num_sentences: int
    num_characters: int

    @classmethod
    def of(cls, text: str) -> Question:
        sentences = _sentences(text) or [""]
        asking = next((s for s in reversed(sentences) if "?" in s), sentences[-1])
        told = content_words(" ".join(s for s in sentences if s is not asking))
        asked, low = content_words(asking), asking.lower()
        found = [
            (match, number)
            for match in islice(NUMBER.finditer(text), MOST_NUMBERS)
            if (number := read_number(match[0])) is not None
        ]
        origins = _origins(text, found)
        return cls(
            numbers=frozenset(number for _, number in found),
            most_number=max((number for _, number in found), default=Fraction(0)),
            origins=origins,
            num_origins=max(1, len(set(origins.values()))),
            asked=asked,
            asked_only=asked - told,
            told=told - asked,
            kinds=tuple(bool(kind.search(asking)) for kind in _ASKED_KINDS),
            asks_money="$" in text or "how much" in low or "cost" in low,
            asks_percent="percent" in low or "%" in low,
            num_sentences=len(sentences),
            num_characters=len(text),
        )


def _origins(text: str, found: list[tuple[re.Match[str], Fraction]]) -> dict[Value, Fraction]:
    origins: dict[Value, Fraction] = {}
    for match, number in found:
        origins[number] = number
        if text.startswith(("%", " percent"), match.end()):
            share = number / 100
            for form in (share, 1 - share, 1 + share, 100 - number, 100 + number):
                origins.setdefault(form, number)
    for match in _WORD.finditer(text.lower()):
        word_number = number_of_word(match[0])
        if word_number is None or word_number in (0, 1):
            continue
        origins.setdefault(word_number, word_number)
        if word_number.numerator == 1 or word_number == 2:
            origins.setdefault(1 / word_number, word_number)
    return origins


class Mention(NamedTuple):
    """A value in a sentence.

    It is a ``result`` after a sign of equality, and an ``operand`` beside an operator. It is ``stated``
    if it is a result, boxed, the last number of its sentence, or named by a verb such as "is".
    ``operations`` are those of the calculation of a result; ``earlier`` are the numbers before it in the
    sentence. ``fits_asked``: one of the three words after it is in the asking sentence.
    """

    value: Value
    text: str
    result: bool
    operand: bool
    boxed: bool
    stated: bool
    fits_asked: bool
    has_money: bool
    calculation: str
    operations: tuple[bool, ...]
    earlier: tuple[Fraction, ...]


class Sentence(NamedTuple):
    """A sentence of a step. Shares are of the question's words: asked, asked only there, told elsewhere."""

    text: str
    mentions: tuple[Mention, ...]
    concludes: bool
    answers: bool
    affirms: bool
    asks: bool
    asked: float
    asked_only: float
    told: float

    @property
    def conclusion(self) -> Value | None:
        """The value that it concludes: its last result or box, or last number behind a word such as "so"."""
        if self.asks:
            return None
        marked = self.concludes or self.answers
        found = [m for m in self.mentions if m.result or m.boxed or (marked and m.stated and not m.operand)]
        return found[-1].value if found else None


class StepCues(NamedTuple):
    """Counts of listed cue words in a step, and its form."""

    checks: int
    turns: int
    affirmations: int
    answers: bool
    boxed: bool
    asks: bool
    opens: bool


def read_cues(step: str) -> StepCues:
    end = step.rstrip()
    return StepCues(
        len(_CHECKS.findall(step)),
        len(_TURNS.findall(step)),
        len(_AFFIRMS.findall(step)),
        _ANSWERS.search(step) is not None,
        "boxed" in step,
        end.endswith("?"),
        end.endswith(":"),
    )


def read_sentences(step: str, question: Question) -> Iterator[Sentence]:
    """Yield the sentences of a step with their values."""
    for text in _sentences(step):
        words = content_words(text)
        asked = _share(words, question.asked)
        yield Sentence(
            text=text,
            mentions=tuple(_mentions(text, question)),
            concludes=_CONCLUDES.search(text) is not None,
            answers=_ANSWERS.search(text) is not None,
            affirms=_AFFIRMS.search(text) is not None,
            asks=text.rstrip().endswith("?"),
            asked=asked,
            asked_only=_share(words, question.asked_only) if question.asked_only else asked,
            told=_share(words, question.told),
        )


def _mentions(text: str, question: Question) -> Iterator[Mention]:
    words = ((match.start(), number_of_word(match[0])) for match in _WORD.finditer(text.lower()))
    worded = list(islice(((start, word) for start, word in words if word is not None), MOST_MENTIONS))
    found = list(islice(NUMBER.finditer(text), MOST_MENTIONS))
    earlier: list[Fraction] = []
    for place, match in enumerate(found):
        value = read_number(match[0])
        if value is None:
            continue
        before, behind = text[: match.start()], text[match.end() :]
        result = _EQUALS.search(before[-60:]) is not None
        operand = bool(_OPERATOR_BEHIND.match(behind[:80]) or _OPERATOR_BEFORE.search(before[-20:]))
        boxed = "boxed" in before[-12:]
        is_last = place == len(found) - 1
        named = not operand and (is_last or _IS_BEFORE.search(before[-60:]) is not None)
        calculation = before.rsplit("=", 2)[-2] if before.count("=") > 1 else before
        next_words = {stem(word) for word in _WORD.findall(behind[:60].lower())[:3]}
        yield Mention(
            value=value,
            text=_written_out(match[0], value),
            result=result,
            operand=operand,
            boxed=boxed,
            stated=result or boxed or named,
            fits_asked=not question.asked.isdisjoint(next_words),
            has_money="$" in match[0],
            calculation=re.sub(r"[^0-9+*/=.-]", "", calculation)[-14:] if result else "",
            operations=tuple(bool(sign.search(calculation[-200:])) for sign in _OPERATIONS) if result else (),
            earlier=(*earlier, *(number for start, number in worded if start < match.start())),
        )
        earlier.append(value)
    for match in _BOX.finditer(text):
        content = match[1].strip()
        if content and read_number(content) is None:
            yield Mention(
                value=re.sub(r"\s+", "", content),
                text=content,
                result=False,
                operand=False,
                boxed=True,
                stated=True,
                fits_asked=False,
                has_money=False,
                calculation="",
                operations=(),
                earlier=(),
            )


def read_number(text: str) -> Fraction | None:
    """Return the value of a number as `NUMBER` matches it."""
    plain = re.sub(r"\\?\$|[,\s]", "", text)
    if len(plain) > _MOST_CHARACTERS:
        return None
    if scaled := _SCALED.fullmatch(plain):
        return Fraction(scaled[1]) * _SCALES[scaled[2]]
    latex = _LATEX_FRACTION.fullmatch(plain)
    try:
        if latex:
            return (-1 if latex[1] else 1) * Fraction(int(latex[2]), int(latex[3]))
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def _written_out(text: str, value: Fraction) -> str:
    """Return a number as it can be graded: "$70k" is $70000."""
    if not _SCALED.fullmatch(text.strip()):
        return text.strip()
    return f"{'$' * ('$' in text)}{value}"


def read_value(text: str) -> Value:
    """Return the value of an answer: a number as such, anything else as text without white space.

    A number may have a unit or signs of formatting around it.
    """
    numbers = NUMBER.findall(text)
    value = read_number(numbers[0]) if len(numbers) == 1 else None
    without_units = _UNIT_BESIDE.sub("", text.replace(numbers[0], "", 1)) if value is not None else text
    return value if value is not None and not without_units else re.sub(r"\s+", "", text)


def states_as_answer(step: str, answer: str) -> bool:
    """Return whether a step has an answer in the form in which it is given at the end: boxed, or named so."""
    boxes = _BOX.findall(step)
    phrases = [step[match.end() :] for match in _NAMES_ANSWER.finditer(step)]
    stated = boxes or [_SENTENCE_END.split(rest.strip(), maxsplit=1)[0] for rest in phrases]
    return bool(stated) and read_value(stated[-1]) == read_value(answer)


def content_words(text: str) -> frozenset[str]:
    """Return the stems of the words that are not among the commonest."""
    words = _WORD.findall(text.lower())
    return frozenset(stem(word) for word in words if len(word) > 2 and word not in _COMMON)


def words_of(text: str) -> list[str]:
    """Return the words in small letters."""
    return _WORD.findall(text.lower())


def stem(word: str) -> str:
    """Cut off the commonest endings of English, where three letters stay."""
    for ending in ("'s", "ing", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def _share(words: frozenset[str], of: frozenset[str]) -> float:
    return len(words & of) / max(1, len(of))
