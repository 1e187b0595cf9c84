"""Changes of one place of a step that give it another meaning; each returns None where there is no place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

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
_VERB: Final = re.compile(r"\b(is|are|was|were|can|must|will|should|has to|does|do)\b(?! not)")
_NEGATED: Final = re.compile(r"\b(is|are|was|were|can|must|will|does|do) not\b|\bcannot\b")
_FORMULA: Final = re.compile(r"\$[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_WORDS: Final = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b")
_VARIABLE: Final = re.compile(r"(?<![\\\w{])([a-zA-Z])(?![\w}])")
_NAME: Final = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
_CAPITALIZED: Final = re.compile(r"\b[A-Z][a-z]{2,}\b")
_NOUN: Final = re.compile(r"(?<=[\d%] )[a-z]{3,}(?=\b)|(?<=number of )[a-z]{3,}\b|(?<=many )[a-z]{3,}\b")
_CLAUSE: Final = re.compile(
    r",? \b(?:per|for each|for every|each|every|if|when|after|before|in total|from|during|for)\b "
    r"[^.,;:=\n*\\]{3,60}(?=[.,;:\n]|$)"
)
_SENTENCE: Final = re.compile(r"(?<=[a-zA-Z\d)%\]][.!?]) +(?=[A-Z\d(\\*])|\n+")
_ANTONYMS: Final = {
    one: other
    for pair in (
        "more:fewer", "greater:less", "larger:smaller", "above:below", "before:after", "first:last",
        "increase:decrease", "increases:decreases", "increasing:decreasing", "even:odd", "maximum:minimum",
        "positive:negative", "ahead:behind", "extra:less", "up:down", "left:right", "inside:outside",
        "highest:lowest", "largest:smallest", "higher:lower", "longer:shorter", "all:none", "always:never",
        "\\geq:\\leq", "\\ge:\\le", ">:<", "over:under", "earlier:later", "with:without", "most:least",
        "add:subtract", "adding:subtracting", "multiply:divide", "multiplying:dividing", "sum:difference",
        "total:remaining", "bought:sold", "buys:sells", "spent:earned", "spends:earns", "cost:profit",
        "gained:lost", "gives:takes", "older:younger", "faster:slower", "weekday:weekend", "morning:evening",
        "adults:children", "boys:girls", "men:women", "mother:father", "sister:brother", "revenue:cost",
        "remaining:used", "final:initial", "old:new", "each:all", "cheaper:dearer", "income:expenses",
    )
    for one, other in (pair.split(":"), pair.split(":")[::-1])
}  # fmt: skip
_UNITS: Final = {
    "dollars": "cents", "hours": "minutes", "minutes": "seconds", "days": "weeks", "meters": "feet",
    "miles": "kilometers", "inches": "feet", "feet": "yards", "degrees": "radians", "cm": "mm",
    "square": "cubic", "years": "months", "pounds": "ounces", "units": "square units", "area": "perimeter",
    "length": "width", "radius": "diameter", "sine": "cosine", "\\sin": "\\cos", "weeks": "days",
    "week": "day", "day": "week", "month": "year", "year": "month", "hour": "day", "months": "weeks",
    "weekly": "daily", "daily": "weekly", "monthly": "yearly", "width": "height", "price": "number",
    "number": "cost", "percentage": "number", "seconds": "minutes", "minute": "hour", "kilometers": "miles",
}  # fmt: skip

_DOUBTS: Final = (
    "Wait, that is wrong. ", "Hmm, that can't be right. ", "No, ", "Maybe ", "Suppose ",
    "Let me check whether ",
    "It would be a mistake to say this: ", "Wait, maybe ", "That was wrong: ", "If ",
    "Let me redo the step before. ", "Alternatively, ", "I am not sure, but perhaps ",
    "Is it true that ", "Actually, no: ",
)  # fmt: skip

Change = Callable[[str, Random], str | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """What changes put into a step: numbers, names and nouns of its own problem."""

    numbers: tuple[str, ...]
    names: tuple[str, ...]
    nouns: tuple[str, ...]

    @classmethod
    def read(cls, question: str, texts: Sequence[str] = ()) -> Problem:
        everything = "\n".join((question, *texts))
        names = set(_CAPITALIZED.findall(re.sub(r"(?:^|[.!?]\s+)\w+", "", question)))
        return cls(
            tuple(dict.fromkeys(_ANY_NUMBER.findall(everything))),
            tuple(sorted(names)),
            tuple(noun for noun in dict.fromkeys(_NOUN.findall(everything)) if _is_noun_of(noun, question)),
        )


def _is_noun_of(word: str, question: str) -> bool:
    """Whether a word behind a number is in the question, too, and no verb: "the 4 drilled"."""
    return word in question and not word.endswith("ed")


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
    found = list(_VERB.finditer(text))
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.end()] + " not" + text[at.end() :]


def change_direction(text: str, rng: Random) -> str | None:
    return _replace_word(text, _ANTONYMS, rng)


def change_unit(text: str, rng: Random) -> str | None:
    return _replace_word(text, _UNITS, rng)


def _replace_word(text: str, table: Mapping[str, str], rng: Random) -> str | None:
    found = [at for at in re.finditer(r"\\?[a-zA-Z]+|(?<= )[<>](?= )", text) if at[0] in table]
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.start()] + table[at[0]] + text[at.end() :]


def change_variable(text: str, rng: Random) -> str | None:
    """Put another letter of the same formulas in the place of one."""
    # Words in a row stand between two sums of money, not between the signs of a formula.
    formulas = [(at.start(), at.end()) for at in _FORMULA.finditer(text) if not _WORDS.search(at[0])]
    found = [at for start, end in formulas for at in _VARIABLE.finditer(text, start, end)]
    letters = sorted({at[1] for at in found})
    if len(letters) < 2:
        return None
    at = rng.choice(found)
    other = rng.choice([letter for letter in letters if letter != at[1]])
    return text[: at.start()] + other + text[at.end() :]


def change_stance(text: str, rng: Random) -> str | None:
    """Make a statement a doubt, a guess or the correction of the step before."""
    return rng.choice(_DOUBTS) + text if text[:1].isalnum() else None


def change_names(text: str, _: Random) -> str | None:
    """Swap the first two names inside a sentence."""
    return _swapped(text, _NAME.findall(text))


def swap_names_of_the_problem(text: str, problem: Problem) -> str | None:
    """Swap the first two names of the problem; in "Total Cost" nothing is a name."""
    return _swapped(text, [word for word in _CAPITALIZED.findall(text) if word in problem.names])


def _swapped(text: str, found: Sequence[str]) -> str | None:
    names = list(dict.fromkeys(found))[:2]
    if len(names) < 2:
        return None
    swap = dict(zip(names, reversed(names), strict=True))
    return re.sub(r"\b(?:" + "|".join(names) + r")\b", lambda at: swap[at[0]], text)


def drop_clause(text: str, rng: Random) -> str | None:
    """Drop a condition or an attribute: what is left says less."""
    found = [at for at in _CLAUSE.finditer(text) if at.end() - at.start() < len(text) * 0.6]
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.start()] + text[at.end() :]


def drop_sentence(text: str, rng: Random) -> str | None:
    """Drop one of the sentences that say something: with a number, or of eight words."""
    sentences = _SENTENCE.split(text)
    telling = [
        at
        for at, sentence in enumerate(sentences)
        if re.search(r"\d", sentence) or len(sentence.split()) >= 8
    ]
    if len(sentences) < 2 or not telling:
        return None
    dropped = rng.choice(telling)
    return " ".join(sentence for at, sentence in enumerate(sentences) if at != dropped).strip() or None


CHANGES: Final[dict[str, Change]] = {
    "number": change_number,
    "operation": change_operation,
    "order": change_order,
    "direction": change_direction,
    "negation": change_negation,
    "unit": change_unit,
    "variable": change_variable,
    "stance": change_stance,
    "entity": change_names,
}
"""Changes that need the step alone."""


def number_of_the_problem(text: str, problem: Problem, rng: Random) -> str | None:
    """Put another number of the same problem in the place of one."""
    return _from_the_problem(text, _ANY_NUMBER, problem.numbers, rng)


def name_of_the_problem(text: str, problem: Problem, rng: Random) -> str | None:
    known = set(problem.names)
    found = [at for at in _CAPITALIZED.finditer(text) if at[0] in known]
    others = [name for name in problem.names if not found or name != found[0][0]]
    if not found or not others:
        return None
    at = rng.choice(found)
    others = [name for name in problem.names if name != at[0]]
    return text[: at.start()] + rng.choice(others) + text[at.end() :]


def noun_of_the_problem(text: str, problem: Problem, rng: Random) -> str | None:
    known = set(problem.nouns)
    found = [at for at in re.finditer(r"\b[a-z]{3,}\b", text) if at[0] in known]
    if not found or len(known) < 2:
        return None
    at = rng.choice(found)
    others = [noun for noun in problem.nouns if noun.rstrip("s") != at[0].rstrip("s")]
    return text[: at.start()] + rng.choice(others) + text[at.end() :] if others else None


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
        "entity": swap_names_of_the_problem(text, problem),
        "number of the problem": number_of_the_problem(text, problem, rng),
        "name of the problem": name_of_the_problem(text, problem, rng),
        "noun of the problem": noun_of_the_problem(text, problem, rng),
        "clause dropped": drop_clause(text, rng),
        "sentence dropped": drop_sentence(text, rng),
    }
    return {kind: other for kind, other in found.items() if other and other.strip() != text.strip()}
