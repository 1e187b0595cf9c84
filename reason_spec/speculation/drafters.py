"""Guesses of the next tokens that cost no model: from a hint, or from the text itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_FIRST_SCAN: Final = 4096
"""Tokens that are looked through first; each further look is over twice as many."""


class Drafter(Protocol):
    """Guesses what comes next in one text. It is told of every certain token, in order."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take tokens that became certain."""

    def propose(self, budget: int) -> list[int]:
        """Return up to ``budget`` tokens that may come next; empty where there is no guess."""


class HintDrafter:
    """Follows tokens that another layer expects from some place of a generation on.

    As long as the generated tokens are a prefix of the hint, the rest of the hint is proposed. Where
    the two part, the hint is silent until it can be aligned again: once the last ``min_match``
    generated tokens occur in the hint behind the point reached so far, it goes on from there (the
    nearest such place). This finds the hint again after an inserted, dropped or replaced run of
    tokens; a rewording of the rest of the step needs a model to draft it anew.
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
        """Take a hint, in the place of an earlier one; it may come when tokens are already written.

        It begins behind the first ``start`` tokens, which need not all be written yet.
        """
        self._hint, self._start = hint, start
        self._places = {}
        for end in range(self._min_match, len(hint)):
            self._places.setdefault(hint[end - self._min_match : end], []).append(end)
        self._reached, self._aligned = 0, True
        behind = self._generated[start:]
        del self._generated[start:]
        self.extend(behind)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._generated.append(token)
            if len(self._generated) <= self._start:
                continue
            if self._aligned and self._reached < len(self._hint) and self._hint[self._reached] == token:
                self._reached += 1
            else:
                self._realign()

    def propose(self, budget: int) -> list[int]:
        if not self._aligned or len(self._generated) < self._start:
            return []
        return list(self._hint[self._reached : self._reached + budget])

    def _realign(self) -> None:
        # What stands before the start of the hint is no part of what is compared with it.
        behind = len(self._generated) - self._start
        tail = tuple(self._generated[-min(behind, self._min_match) :])
        ends = self._places.get(tail, ())
        self._aligned = False
        for end in ends:
            if end > self._reached:
                self._reached, self._aligned = end, True
                return


class PromptLookupDrafter:
    """Proposes what followed the last tokens where they occurred before, in prompt or output.

    See `look_up`; this one keeps the text for it.
    """

    def __init__(self, tokens: Sequence[int] = (), max_match: int = 3, min_match: int = 2) -> None:
        assert 1 <= min_match <= max_match
        self._max_match = max_match
        self._min_match = min_match
        self._length = 0
        self._buffer: IntArray = np.empty(256, dtype=np.int64)
        self.extend(tokens)

    @property
    def length(self) -> int:
        """How many tokens it was told of."""
        return self._length

    def extend(self, tokens: Sequence[int]) -> None:
        needed = self._length + len(tokens)
        if needed > len(self._buffer):
            grown = np.empty(2 * needed, dtype=np.int64)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : needed] = tokens
        self._length = needed

    def propose(self, budget: int) -> list[int]:
        paths = self.propose_several(budget, 1)
        return paths[0] if paths else []

    def propose_several(self, budget: int, count: int) -> list[list[int]]:
        """Return what followed the last ``count`` of the longest matches, the latest first."""
        return look_up(self._buffer[: self._length], budget, count, self._max_match, self._min_match)


def look_up(
    text: IntArray, budget: int, count: int = 1, max_match: int = 3, min_match: int = 2
) -> list[list[int]]:
    """Return what followed the last tokens of a text where they occurred in it before.

    The longest match of ``max_match`` to ``min_match`` tokens wins, among equals the latest. A text that
    repeats itself is continued in its period. Of those that go on with the same token only the latest is
    taken. The search is a vectorised scan from the end on, up to the match that is wanted: an index would be
    quicker to ask but costs the whole text to build, and each step is a request of its own.

    Args:
        count: so many continuations at the most, the latest first.
    """
    if budget < 1:
        return []
    paths: dict[int, list[int]] = {}
    for start in _continuations(text, max_match, min_match):
        first = text.item(start)
        if first not in paths:
            paths[first] = _continued(text, start, budget)
            if len(paths) == count:
                break
    return list(paths.values())


def _continued(text: IntArray, start: int, budget: int) -> list[int]:
    found: list[int] = text[start : start + budget].tolist()
    period = len(text) - start
    if period < budget and np.array_equal(text[-period:], text[-2 * period : -period]):
        found = (found * (budget // period + 1))[:budget]
    return found


def _continuations(text: IntArray, max_match: int, min_match: int) -> Iterator[int]:
    """Yield where the tokens stand that followed the longest matches, the latest first."""
    longest = min(max_match, len(text) - 1)
    shorter: dict[int, list[int]] = {}
    found_longest = False
    stop, size = len(text) - 1, _FIRST_SCAN
    while stop > 0:
        start = max(0, stop - size)
        # Where a match of the length so far ends. Longer ones are looked for among these only.
        ends = start + np.flatnonzero(text[start:stop] == text[-1])
        for length in range(1, longest + 1):
            ends = ends[ends >= length - 1]
            ends = ends[text[ends - (length - 1)] == text[-length]]
            if length < longest and length >= min_match and not found_longest:
                shorter.setdefault(length, []).extend(ends[::-1].tolist())
        if longest >= min_match and len(ends):
            found_longest = True
            yield from (ends[::-1] + 1).tolist()
        stop, size = start, 2 * size
    if not found_longest:
        best = next((shorter[length] for length in sorted(shorter, reverse=True) if shorter[length]), [])
        yield from (end + 1 for end in best)
