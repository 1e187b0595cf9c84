"""Variables in the equations of two steps: Y = Y - 7 is not B = Y - 7, and is X = X - 7."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from reason_spec.verifiers.quantities import read_phrases, shown

_SIGNS: Final = frozenset("+-*/=()")


def other_variables(drafted: str, target: str) -> str | None:
    """Say which equation of two steps has its variables at other places; None if none has.

    Equations are compared that are alike but for the letters, and letters by where they recur: other letters
    are no difference.
    """
    mine, other = _equations(drafted), _equations(target)
    for form in sorted(mine.keys() & other.keys()):
        if not mine[form] & other[form]:
            return f"variables at other places of {form}"
    return None


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
