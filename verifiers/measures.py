"""Units of measure and periods in two steps: 45 g is not 45 kg, and a daily cost is not a weekly one."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Final

from reason_spec.verifiers.quantities import read_phrases, shown
from reason_spec.verifiers.words import stem


def _first_of_row(*rows: str) -> dict[str, str]:
    return {word: row.split()[0] for row in rows for word in row.split()}


# "in" stands behind numbers with another meaning, so inches are not read where they are abbreviated.
_UNITS: Final = _first_of_row(
    "meter m meters metre metres",
    "kilometer km kms kilometers kilometre kilometres",
    "centimeter cm centimeters centimetre centimetres",
    "millimeter mm millimeters millimetre millimetres",
    "gram g grams",
    "kilogram kg kgs kilograms kilo kilos",
    "milligram mg milligrams",
    "pound lb lbs pounds",
    "ounce oz ounces",
    "ton tons tonne tonnes",
    "inch inches",
    "foot feet ft",
    "yard yd yards",
    "mile mi miles",
    "second sec secs seconds",
    "minute min mins minutes",
    "hour hr hrs hours",
    "day days",
    "week weeks",
    "month months",
    "year years",
    "dollar dollars",
    "cent cents",
    "euro euros",
    "liter liters litre litres",
    "milliliter ml milliliters millilitre millilitres",
    "gallon gallons",
    "cup cups",
    "pint pints",
    "quart quarts",
    "degree degrees",
    "dozen dozens",
    "acre acres",
)
_PERIODS: Final = _first_of_row(
    "minute",
    "hour hourly",
    "day daily",
    "week weekly",
    "month monthly",
    "year yearly annual annually",
)
_EACH: Final = frozenset(("per", "a", "an", "each", "every", "/"))
_OPERATORS: Final = frozenset("+-*/=")
_MAX_MOVED: Final = 100
"""Numbers whose nouns are compared in pairs: of a long table, all pairs would take quadratic time."""


def other_measures(drafted: str, target: str) -> str | None:
    """Say which unit or noun of a number, or which period, differs between two steps; None if none does.

    A step may leave a unit or a period out: only what both name is compared.
    """
    mine, other = _units(drafted), _units(target)
    for number in sorted(mine.keys() & other.keys()):
        if not mine[number] & other[number]:
            units = f"{min(mine[number])} in one step, {min(other[number])} in the other"
            return f"{shown(number)} {units}"
    if exchanged := _exchanged(_nouns(drafted), _nouns(target)):
        return exchanged
    periods = _periods(drafted), _periods(target)
    if all(periods) and not periods[0] & periods[1]:
        return f"by the {min(periods[0])} in one step, by the {min(periods[1])} in the other"
    return None


def _units(text: str) -> dict[Fraction, set[str]]:
    """Return the units right behind each number; a $ in front may open a formula, and says nothing."""
    found: dict[Fraction, set[str]] = defaultdict(set)
    for terms in read_phrases(text):
        rows = zip(("", "", *terms), ("", *terms), terms, terms[1:], (*terms[2:], ""), strict=False)
        for divided, before, number, word, behind in rows:
            # The hour of "1/2 hour" is not that of 2, and the m of "5m = 20" is a variable.
            in_fraction = before == "/" and isinstance(divided, Fraction)
            is_unit = not in_fraction and not (len(str(word)) == 1 and behind in _OPERATORS)
            if isinstance(number, Fraction) and isinstance(word, str) and word in _UNITS and is_unit:
                found[number].add(_UNITS[word])
    return found


def _nouns(text: str) -> dict[Fraction, set[str]]:
    """Return the stems of words right behind each number."""
    found: dict[Fraction, set[str]] = defaultdict(set)
    for terms in read_phrases(text):
        for number, word in pairwise(terms):
            if isinstance(number, Fraction) and isinstance(word, str) and word.isalpha() and len(word) > 1:
                found[number].add(stem(word))
    return found


def _exchanged(mine: dict[Fraction, set[str]], other: dict[Fraction, set[str]]) -> str | None:
    """Say which two nouns have each other's number: 6 chairs and 15 tables, 6 tables and 15 chairs."""
    moved = [number for number in sorted(mine.keys() & other.keys()) if not mine[number] & other[number]]
    for one, two in combinations(moved[:_MAX_MOVED], 2):
        if mine[one] & other[two] and mine[two] & other[one]:
            return f"{shown(one)} and {shown(two)} count each other's things"
    return None


def _periods(text: str) -> set[str]:
    """Return the periods of adverbs (daily) and of words for each (per day, a day)."""
    return {
        _PERIODS[word]
        for terms in read_phrases(text)
        for before, word in pairwise(("", *terms))
        if isinstance(word, str) and word in _PERIODS and (word != _PERIODS[word] or before in _EACH)
    }
