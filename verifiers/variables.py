"""Variables in the equations of two steps: Y = Y - 7 is neither B = Y - 7 nor Y = Y + 7."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from reason_spec.verifiers.quantities import read_phrases, shown

_SIGNS: Final = frozenset("+-*/=()")


def other_variables(drafted: str, target: str) -> str | None:
    """Say which variables or signs beside them differ between two steps; None if none do.

    Equations that are alike but for the letters are compared by where letters recur. Both steps follow the
    same text, so letters that one step alone has differ from those that the other one alone has.
    """
    mine, other = _equations(drafted), _equations(target)
    for form in sorted(mine.keys() & other.keys()):
        if not mine[form] & other[form]:
            return f"variables at other places of {form}"
    (letters, signs), (other_letters, other_signs) = map(_letters_and_signs, (drafted, target))
    alone, other_alone = letters - other_letters, other_letters - letters
    if alone and other_alone:
        return f"{min(alone)} in one step, {min(other_alone)} in the other"
    return "other signs beside variables" if signs and other_signs and signs != other_signs else None


def _letters_and_signs(text: str) -> tuple[set[str], Counter[str]]:
    """Return the letters of equations, in small ones, and how often + and - stand in sums with letters."""
    letters: set[str] = set()
    signs: Counter[str] = Counter()
    for terms in read_phrases(text):
        for run in _runs(terms):
            own = {part.lower() for part in run if part.isalpha()}
            letters |= own if "=" in run else set()
            signs.update(part for part in run if own and part in "+-")
    return letters, signs


def _equations(text: str) -> dict[str, set[tuple[int, ...]]]:
    """Return the equations of several letters by their form without letters, and how letters recur in each.

    Sums and products say in any order how often each letter stands; else each letter has the place where it
    first stands.
    """
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for terms in read_phrases(text):
        for run in _runs(terms):
            letters = [part for part in run if part.isalpha()]
            if "=" in run and len(letters) > 1:
                # A bracket at an end may open or close a remark.
                form = " ".join("_" if part.isalpha() else part for part in run).strip("() ")
                places = tuple(letters.index(letter) for letter in letters)
                counts = tuple(sorted(Counter(letters).values()))
                found[form].add(places if {"-", "/"} & set(run) else counts)
    return found


def _runs(terms: Sequence[str | Fraction]) -> Iterator[list[str]]:
    """Yield the longest runs of letters, numbers and signs."""
    run: list[str] = []
    for term in (*terms, ""):
        if not isinstance(term, str) or term in _SIGNS or (len(term) == 1 and term.isalpha()):
            run.append(term if isinstance(term, str) else shown(term))
            continue
        yield run
        run = []
