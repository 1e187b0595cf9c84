"""Changes of one place of a step that give it another meaning; each returns None where there is no place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from reason_spec.lab.verifier_training.exchanges import (
    change_direction,
    change_unit,
    exchange_nouns,
    exchange_persons,
    swap_persons,
)
from reason_spec.lab.verifier_training.words import counted_nouns, persons

_NUMBER: Final = re.compile(r"(?<![\w.,^_{}])\d+(?![\w.,]*[\d}])")
_ANY_NUMBER: Final = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*(?![\w])")
# Beside a number or between variables: the slash of "meters/session" is no operation.
_OPERATION: Final = re.compile(
    r"(?:(?<=\d)|(?<=\b[a-zA-Z])) ?([-+*/×÷]|\\cdot|\\times) ?(?=[({\\$]*(?:\d|[a-zA-Z]\b))"
    r"|(?<=[\w)}\]]) ?([-+*/×÷]|\\cdot|\\times) ?(?=[({\\$]*\d)"
)
_OTHER_OPERATION: Final = {
    "+": "-", "-": "+", "*": "+", "/": "*", "×": "+", "÷": "×", "\\cdot": "+", "\\times": "-",
}  # fmt: skip
_SUBTRACTION: Final = re.compile(r"(?<![\w.^{+*/-])(?<![-+*/^] )(\d+)( ?[-/÷−] ?)(\d+)(?![\w.}*/^]|\)\^)")
_VERB: Final = re.compile(
    r"\b(is|are|was|were|must|will|should|would|"
    r"(?:(?<=\bI )|(?<=\b[HhWw]e )|(?<=\b[Ii]t )|(?<=\b[Ss]he )|(?<=\b[Yy]ou )|(?<=\b[Tt]hey ))can)\b"
    r"(?! not|,|\.|n't)"
)
"""A verb that may be negated; "can" only behind a pronoun, because elsewhere it may be a tin."""
_NEGATED: Final = re.compile(r"\b(is|are|was|were|can|must|will|should|would) not\b|\bcannot\b")
_QUESTION: Final = re.compile(r"\b(?:how|what|which|who|whose|where|when|why|whether)\b|\?", re.IGNORECASE)
"""Where a verb may stand before its subject: "what is not the cost" says nothing."""
_FORMULA: Final = re.compile(r"\$[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_WORDS: Final = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b")
_VARIABLE: Final = re.compile(r"(?<![\\\w{])([a-zA-Z])(?![\w}])")
_TEXT_IN_FORMULA: Final = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{[^{}]*\}")
_EMPTY_FORMULA: Final = re.compile(r"\\\[\s*\\\]|\\\(\s*\\\)|\$\$\s*\$\$")
_SENTENCE: Final = re.compile(r"(?<=[a-zA-Z\d)%\]][.!?]) +(?=[A-Z\d(\\*])|\n+")
_DOUBTS: Final = (
    "Wait, that is wrong. ", "Hmm, that can't be right. ", "That was wrong. ", "Actually, no. ",
    "Wait, I made a mistake. ",
)  # fmt: skip
_GUESSES: Final = (
    "Maybe ", "Perhaps ", "I am not sure, but perhaps ", "It is not true that ", "Wait, maybe ",
    "I would guess that ", "It would be wrong to say that ", "Some might think that ",
)  # fmt: skip
_STATES: Final = re.compile(
    r"^(?:(?:So|Thus|Therefore|Hence|Now|Then|Next),? )?"
    r"((?:The|He|She|They|It|There|This|His|Her|Their|Each|We|In) "
    r"(?:[^.?!:\n]*? )?(?:is|are|was|were|has|have|had|can|will|would|makes|gives|costs|needs|gets|spends)\b)"
)
"""A statement, by its first words; of what opens it "Maybe" takes the place."""

Change = Callable[[str, Random], str | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """What changes put into a step: numbers, persons and nouns (plurals) of its own problem."""

    numbers: tuple[str, ...]
    persons: tuple[str, ...]
    nouns: tuple[str, ...]

    @classmethod
    def read(cls, question: str, texts: Sequence[str] = ()) -> Problem:
        everything = "\n".join((question, *texts))
        return cls(
            tuple(dict.fromkeys(_ANY_NUMBER.findall(everything))),
            persons(question, texts),
            counted_nouns(question, texts),
        )


def change_number(text: str, rng: Random) -> str | None:
    found = list(_NUMBER.finditer(text))
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.start()] + str(int(at[0]) + rng.choice((1, 2, 3, 7, 10))) + text[at.end() :]


def change_operation(text: str, rng: Random) -> str | None:
    found = list(_OPERATION.finditer(text))
    if not found:
        return None
    at = rng.choice(found)
    group = 1 if at[1] else 2
    other = _OTHER_OPERATION[at[group]] + " " * at[group].startswith("\\")
    return text[: at.start(group)] + other + text[at.end(group) :]


def change_order(text: str, rng: Random) -> str | None:
    """Swap the operands of a subtraction or division."""
    found = [at for at in _SUBTRACTION.finditer(text) if at[1] != at[3]]
    if not found:
        return None
    at = rng.choice(found)
    return f"{text[: at.start()]}{at[3]}{at[2]}{at[1]}{text[at.end() :]}"


def change_negation(text: str, rng: Random) -> str | None:
    if negated := list(_NEGATED.finditer(text)):
        at = rng.choice(negated)
        return text[: at.start()] + (at[1] or "can") + text[at.end() :]
    found = [at for at in _VERB.finditer(text) if not _asks(text, at.start())]
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.end()] + " not" + text[at.end() :]


def _asks(text: str, place: int) -> bool:
    """Whether the sentence of a place asks something."""
    start = max((at.end() for at in re.finditer(r"[.!?:]\s|\n", text[:place])), default=0)
    end = re.compile(r"[.!?](?=\s|$)|\n|$").search(text, place)
    return _QUESTION.search(text[start : end.end() if end else None]) is not None


def change_variable(text: str, rng: Random) -> str | None:
    """Put another letter of the same formulas in the place of one."""
    # Words in a row stand between two sums of money, not between the signs of a formula.
    formulas = [(at.start(), at.end()) for at in _FORMULA.finditer(text) if not _WORDS.search(at[0])]
    words = [range(*at.span()) for at in _TEXT_IN_FORMULA.finditer(text)]
    found = [
        at
        for start, end in formulas
        for at in _VARIABLE.finditer(text, start, end)
        if not any(at.start() in span for span in words)
    ]
    letters = sorted({at[1] for at in found})
    if len(letters) < 2:
        return None
    at = rng.choice(found)
    other = rng.choice([letter for letter in letters if letter != at[1]])
    return text[: at.start()] + other + text[at.end() :]


def change_stance(text: str, rng: Random) -> str | None:
    """Make a statement a doubt, a guess or the correction of the step before."""
    if not text[:1].isalnum() or "?" in text:
        return None
    if (statement := _STATES.match(text)) and rng.random() < 0.6:
        rest = text[statement.start(1) :]
        return rng.choice(_GUESSES) + rest[0].lower() + rest[1:]
    return rng.choice(_DOUBTS) + text


def drop_sentence(text: str, rng: Random) -> str | None:
    """Drop one of the sentences with a number, but not all of a formula; three words or more are left."""
    sentences = _SENTENCE.split(text)
    kept = [
        " ".join((*sentences[:at], *sentences[at + 1 :])).strip()
        for at, sentence in enumerate(sentences)
        if re.search(r"\d", sentence)
    ]
    left = [other for other in kept if len(other.split()) >= 3 and not _EMPTY_FORMULA.search(other)]
    return rng.choice(left) if len(sentences) > 1 and left else None


CHANGES: Final[dict[str, Change]] = {
    "number": change_number,
    "operation": change_operation,
    "order": change_order,
    "direction": change_direction,
    "negation": change_negation,
    "unit": change_unit,
    "variable": change_variable,
    "stance": change_stance,
}
"""Changes that need the step alone."""


def number_of_the_problem(text: str, problem: Problem, rng: Random) -> str | None:
    """Put another number of the same problem in the place of one."""
    return _from_the_problem(text, _ANY_NUMBER, problem.numbers, rng)


def _from_the_problem(text: str, pattern: re.Pattern[str], others: Sequence[str], rng: Random) -> str | None:
    found = list(pattern.finditer(text))
    if not found:
        return None
    at = rng.choice(found)
    choices = [other for other in others if other != at[0]]
    return text[: at.start()] + rng.choice(choices) + text[at.end() :] if choices else None


def changed_steps(text: str, problem: Problem, rng: Random) -> dict[str, str]:
    """Return a step changed in one place, by the kind of change; of each kind one, where there is a place."""
    found: dict[str, str | None] = {kind: change(text, rng) for kind, change in CHANGES.items()}
    found |= {
        "entity": swap_persons(text, problem.persons),
        "number of the problem": number_of_the_problem(text, problem, rng),
        "name of the problem": exchange_persons(text, problem.persons, rng),
        "noun of the problem": exchange_nouns(text, problem.nouns, rng),
        "sentence dropped": drop_sentence(text, rng),
    }
    return {kind: other for kind, other in found.items() if other and other.strip() != text.strip()}
