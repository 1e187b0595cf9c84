"""Decide whether a step is right.

The operations of a problem form a chain, so the next calculation is known at every step; the wording is free.
"""

from __future__ import annotations

import re

_EXPRESSION = re.compile(r"\d+[-+*/]\d+")
_NUMBER = re.compile(r"\d+")


def is_right_step(step: str, reference: str) -> bool:
    """Return whether ``step`` makes the calculation of ``reference`` and gets its result.

    A step of several calculations is graded by the first one and by its result, the last number. A step
    without a calculation must be equal to ``reference``.
    """
    wanted, found = _EXPRESSION.search(reference), _EXPRESSION.search(step)
    if wanted is None or found is None:
        return step == reference
    return found[0] == wanted[0] and _NUMBER.findall(step)[-1] == _NUMBER.findall(reference)[-1]
