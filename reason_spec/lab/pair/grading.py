"""Decide whether a step is right, and what a wrong one gets wrong.

The operations of a problem form a chain, so the next calculation is known at every step; the wording is free.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Fault: TypeAlias = Literal["source", "operand", "operation", "calculation", "other"]
"""The first mistake of a wrong step: the number it starts from, the number it applies, the operator, or the
result alone; ``other`` is a step of another form."""

_ANSWER = re.compile(r"The answer is (\d+)\.$")
_EXPRESSION = re.compile(r"(\d+)([-+*/])(\d+)")
_NUMBER = re.compile(r"\d+")


def parse_answer(solution: str) -> int | None:
    """Return the number of the answer step that ends ``solution``, None where there is none."""
    match = _ANSWER.search(solution)
    return int(match[1]) if match else None


def find_fault(step: str, reference: str) -> Fault | None:
    """Return the first mistake of ``step`` where ``reference`` is right; None if it has none.

    A step of several calculations is graded by the first one and by its result, the last number.
    """
    wanted, found = _EXPRESSION.search(reference), _EXPRESSION.search(step)
    if wanted is None:
        return None if step == reference else "other"
    if found is None:
        return "other"
    if found[1] != wanted[1]:
        return "source"
    if found[3] != wanted[3]:
        return "operand"
    if found[2] != wanted[2]:
        return "operation"
    return None if _NUMBER.findall(step)[-1] == _NUMBER.findall(reference)[-1] else "calculation"


def is_right_step(step: str, reference: str) -> bool:
    """Return whether ``step`` makes the calculation of ``reference`` and gets its result."""
    return find_fault(step, reference) is None
