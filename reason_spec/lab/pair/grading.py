"""What counts as a right step, and what a wrong one gets wrong.

The operations of a problem form a chain, so the next calculation is known at every step; the
wording may be any.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

Fault: TypeAlias = Literal["source", "operand", "operation", "calculation", "other"]
"""What a wrong step gets wrong first: the number it starts from, the number it applies, the operator
between them, or the result alone; ``other`` is no step of the expected form."""

_ANSWER = re.compile(r"The answer is (\d+)\.$")
_EXPRESSION = re.compile(r"(\d+)([-+*/])(\d+)")
_NUMBER = re.compile(r"\d+")


class _Reading(NamedTuple):
    source: str
    operator: str
    operand: str
    result: str


def parse_answer(solution: str) -> int | None:
    """Return the number of the answer step that ends ``solution``, None where there is none."""
    match = _ANSWER.search(solution)
    return int(match[1]) if match else None


def find_fault(step: str, reference: str) -> Fault | None:
    """Return what is wrong with ``step`` where ``reference`` would be right; None if nothing is.

    A step of several calculations is judged by the first, which names what it works out, and by
    its result, the last number.
    """
    wanted, found = _read(reference), _read(step)
    if wanted is None:
        return None if step == reference else "other"
    if found is None:
        return "other"
    if found.source != wanted.source:
        return "source"
    if found.operand != wanted.operand:
        return "operand"
    if found.operator != wanted.operator:
        return "operation"
    return None if found.result == wanted.result else "calculation"


def is_right_step(step: str, reference: str) -> bool:
    """Tell whether ``step`` makes the calculation of ``reference`` and gets its result."""
    return find_fault(step, reference) is None


def _read(step: str) -> _Reading | None:
    match = _EXPRESSION.search(step)
    if match is None:
        return None
    return _Reading(match[1], match[2], match[3], _NUMBER.findall(step)[-1])
