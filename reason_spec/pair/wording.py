"""The words of the problems: names, nouns, and the phrasings of facts, steps and questions.

Fields of the phrasings: ``new`` who gets the new quantity, ``old`` whose quantity it comes from,
``other`` the second source, ``k`` the number in the fact, ``ratio`` that number as a word, ``unit``
what is counted, ``group`` who shares, ``work`` the worked calculation and ``value`` its result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "more",
    "fewer",
    "times",
    "fraction",
    "total",
    "give",
    "get",
    "share",
    "price",
    "rate",
    "percent",
    "compare",
    "together",
]
Wording: TypeAlias = Literal["target", "draft"]

# fmt: off
NAMES = (
    "Ana", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jack", "Kim", "Leo", "Mia", "Noah",
    "Olga", "Paul", "Quinn", "Rosa", "Sam", "Tina", "Uma", "Vera", "Will", "Xena", "Yara", "Zoe", "Adam",
    "Bella", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivan", "Jane", "Karl", "Lucy", "Max", "Nina",
    "Omar", "Pia", "Ravi", "Sara", "Tom", "Ursa", "Vic", "Wendy", "Alma", "Bruno", "Cleo", "Dina", "Erik",
    "Flora", "Gwen", "Henry", "Iris", "Jonas", "Lena", "Marco",
)
NOUNS = (
    "apples", "books", "cards", "coins", "marbles", "pencils", "stamps", "shells", "stickers", "balls",
    "cookies", "eggs", "flowers", "pears", "plums", "nuts", "beads", "buttons", "cups", "dolls", "figs",
    "grapes", "hats", "kites", "lemons", "maps", "muffins", "oranges", "pens", "pies", "rocks", "roses",
    "seeds", "songs", "toys", "tickets", "tiles", "trees", "cakes", "candles",
)
# fmt: on
DOLLARS = "dollars"
GROUPS: Mapping[str, str] = {
    "friends": "each friend",
    "cousins": "each cousin",
    "children": "each child",
    "students": "each student",
    "guests": "each guest",
    "workers": "each worker",
    "players": "each player",
    "neighbors": "each neighbor",
}
MULTIPLES: Mapping[int, str] = {
    2: "twice",
    3: "three times",
    4: "four times",
    5: "five times",
    6: "six times",
    7: "seven times",
    8: "eight times",
    9: "nine times",
}
FRACTIONS: Mapping[int, str] = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
PERCENTS: Mapping[int, int] = {10: 10, 20: 5, 25: 4, 50: 2}
"""Percentage to the divisor that takes it."""

BASE_FACTS = (
    "{new} has {value} {unit}.",
    "{new} owns {value} {unit}.",
    "{new} starts with {value} {unit}.",
    "There are {value} {unit} that belong to {new}.",
)
DISTRACTORS = (
    "{new} has {value} {unit}.",
    "{new} also keeps {value} {unit} at home.",
    "{new} wants to buy {value} {unit} next week.",
    "Last year {new} lost {value} {unit}.",
)
FACTS: Mapping[Kind, tuple[str, ...]] = {
    "more": (
        "{new} has {k} more {unit} than {old}.",
        "{new} has {k} {unit} more than {old} does.",
        "Compared with {old}, {new} has {k} more {unit}.",
    ),
    "fewer": (
        "{new} has {k} fewer {unit} than {old}.",
        "{new} has {k} {unit} fewer than {old} does.",
        "Compared with {old}, {new} has {k} fewer {unit}.",
    ),
    "times": (
        "{new} has {ratio} as many {unit} as {old}.",
        "{new} has {ratio} the number of {unit} that {old} has.",
        "Compared with {old}, {new} has {ratio} as many {unit}.",
    ),
    "fraction": (
        "{new} has {ratio} as many {unit} as {old}.",
        "{new} has {ratio} of the number of {unit} that {old} has.",
        "Compared with {old}, {new} has only {ratio} as many {unit}.",
    ),
    "total": (
        "{new} has as many {unit} as {old} and {other} together.",
        "The number of {unit} that {new} has is the sum of what {old} and {other} have.",
        "Together {old} and {other} have as many {unit} as {new}.",
    ),
    "give": (
        "Then {old} gives {k} {unit} to a neighbor.",
        "Later {old} loses {k} {unit}.",
        "After that {old} gives away {k} of these {unit}.",
    ),
    "get": (
        "Then {old} gets {k} more {unit}.",
        "Later {old} finds {k} more {unit}.",
        "After that {old} is given another {k} {unit}.",
    ),
    "share": (
        "Then {old} shares all these {unit} equally among {k} {group}.",
        "All the {unit} of {old} are divided equally among {k} {group}.",
        "Later {old} splits the {unit} evenly between {k} {group}.",
    ),
    "price": (
        "Then {old} sells all these {unit} for {k} dollars each.",
        "All the {unit} of {old} are sold at {k} dollars each.",
        "Later {old} sells every one of the {unit} for {k} dollars.",
    ),
    "rate": (
        "Every hour {new} collects as many {unit} as {old} has, and {new} works for {k} hours.",
        "{new} works for {k} hours and each hour collects as many {unit} as {old} has.",
        "For {k} hours {new} collects, every hour, as many {unit} as {old} has.",
    ),
    "percent": (
        "{new} has {k}% as many {unit} as {old}.",
        "{new} has {k}% of the number of {unit} that {old} has.",
        "Compared with {old}, {new} has only {k}% as many {unit}.",
    ),
    "compare": (),
    "together": (),
}
STEPS: Mapping[Kind, tuple[str, str, str, str]] = {
    "more": (
        "{new} has {k} more than {old}, {work}. {new} has {value} {unit}.",
        "Adding {k} to what {old} has, {work}. So {new} has {value} {unit}.",
        "{old} has {k} fewer than {new}, {work}. So {new} has {value} {unit}.",
        "For {new} we add {k} to {old}, {work}. {new} has {value} {unit}.",
    ),
    "fewer": (
        "{new} has {k} fewer than {old}, {work}. {new} has {value} {unit}.",
        "Taking {k} from what {old} has, {work}. So {new} has {value} {unit}.",
        "{old} has {k} more than {new}, {work}. So {new} has {value} {unit}.",
        "For {new} we take {k} from {old}, {work}. {new} has {value} {unit}.",
    ),
    "times": (
        "{new} has {k} times as many as {old}, {work}. {new} has {value} {unit}.",
        "Multiplying what {old} has by {k}, {work}. So {new} has {value} {unit}.",
        "{old} has {k} times fewer than {new}, {work}. So {new} has {value} {unit}.",
        "For {new} we multiply {old} by {k}, {work}. {new} has {value} {unit}.",
    ),
    "fraction": (
        "{new} has {ratio} of what {old} has, {work}. {new} has {value} {unit}.",
        "Dividing what {old} has by {k}, {work}. So {new} has {value} {unit}.",
        "{old} has {k} times as many as {new}, {work}. So {new} has {value} {unit}.",
        "For {new} we divide {old} by {k}, {work}. {new} has {value} {unit}.",
    ),
    "total": (
        "{new} has the sum of {old} and {other}, {work}. {new} has {value} {unit}.",
        "Adding what {old} and {other} have, {work}. So {new} has {value} {unit}.",
        "{old} and {other} together match {new}, {work}. So {new} has {value} {unit}.",
        "For {new} we add {old} and {other}, {work}. {new} has {value} {unit}.",
    ),
    "give": (
        "{old} gives away {k}, {work}. Now {old} has {value} {unit}.",
        "Without these {k} of {old}, {work}. So {old} has {value} {unit}.",
        "Taking away {k} from {old}, {work}. Now {old} has {value} {unit}.",
        "For {old} there are {k} fewer, {work}. Now {old} has {value} {unit}.",
    ),
    "get": (
        "{old} gets {k} more, {work}. Now {old} has {value} {unit}.",
        "With {k} more for {old}, {work}. So {old} has {value} {unit}.",
        "Adding the new {k} to {old}, {work}. Now {old} has {value} {unit}.",
        "For {old} there are {k} more, {work}. Now {old} has {value} {unit}.",
    ),
    "share": (
        "{old} shares among {k}, {work}. Now {new} has {value} {unit}.",
        "Dividing what {old} has among {k}, {work}. So {new} has {value} {unit}.",
        "{old} gives all to {k} {group}, {work}. So {new} has {value} {unit}.",
        "For {new} we divide {old} by {k}, {work}. Now {new} has {value} {unit}.",
    ),
    "price": (
        "{old} sells at {k} dollars, {work}. Now {old} has {value} dollars.",
        "Each one of {old} brings {k} dollars, {work}. So {old} has {value} dollars.",
        "Multiplying what {old} has by the price {k}, {work}. So {old} has {value} dollars.",
        "For {old} we multiply by {k} dollars, {work}. Now {old} has {value} dollars.",
    ),
    "rate": (
        "{new} collects for {k} hours what {old} has, {work}. {new} has {value} {unit}.",
        "Each hour gives what {old} has, in {k} hours {work}. So {new} has {value} {unit}.",
        "In {k} hours {new} gets {k} times {old}, {work}. So {new} has {value} {unit}.",
        "For {new} we multiply {old} by {k} hours, {work}. {new} has {value} {unit}.",
    ),
    "percent": (
        "{new} has {k}% of what {old} has, {work}. {new} has {value} {unit}.",
        "Taking {k}% of what {old} has, {work}. So {new} has {value} {unit}.",
        "Of {old} we need {k}%, {work}. So {new} has {value} {unit}.",
        "For {new} we take {k}% of {old}, {work}. {new} has {value} {unit}.",
    ),
    "compare": (
        "The difference between {old} and {other} is {work}. So {old} has {value} {unit} more.",
        "{old} has more than {other}, {work}. The difference is {value} {unit}.",
        "Taking {other} from {old}, {work}. So {old} has {value} {unit} more.",
        "For the difference we take {other} from {old}, {work}. It is {value} {unit}.",
    ),
    "together": (
        "The sum of {old} and {other} is {work}. Together they have {value} {unit}.",
        "Adding what {old} and {other} have, {work}. So they have {value} {unit}.",
        "{old} and {other} together have {work}. The sum is {value} {unit}.",
        "For the sum we add {old} and {other}, {work}. It is {value} {unit}.",
    ),
}
STEP_WEIGHTS = (0.6, 0.2, 0.1, 0.1)
DRAFT_REWORDED: frozenset[Kind] = frozenset({"fewer", "fraction", "get", "rate"})
"""Kinds whose usual phrasing is another one in the draft's training text."""

