"""The words of the problems: names, nouns, and the phrasings of facts, steps, questions and turns.

Fields of the phrasings: ``new`` who gets the new quantity, ``old`` whose quantity it comes from and
``x`` how much that is, ``other`` the second source and ``y`` its quantity, ``k`` and ``m`` the numbers
in the fact, ``ratio`` a number as a word, ``unit`` what is counted, ``group`` who shares, ``work``
and ``work2`` the worked calculations and ``value`` the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

# fmt: off
Kind: TypeAlias = Literal[
    "more", "fewer", "times", "fraction", "percent", "total", "give", "get", "exchange", "spend", "share",
    "price", "rate", "compare", "together",
]
"""Kinds of operation that the models are trained on."""
Wording: TypeAlias = Literal["target", "draft"]

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
DOLLARS = "dollars"
GROUPS: Mapping[str, str] = {
    "friends": "each friend", "cousins": "each cousin", "children": "each child", "students": "each student",
    "guests": "each guest", "workers": "each worker", "players": "each player", "neighbors": "each neighbor",
}
MULTIPLES: Mapping[int, str] = {
    2: "twice", 3: "three times", 4: "four times", 5: "five times", 6: "six times", 7: "seven times",
    8: "eight times", 9: "nine times",
}
# fmt: on
FRACTIONS: Mapping[int, str] = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
PERCENTS: Mapping[int, int] = {10: 10, 20: 5, 25: 4, 50: 2}
"""Percentage to the divisor that takes it."""
STEP_WEIGHTS = (0.6, 0.2, 0.1, 0.1)


# Each phrasing of a fact or a question is as likely as the others.
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
    "percent": (
        "{new} has {k}% as many {unit} as {old}.",
        "{new} has {k}% of the number of {unit} that {old} has.",
        "Compared with {old}, {new} has only {k}% as many {unit}.",
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
    "exchange": (
        "Then {old} gives away {k} {unit} and gets {m} more.",
        "Later {old} loses {k} of the {unit}, but finds another {m}.",
        "After that {old} sends {k} {unit} to a friend and buys {m} new ones.",
    ),
    "spend": (
        "Then {old} gives away {ratio} of the {unit}.",
        "Later {old} uses up {ratio} of these {unit}.",
        "After that {ratio} of the {unit} of {old} are gone.",
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
}
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

STEPS: Mapping[Kind, tuple[str, ...]] = {
    "more": (
        "Adding {k} to those of {old}: {work}. {new} has {value} {unit}.",
        "We go {k} above {old}: {work}. So {new} has {value} {unit}.",
        "{new} is {k} ahead of {old}: {work}. So {new} has {value} {unit}.",
        "For {new} we start from {old}: {work}. {new} has {value} {unit}.",
    ),
    "fewer": (
        "Taking {k} from those of {old}: {work}. {new} has {value} {unit}.",
        "We go {k} below {old}: {work}. So {new} has {value} {unit}.",
        "{new} is {k} behind {old}: {work}. So {new} has {value} {unit}.",
        "For {new} we come down from {old}: {work}. {new} has {value} {unit}.",
    ),
    "times": (
        "Multiplying by {k} those of {old}: {work}. {new} has {value} {unit}.",
        "We count {k} times {old}: {work}. So {new} has {value} {unit}.",
        "{new} has {k} for each one of {old}: {work}. So {new} has {value} {unit}.",
        "For {new} we multiply {old}: {work}. {new} has {value} {unit}.",
    ),
    "fraction": (
        "Dividing by {k} those of {old}: {work}. {new} has {value} {unit}.",
        "We need one part in {k} of {old}: {work}. So {new} has {value} {unit}.",
        "{new} has one for every {k} of {old}: {work}. So {new} has {value} {unit}.",
        "For {new} we divide {old}: {work}. {new} has {value} {unit}.",
    ),
    "percent": (
        "A share of {k} percent of {old}: {work}. {new} has {value} {unit}.",
        "We take {k} of every 100 of {old}: {work}. So {new} has {value} {unit}.",
        "{new} gets {k} percent from {old}: {work}. So {new} has {value} {unit}.",
        "For {new} we take a part of {old}: {work}. {new} has {value} {unit}.",
    ),
    "total": (
        "The sum of {old} with {x} and {other} with {y}: {work}. {new} has {value} {unit}.",
        "We add {old} with {x} and {other} with {y}: {work}. So {new} has {value} {unit}.",
        "{new} equals {old} with {x} plus {other} with {y}: {work}. So {new} has {value} {unit}.",
        "For {new} we join {old} with {x} and {other} with {y}: {work}. {new} has {value} {unit}.",
    ),
    "give": (
        "Without these {k} the rest for {old}: {work}. Now {old} has {value} {unit}.",
        "We count {k} less for {old}: {work}. So {old} has {value} {unit}.",
        "{old} is left with {k} less: {work}. So {old} has {value} {unit}.",
        "For {old} it goes down: {work}. Now {old} has {value} {unit}.",
    ),
    "get": (
        "With these {k} in addition for {old}: {work}. Now {old} has {value} {unit}.",
        "We count {k} extra for {old}: {work}. So {old} has {value} {unit}.",
        "{old} ends up with {k} extra: {work}. So {old} has {value} {unit}.",
        "For {old} it goes up: {work}. Now {old} has {value} {unit}.",
    ),
    "exchange": (
        "First without {k} for {old}: {work}, then with {m}: {work2}. Now {old} has {value} {unit}.",
        "We count {k} less for {old}: {work}, but {m} extra: {work2}. So {old} has {value} {unit}.",
        "{old} is left with {k} less: {work}, and gains {m}: {work2}. So {old} has {value} {unit}.",
        "For {old} it goes down: {work}, then up: {work2}. Now {old} has {value} {unit}.",
    ),
    "spend": (
        "One part in {k} goes from {old}: {work}, so the rest is {work2}. Now {old} has {value} {unit}.",
        "We divide by {k} for {old}: {work}, and take that: {work2}. So {old} has {value} {unit}.",
        "{old} is left without a part: {work}, so {work2}. So {old} has {value} {unit}.",
        "For {old} a part goes: {work}, down to {work2}. Now {old} has {value} {unit}.",
    ),
    "share": (
        "Each of {k} {group} gets a part from {old}: {work}. Now {new} has {value} {unit}.",
        "We split into {k} parts for {old}: {work}. So {new} has {value} {unit}.",
        "{old} makes {k} equal parts: {work}. So {new} has {value} {unit}.",
        "For {new} we divide {old}: {work}. Now {new} has {value} {unit}.",
    ),
    "price": (
        "Selling at {k} dollars brings {old}: {work}. Now {old} has {value} dollars.",
        "We count {k} dollars for each of {old}: {work}. So {old} has {value} dollars.",
        "{old} takes {k} dollars a piece: {work}. So {old} has {value} dollars.",
        "For {old} we multiply by the price: {work}. Now {old} has {value} dollars.",
    ),
    "rate": (
        "Working {k} hours at the number of {old}: {work}. {new} has {value} {unit}.",
        "We count {k} hours with {old}: {work}. So {new} has {value} {unit}.",
        "{new} earns in {k} hours from {old}: {work}. So {new} has {value} {unit}.",
        "For {new} we multiply hours with {old}: {work}. {new} has {value} {unit}.",
    ),
    "compare": (
        "From {old} with {x} we take {other} with {y}: {work}. So {old} has {value} {unit} more.",
        "{old} with {x} beats {other} with {y}: {work}. The difference is {value} {unit}.",
        "Between {old} with {x} and {other} with {y}: {work}. So {old} has {value} {unit} more.",
        "For the difference of {old} with {x} and {other} with {y}: {work}. It is {value} {unit}.",
    ),
    "together": (
        "Joining {old} with {x} and {other} with {y}: {work}. Together they have {value} {unit}.",
        "Adding {old} with {x} and {other} with {y}: {work}. So they have {value} {unit}.",
        "{old} with {x} plus {other} with {y}: {work}. The sum is {value} {unit}.",
        "For the sum of {old} with {x} and {other} with {y}: {work}. It is {value} {unit}.",
    ),
}
DRAFT_REWORDED: frozenset[Kind] = frozenset({"fewer", "fraction", "rate", "total"})
"""Kinds whose usual phrasing is another one in the draft's training text."""

