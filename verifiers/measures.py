"""Units of measure and periods in two steps: 45 g is not 45 kg, and a daily cost is not a weekly one."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import Final

from reason_spec.verifiers.quantities import read_terms, shown

# "in" and "per" stand behind numbers with another meaning, so inches are not read where they are abbreviated.
_UNITS: Final = {
    word: row.split()[0]
    for row in (
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
        "hour h hr hrs hours",
        "day days",
        "week weeks",
        "month months",
        "year years",
        "dollar dollars",
        "cent cents",
        "euro euros",
        "liter l liters litre litres",
        "milliliter ml milliliters millilitre millilitres",
        "gallon gallons",
        "cup cups",
        "pint pints",
        "quart quarts",
        "degree degrees",
        "dozen dozens",
        "acre acres",
    )
    for word in row.split()
}
_PERIODS: Final = {
    word: row.split()[0]
    for row in (
        "minute minutes",
        "hour hours hourly",
        "day days daily",
        "week weeks weekly",
        "month months monthly",
        "year years yearly annual annually",
    )
    for word in row.split()
}


def other_measures(drafted: str, target: str) -> str | None:
    """Say which unit of one number, or which period, differs between two steps; None if none does.

    A step may leave a unit or a period out: only what both name is compared.
    """
    mine, other = _units(drafted), _units(target)
    for number in sorted(mine.keys() & other.keys()):
        if not mine[number] & other[number]:
            units = f"{min(mine[number])} in one step, {min(other[number])} in the other"
            return f"{shown(number)} {units}"
    periods = _periods(drafted), _periods(target)
    if all(periods) and not periods[0] & periods[1]:
        return f"by the {min(periods[0])} in one step, by the {min(periods[1])} in the other"
    return None


def _units(text: str) -> dict[Fraction, set[str]]:
    """Return the units right behind each number; a $ in front may open a formula, and says nothing."""
    found: dict[Fraction, set[str]] = defaultdict(set)
    for number, word in pairwise(read_terms(text)):
        if isinstance(number, Fraction) and isinstance(word, str) and word in _UNITS:
            found[number].add(_UNITS[word])
    return found


def _periods(text: str) -> set[str]:
    return {_PERIODS[term] for term in read_terms(text) if isinstance(term, str) and term in _PERIODS}
