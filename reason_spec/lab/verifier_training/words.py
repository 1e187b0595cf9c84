"""English words for changes of a step: closed classes, plurals, articles; what a problem counts and names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from reason_spec.verifiers.words import FINITE_VERB, FUNCTION_WORDS

_NO_PERSONS: Final = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july "
    "august september october november december christmas easter halloween thanksgiving english spanish "
    "french german american celsius fahrenheit mrs miss street avenue park school".split()
)
_SMALL: Final = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_COUNTED: Final = re.compile(
    rf"(?:\b(?:{_SMALL}|how many|number of|total of)|(?<![\d.,-])\d+(?:[.,]\d+)*)\s+(?:\\text\{{\s*)?"
    r"([a-z]{4,})\b(?![-'])"
)
_NO_NOUNS: Final = FUNCTION_WORDS | frozenset(
    "times dozens equals bucks degrees points digits numbers values units things items objects persons "
    "others ones words steps parts amounts rates terms lots ways cases costs needs uses makes gives runs "
    "sells works pays buys gets takes goes remains means lasts weighs eats drinks reads plays earns "
    "spends saves adds divides multiplies results totals halves thirds quarters fifths tenths fractions "
    "multiples perhaps besides afterwards sometimes sets groups pairs kinds types portions pieces "
    "sections shares counts sums answers problems questions calculations solutions individuals years "
    "months weeks days hours minutes seconds dollars cents euros miles kilometers meters centimeters "
    "millimeters inches yards pounds ounces grams kilograms tons liters gallons cups quarts pints "
    "acres".split()
)
"""Plurals that are units, words of arithmetic, verbs, or so wide that they may mean any other noun."""
_IRREGULAR: Final = {
    "children": "child", "women": "woman", "mice": "mouse", "geese": "goose", "teeth": "tooth",
    "loaves": "loaf", "knives": "knife", "shelves": "shelf", "leaves": "leaf", "calves": "calf",
    "cookies": "cookie", "movies": "movie", "brownies": "brownie", "smoothies": "smoothie",
    "calories": "calorie", "zombies": "zombie", "potatoes": "potato", "tomatoes": "tomato",
    "mangoes": "mango", "heroes": "hero", "buses": "bus", "quizzes": "quiz", "wolves": "wolf",
    "scarves": "scarf",
}  # fmt: skip
_SIBILANT: Final = re.compile(r"(?:ss|sh|x|zz|[^a]ch|[eo]ach)es$")
"""Plurals in "es" of a word without "e"; not "prizes", and not "headaches"."""
_SYNONYMS: Final = tuple(
    frozenset(group.split())
    for group in (
        "children kids", "candies sweets treats", "games matches", "packs packages packets", "cars vehicles",
        "houses homes", "trips rides journeys", "students pupils classmates", "workers employees",
        "boxes crates cartons", "lessons classes sessions", "toys dolls", "books novels", "shops stores",
        "pages sheets", "tasks chores", "guests visitors attendees", "customers clients",
    )
)  # fmt: skip
_VOWEL: Final = re.compile(
    r"(?!one\b|once\b|uni[tvqf]|us[eu]|eu)[aeiou]|hour|honest|hono|heir", re.IGNORECASE
)
_ARTICLE: Final = re.compile(r"\b([Aa])n? $")


def singular(plural: str) -> str:
    """Return the singular of a plural noun."""
    if plural in _IRREGULAR:
        return _IRREGULAR[plural]
    if plural.endswith("ies") and len(plural) > 4:
        return plural[:-3] + "y"
    return plural[:-2] if _SIBILANT.search(plural) else plural[:-1]


def is_plural(word: str) -> bool:
    """Whether a word has the form of a plural noun of things that are counted."""
    if word in _NO_NOUNS:
        return False
    return word in _IRREGULAR or (word.endswith("s") and not word.endswith(("ss", "us", "is")))


def mean_the_same(one: str, other: str) -> bool:
    """Whether two plurals may be words for the same things."""
    return one == other or any({one, other} <= group for group in _SYNONYMS)


def counted_nouns(question: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the plural nouns of the question that its texts count: "12 pens", "how many boxes"."""
    counts = Counter(noun for text in (question, *texts) for noun in _COUNTED.findall(text))
    words = set(re.findall(r"[a-z]+", question.lower()))
    return tuple(
        noun
        for noun, count in counts.items()
        if count > 1 and is_plural(noun) and (noun in words or singular(noun) in words)
    )


def persons(question: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of persons in a question.

    Each has a capital inside a sentence, does something in the question or owns something, and is nowhere in
    small letters.
    """
    everything = "\n".join((question, *texts))
    small = set(re.findall(r"\b[a-z]+\b", everything))
    inside = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", everything))
    acting = set(
        re.findall(
            rf"(?<![A-Z][a-z] )\b([A-Z][a-z]{{2,}})(?='s\b|’s\b| {FINITE_VERB}| and [A-Z][a-z]+ [a-z])",
            everything,
        )
    )
    asked = set(re.findall(r"\b[A-Z][a-z]{2,}\b", question))
    return tuple(
        sorted(
            name
            for name in acting & inside & asked
            if name.lower() not in small | FUNCTION_WORDS | _NO_PERSONS
            and not re.search(rf"[A-Z][a-z]+ {name}\b|\b{name} [A-Z]|\b(?:the|in|at|near) {name}\b", question)
        )
    )


def put_word(text: str, start: int, end: int, word: str) -> str:
    """Return a text with a word in the place of what stands there, and "a" or "an" before it as it wants."""
    before = _ARTICLE.sub(lambda at: f"{at[1]}{'n' * bool(_VOWEL.match(word))} ", text[:start])
    return before + word + text[end:]
