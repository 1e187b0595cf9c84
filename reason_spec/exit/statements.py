"""What a small model that reads a thinking along makes of its statements.

A statement is a sentence that concludes a value. The small model reads the question and all statements so
far, and a linear probe on its hidden state gives the log-odds that the value of the last one is the final
answer (probes on hidden states: arXiv 2504.05419, whose states are those of the thinking model itself).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from reason_spec.exit.reading import Value

MOST_STATEMENTS: Final = 80
"""Statements of one thinking that are read along; the later ones count as not rated."""
_MOST_CHARACTERS: Final = 300
NOT_RATED: Final = -13.0
MOST_MARGIN: Final = 12.0
_SPACE: Final = re.compile(r"\s+")
STATE_FEATURES: Final = (
    "state_first state_last state_most state_now state_mean state_after state_lead".split()
)
"""The log-odds at the first, the last and the likeliest statement of the value, and at the last one of all;
their mean; the number of statements behind; and the lead over the likeliest statement of another value."""


class Statement(NamedTuple):
    """The value that a sentence concludes, and the sentence."""

    value: Value
    text: str

    @property
    def line(self) -> str:
        """The sentence as the small model reads it."""
        return _SPACE.sub(" ", self.text).strip()[:_MOST_CHARACTERS] + "\n"


class RatedStatement(NamedTuple):
    """The value of a statement, and the log-odds that it is the final answer, as of that place."""

    value: Value
    margin: float


def state_features(statements: Sequence[RatedStatement], value: Value) -> tuple[float, ...]:
    """Return what the statements so far say of a value, in the order of `STATE_FEATURES`."""
    now = statements[-1].margin if statements else NOT_RATED
    own = [place for place, statement in enumerate(statements) if statement.value == value]
    if not own:
        return (NOT_RATED, NOT_RATED, NOT_RATED, now, NOT_RATED, float(len(statements)), NOT_RATED)
    margins = [statements[place].margin for place in own]
    others = (statement.margin for statement in statements if statement.value != value)
    return (
        margins[0],
        margins[-1],
        max(margins),
        now,
        sum(margins) / len(margins),
        float(len(statements) - 1 - own[-1]),
        max(margins) - max(others, default=NOT_RATED),
    )