ANSWER_STEP = "The answer is {value}."
RECALL_STEP = "{new} has {value} {unit}."
CALCULATION_QUESTIONS = ("What is {expression}?", "Find {expression}.")
CALCULATION_STEP = "We have {work}. It is {value}."
CHECK_STEPS: Mapping[str, str] = {
    "+": "Let me check: {value}-{b} is {a} again, as it should be.",
    "-": "Let me check: {value}+{b} is {a} again, as it should be.",
}
"""Steps that check the one before them, by its operator: ``a`` and ``b`` are its numbers."""
CORRECTIONS = ("Wait, that is not right. {step}", "Wait, let me do this again. {step}")
CONTINUE = "Then?"
"""Asks for the next step after a score, in words that the phrasings already have."""
SCORE_QUESTION = "Score the last step from 0 to 9."
JUDGE_QUESTION = "First: {first} Second: {second} Do they agree? Say aligned or unaligned."
ALIGNED, UNALIGNED = "aligned", "unaligned"


def step_weights(kind: Kind, wording: Wording) -> tuple[float, ...]:
    """Return how often each phrasing of ``STEPS[kind]`` is used in one model's training text."""
    if wording == "draft" and kind in DRAFT_REWORDED:
        return STEP_WEIGHTS[-1:] + STEP_WEIGHTS[:-1]
    return STEP_WEIGHTS


def lexicon() -> tuple[str, ...]:
    """Return every word that training shows, as the tokenizer meets it: with its leading space, and
    without it where the word can begin a question or a step.
    """
    texts = [*NOUNS, DOLLARS, *GROUPS, *GROUPS.values(), *MULTIPLES.values(), *FRACTIONS.values()]
    openers = [*NAMES, *GROUPS.values(), ALIGNED, UNALIGNED]
    phrasings = [*BASE_FACTS, *DISTRACTORS, *QUESTIONS, *COMPARE_QUESTIONS, *TOGETHER_QUESTIONS]
    phrasings += [phrasing for group in FACTS.values() for phrasing in group]
    phrasings += [*CALCULATION_QUESTIONS, CALCULATION_STEP, ANSWER_STEP]
    phrasings += [*CHECK_STEPS.values(), *CORRECTIONS, SCORE_QUESTION, JUDGE_QUESTION]
    phrasings += [phrasing for kind in get_args(Kind) for phrasing in STEPS[kind]]
    openers += [phrasing for phrasing in phrasings if not phrasing.startswith("{")]
    inner = [word for text in [*texts, *NAMES, "carry", "borrow", *phrasings] for word in _words(text)]
    first = [_words(text)[0] for text in openers]
    spaced = {f" {word}" for word in inner} | {f" {_capital(word)}" for word in first}
    return tuple(sorted(spaced | {_capital(word) for word in first} | {ALIGNED, UNALIGNED}))


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", " ", text))


def _capital(word: str) -> str:
    return word[0].upper() + word[1:]
