"""Whether the numbers of two steps leave it open that both say the same."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence, Set
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from reason_spec.verifiers.measures import other_measures
from reason_spec.verifiers.quantities import Quantities, is_near, read_quantities, shown
from reason_spec.verifiers.variables import other_variables
from reason_spec.verifiers.wording import other_wording
from reason_spec.verifiers.words import FINITE_VERB, FUNCTION_WORDS

_WORD: Final = re.compile(r"[A-Za-z]+")
_NAME: Final = re.compile(r"(?<=[a-z0-9,;)] )[A-Z][a-z]+\b|\b[A-Z][a-z]+(?=['’]s\b)")
_SUBJECT: Final = re.compile(rf"(?:^|[.!?]\s)\s*([A-Z][a-z]+)(?= {FINITE_VERB})")
_LESS: Final = re.compile(r"(?<!<)<(?![<-])|≤|\\l(?:eqslant|eq|e|t)(?![a-z])")
_GREATER: Final = re.compile(r"(?<![>=-])>(?!>)|≥|\\g(?:eqslant|eq|e|t)(?![a-z])")
_OR_EQUAL: Final = re.compile(r"[<>]=|=<|[≤≥]|\\[lg](?:eqslant|eq|e)(?![a-z])")
_MOST_COMPARED: Final = 10_000
"""Pairs of calculations that are compared; tables may have hundreds of them."""
_NEGATIVE: Final = re.compile(r"(?:[=(]|\b(?:is|are|was|were|be|equals?|to)\b)\s*[-−]\s*(\d+(?:\.\d+)?)")


class Objection(NamedTuple):
    """Why two steps cannot be the same by their numbers; ``contradicts``: they exclude each other."""

    reason: str
    contradicts: bool


def find_objection(drafted: str, target: str, question: str, before: str = "") -> Objection | None:
    """Compare the numbers of two steps; None where they leave it open whether both say the same.

    A number that one step lacks may stand in the other one if the context has it; what the context has not
    is new, and then both must say it. The context is the question and the steps ``before``.
    """
    a, b = read_quantities(drafted), read_quantities(target)
    if bool(a.mistakes) != bool(b.mistakes):
        return Objection(f"wrong in one step only: {min(a.mistakes | b.mistakes)}", contradicts=True)
    calculations = {(c.operands, c.operators): c for c in b.calculations}
    for mine in a.calculations:
        other = calculations.get((mine.operands, mine.operators))
        if other is not None and not (
            is_near(mine.value, other.value) and is_near(mine.stated, other.stated)
        ):
            return Objection(f"{mine} in one step, {other} in the other", contradicts=True)
    if a.results and b.results and not is_near(a.results[-1], b.results[-1]):
        known = a.results[-1] in b.readings and b.results[-1] in a.readings
        said = f"the result is {shown(a.results[-1])} in one step, {shown(b.results[-1])} in the other"
        return Objection(said, contradicts=not known)
    for own, others in ((a.shares, b.shares), (a.worded_shares, b.worded_shares)):
        if own and others and not own & others:
            return Objection(f"{_listed(own)} in one step, {_listed(others)} in the other", contradicts=True)
    inequalities = [
        [bool(sign.search(text)) for sign in (_LESS, _GREATER, _OR_EQUAL)] for text in (drafted, target)
    ]
    directions = [_directions(text) for text in (drafted, target)]
    turned = sorted(directions[0]) == sorted(directions[1]) and directions[0] != directions[1]
    if all(map(any, inequalities)) and (inequalities[0] != inequalities[1] or turned):
        # It may still be the same inequality, read from the other side.
        return Objection("other inequalities", contradicts=False)
    if a.ordered_operands != b.ordered_operands and sorted(a.ordered_operands) == sorted(b.ordered_operands):
        return Objection("operands of a subtraction or division in another order", contradicts=False)
    negative = [set(_NEGATIVE.findall(text)) for text in (drafted, target)]
    if negative[0] != negative[1]:
        # The other one may speak of a loss.
        number = min(negative[0] ^ negative[1])
        return Objection(f"-{number} in one step only", contradicts=False)
    missing = [missing_numbers(a, b), missing_numbers(b, a)]
    if missing[0] and missing[1]:
        said = f"{_listed(missing[0])} in one step only, {_listed(missing[1])} in the other"
        return Objection(said, contradicts=True)
    worded = [a.worded - b.readings, b.worded - a.readings]
    if all(worded):
        said = f"{_listed(worded[0])} in one step only, {_listed(worded[1])} in the other"
        return Objection(said, contradicts=True)
    for difference in (
        _other_names(drafted, target, question),
        other_measures(drafted, target),
        other_variables(drafted, target),
        other_wording(drafted, target),
    ):
        if difference:
            return Objection(difference, contradicts=False)
    new = missing[0] | missing[1]
    # Line by line: those of the steps before are read once for all steps behind them.
    for line in (question, *before.split("\n")) if new else ():
        new -= read_quantities(line).readings
    if new:
        return Objection(f"{_listed(new)} in one step only", contradicts=False)
    if a.calculations and b.calculations and not _same_calculations(a, b):
        return Objection("other calculations on the same numbers", contradicts=False)
    return None


def _directions(text: str) -> list[bool]:
    """Return for each inequality, in their order, whether the first side is the lesser one."""
    found = [(sign.start(), True) for sign in _LESS.finditer(text)]
    found += [(sign.start(), False) for sign in _GREATER.finditer(text)]
    return [is_less for _, is_less in sorted(found)]


def _other_names(drafted: str, target: str, question: str) -> str | None:
    """Say how the names in two texts differ: others, another one first, or another order (who has more).

    A text may leave out all names, as "she" does; None then. One that leaves out the first alone differs: it
    may speak of somebody else.
    """
    known = _names_in(question, subjects=True) if question else _names_in(f"{drafted} {target}")
    order = [
        list(dict.fromkeys(word for word in _WORD.findall(text) if word in known))
        for text in (drafted, target)
    ]
    if not all(order):
        return None
    shared = [[word for word in names if word in order[0] and word in order[1]] for names in order]
    alone = [[word for word in names if word not in shared[0]] for names in order]
    if all(alone):
        return f"{alone[0][0]} in one step, {alone[1][0]} in the other"
    if order[0][0] != order[1][0]:
        return f"{order[0][0]} first in one step, {order[1][0]} in the other"
    return "the names in another order" if shared[0] != shared[1] else None


@lru_cache(maxsize=256)
def _names_in(text: str, subjects: bool = False) -> frozenset[str]:
    """Return words with a capital that are neither function words nor anywhere in small letters.

    They stand inside a sentence or before 's; with ``subjects`` also before a verb at its beginning.
    A step may begin so with what is no name: "Speed is". A question hardly does.
    """
    found = {*_NAME.findall(text), *(_SUBJECT.findall(text) if subjects else ())}
    small = {word for word in _WORD.findall(text) if word.islower()} | (FUNCTION_WORDS - {"will"})
    return frozenset(name for name in found if name.lower() not in small)


def _same_calculations(a: Quantities, b: Quantities) -> bool:
    """Whether each calculation of the step with fewer of them is one of the other's, in value or form."""
    fewer, more = sorted((a.calculations, b.calculations), key=len)
    forms = {(other.operands, other.operators) for other in more}
    open_ones = [mine for mine in fewer if (mine.operands, mine.operators) not in forms]
    return len(open_ones) * len(more) <= _MOST_COMPARED and all(
        any(
            not set(mine.operands).isdisjoint(other.operands) and is_near(mine.value, other.value)
            for other in more
        )
        for mine in open_ones
    )


def missing_numbers(one: Quantities, other: Quantities) -> set[Fraction]:
    """Return the numbers of one step that the other one neither has nor computes."""
    missing = one.numbers - other.readings
    readings = sorted(other.readings) if missing else []
    rounded = [reading for reading in readings if reading.denominator != 1]
    return {n for n in missing if not _has_near(n, rounded if n.denominator == 1 else readings)}


def _has_near(number: Fraction, ascending: Sequence[Fraction]) -> bool:
    """Whether one of the readings is near: the next one below or above, or none is."""
    place = bisect(ascending, number)
    return any(is_near(number, reading) for reading in ascending[max(0, place - 1) : place + 1])


def _listed(numbers: Set[Fraction]) -> str:
    return ", ".join(shown(number) for number in sorted(numbers)[:4])
