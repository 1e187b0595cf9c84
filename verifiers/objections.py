"""Whether the numbers of two steps leave it open that both say the same."""

from __future__ import annotations

import re
from collections.abc import Set
from fractions import Fraction
from typing import Final, NamedTuple

from reason_spec.verifiers.quantities import Quantities, is_near, read_quantities, shown

_WORD: Final = re.compile(r"[A-Za-z]+")
_DISCOURSE: Final = frozenset(
    "so thus therefore hence then now and answer final the finally this means that".split()
)


class Objection(NamedTuple):
    """Why two steps cannot be the same by their numbers; ``contradicts``: they exclude each other."""

    reason: str
    contradicts: bool


def find_objection(drafted: str, target: str, context: str) -> Objection | None:
    """Compare the numbers of two steps; None where they leave it open whether both say the same.

    A number that one step lacks may stand in the other one if the context has it; what the context has not
    is new, and then both must say it. ``context`` is the question and the accepted steps.
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
    if a.shares and b.shares and not a.shares & b.shares:
        return Objection(
            f"{_listed(a.shares)} in one step, {_listed(b.shares)} in the other", contradicts=True
        )
    missing = [_missing(a, b), _missing(b, a)]
    if missing[0] and missing[1]:
        said = f"{_listed(missing[0])} in one step only, {_listed(missing[1])} in the other"
        return Objection(said, contradicts=True)
    if _names_swapped(drafted, target):
        return Objection("the same words, and the names in another order", contradicts=False)
    new = missing[0] | missing[1]
    # Paragraph by paragraph: those of the steps before are read once for all steps behind them.
    for paragraph in context.split("\n\n") if new else ():
        new -= read_quantities(paragraph).readings
    if new:
        return Objection(f"{_listed(new)} in one step only", contradicts=False)
    if a.calculations and b.calculations and not _same_calculations(a, b):
        return Objection("other calculations on the same numbers", contradicts=False)
    return None


def _names_swapped(drafted: str, target: str) -> bool:
    """Whether two texts of the same words have their names in another order: who has more than whom."""
    texts = [_WORD.findall(text) for text in (drafted, target)]
    # A capital in the middle of a sentence in one of the texts is that of a name in both.
    common = {word for text in texts for word in text[1:] if word[0].isupper()}
    order = [[word for word in dict.fromkeys(text) if word in common] for text in texts]
    if order[0] == order[1] or set(order[0]) != set(order[1]) or len(order[0]) < 2:
        return False
    words = [{word.lower() for word in text} - _DISCOURSE for text in texts]
    return words[0] == words[1]


def _same_calculations(a: Quantities, b: Quantities) -> bool:
    """Whether each calculation of the step with fewer of them is one of the other's, in value or form."""
    fewer, more = sorted((a.calculations, b.calculations), key=len)
    return all(
        any(
            (mine.operands == other.operands and mine.operators == other.operators)
            or (is_near(mine.value, other.value) and set(mine.operands) & set(other.operands))
            for other in more
        )
        for mine in fewer
    )


def _missing(one: Quantities, other: Quantities) -> set[Fraction]:
    return {n for n in one.numbers if not any(is_near(n, reading) for reading in other.readings)}


def _listed(numbers: Set[Fraction]) -> str:
    return ", ".join(shown(number) for number in sorted(numbers)[:4])
