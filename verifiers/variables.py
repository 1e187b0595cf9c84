"""Variables in the equations of two steps: Y = Y - 7 is not B = Y - 7, and is X = X - 7."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reason_spec.verifiers.quantities import read_terms, shown

_SIGNS: Final = frozenset("+-*/=()")


def other_variables(drafted: str, target: str) -> str | None:
    """Say which equation of two steps has its variables at other places; None if none has.

    Equations are compared that are alike but for the letters, and letters by where they recur: other letters
    are no difference.
    """
    mine, other = dict(_equations(drafted)), dict(_equations(target))
    for form in sorted(mine.keys() & other.keys()):
        if mine[form] != other[form]:
            return f"variables at other places of {form}"
    return None


def _equations(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each equation of several letters, as a form without them, and for each letter its first place."""
    run: list[str] = []
    for term in (*read_terms(text), ""):
        if not isinstance(term, str) or term in _SIGNS or (len(term) == 1 and term.isalpha()):
            run.append(term if isinstance(term, str) else shown(term))
            continue
        letters = [part for part in run if part.isalpha()]
        if "=" in run and len(letters) > 1:
            # A bracket at an end may open or close a remark.
            form = " ".join("_" if part.isalpha() else part for part in run).strip("() ")
            yield form, tuple(letters.index(letter) for letter in letters)
        run = []