QUESTIONS = (
    "How many {unit} does {new} have?",
    "How many {unit} does {new} have now?",
    "What is the number of {unit} that {new} has?",
    "Find the number of {unit} that {new} has.",
)
COMPARE_QUESTIONS = (
    "How many more {unit} does {old} have than {other}?",
    "By how many {unit} does {old} have more than {other}?",
)
TOGETHER_QUESTIONS = (
    "How many {unit} do {old} and {other} have together?",
    "How many {unit} do {old} and {other} have in all?",
)
ANSWER_STEP = "The answer is {value}."
CALCULATION_QUESTIONS = ("What is {expression}?", "Find {expression}.")
CALCULATION_STEP = "We have {work}. It is {value}."


def step_weights(kind: Kind, wording: Wording) -> tuple[float, ...]:
    """Return how often each phrasing of ``STEPS[kind]`` is used in one model's training text."""
    if wording == "draft" and kind in DRAFT_REWORDED:
        return STEP_WEIGHTS[-1:] + STEP_WEIGHTS[:-1]
    return STEP_WEIGHTS


def lexicon() -> tuple[str, ...]:
    """Return every word of the problems as the tokenizer meets it: with its leading space, and
    without it where the word can begin a question or a step.
    """
    texts = [*NOUNS, DOLLARS, *GROUPS, *GROUPS.values(), *MULTIPLES.values(), *FRACTIONS.values()]
    openers = [*NAMES, *GROUPS.values()]
    phrasings = [*BASE_FACTS, *DISTRACTORS, *QUESTIONS, *COMPARE_QUESTIONS, *TOGETHER_QUESTIONS]
    phrasings += [*CALCULATION_QUESTIONS, CALCULATION_STEP, ANSWER_STEP]
    for table in (FACTS, STEPS):
        phrasings += [phrasing for group in table.values() for phrasing in group]
    openers += [phrasing for phrasing in phrasings if not phrasing.startswith("{")]
    inner = [word for text in [*texts, *NAMES, *phrasings] for word in _words(text)]
    first = [_words(text)[0] for text in openers]
    spaced = {f" {word}" for word in inner} | {f" {_capital(word)}" for word in first}
    return tuple(sorted(spaced | {_capital(word) for word in first}))


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", " ", text))


def _capital(word: str) -> str:
    return word[0].upper() + word[1:]
