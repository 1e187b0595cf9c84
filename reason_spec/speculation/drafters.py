"""Drafts without a model: from a hint, or from the text itself (prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[Any]
"""Token ids, of any integer type."""
_FIRST_SCAN: Final = 4096
"""Tokens of the first scan, from the end on; each further scan has twice as many."""


class HintDrafter:
    """Drafts the rest of a hint while the generated tokens agree with it.

    After a mismatch it proposes nothing until the hint is aligned again: the last ``min_match`` generated
    tokens occur in the hint after the point that was reached (the nearest such position counts). This
    recovers from inserted, dropped or replaced tokens. If the rest of the step is reworded, a model has to
    draft it again.
    """

    def __init__(self, min_match: int = 3, generated: Sequence[int] = ()) -> None:
        self._min_match = min_match
        self._hint: tuple[int, ...] = ()
        self._start = 0
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._generated: list[int] = list(generated)
        self._reached = 0
        self._aligned = False

    def offer(self, hint: tuple[int, ...], start: int = 0) -> None:
        """Replace the hint. It follows the first ``start`` generated tokens, which may still be missing."""
        self._hint, self._start = hint, start
        self._places = {}
        for end in range(self._min_match, len(hint)):
            self._places.setdefault(hint[end - self._min_match : end], []).append(end)
        self._reached, self._aligned = 0, True
        rest = self._generated[start:]
        del self._generated[start:]
        self.extend(rest)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take generated tokens."""
        for token in tokens:
            self._generated.append(token)
            if len(self._generated) <= self._start:
                continue
            if self._aligned and self._reached < len(self._hint) and self._hint[self._reached] == token:
                self._reached += 1
            else:
                self._realign()

    def propose(self, budget: int) -> list[int]:
        """Return up to ``budget`` next tokens of the hint; none while it is not aligned."""
        if not self._aligned or len(self._generated) < self._start:
            return []
        return list(self._hint[self._reached : self._reached + budget])

    def _realign(self) -> None:
        # Tokens before the start of the hint are not compared with it.
        num_compared = len(self._generated) - self._start
        tail = tuple(self._generated[-min(num_compared, self._min_match) :])
        ends = self._places.get(tail, ())
        self._aligned = False
        for end in ends:
            if end > self._reached:
                self._reached, self._aligned = end, True
                return


def look_up(text: TokenArray, budget: int, max_match: int = 3, min_match: int = 2) -> list[int]:
    """Return up to ``budget`` tokens that followed the last tokens earlier in the text.

    The longest match of ``max_match`` to ``min_match`` tokens wins, then the latest. A text that repeats
    itself is continued in its period. The search is a vectorised scan from the end. An index would answer
    faster, but building it takes the whole text, and each step is a request of its own.
    """
    start = _latest_match(text, max_match, min_match) if budget > 0 else None
    if start is None:
        return []
    found: list[int] = text[start : start + budget].tolist()
    period = len(text) - start
    if period < budget and np.array_equal(text[-period:], text[-2 * period : -period]):
        found = (found * (budget // period + 1))[:budget]
    return found


def _latest_match(text: TokenArray, max_match: int, min_match: int) -> int | None:
    """Return the position after the latest of the longest matches of the end of the text."""
    longest = min(max_match, len(text) - 1)
    shorter: dict[int, int] = {}
    stop, size = len(text) - 1, _FIRST_SCAN
    while stop > 0:
        start = max(0, stop - size)
        # The ends of matches of the current length; longer matches end at some of these.
        ends = start + np.flatnonzero(text[start:stop] == text[-1])
        for length in range(1, longest + 1):
            ends = ends[ends >= length - 1]
            ends = ends[text[ends - (length - 1)] == text[-length]]
            if length >= min_match and len(ends):
                if length == longest:
                    return int(ends[-1]) + 1
                shorter.setdefault(length, int(ends[-1]) + 1)
        stop, size = start, 2 * size
    return shorter[max(shorter)] if shorter else None
