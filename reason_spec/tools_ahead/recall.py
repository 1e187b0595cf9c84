"""Past conversations like this one, and the calls that they made."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reason_spec.tools_ahead.calls import Call
from reason_spec.tools_ahead.history import History

NEAREST: Final = 4
"""Past conversations whose calls are proposed."""
_COMMON: Final = 0.2
"""A value of a larger share of the conversations does not make two of them alike."""


@dataclass(slots=True)
class Past:
    """A past conversation: its distinctive values, and its calls to read-only tools in their order."""

    keys: frozenset[str]
    calls: tuple[Call, ...]
    order: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.order = {call.key: number for number, call in reversed(list(enumerate(self.calls)))}


def past_of(history: History, calls: Sequence[Call]) -> Past:
    """Return a whole conversation as a past one; ``calls`` are its calls to read-only tools."""
    return Past(frozenset(spoken_keys(history)), tuple(calls))


class Recalled(NamedTuple):
    """A call of like conversations.

    ``likeness`` is that of the most alike one, in nats of shared distinctive values; ``share`` how many of
    the nearest made the call, weighted by likeness; ``is_next`` whether it follows the last call that both
    made.
    """

    call: Call
    likeness: float
    share: float
    is_next: bool


class Memory:
    """Finds past conversations by the values that users and calls have named."""

    def __init__(self) -> None:
        self.past: dict[int, Past] = {}
        """By number; numbers rise."""
        self._num_added = 0
        self._with_key: dict[str, list[int]] = defaultdict(list)

    def add(self, past: Past) -> None:
        number = self._num_added
        self._num_added += 1
        for key in past.keys:
            self._with_key[key].append(number)
        self.past[number] = past

    def remove(self, past: Past) -> None:
        """Forget a conversation that was added."""
        number = next(number for number, one in self.past.items() if one is past)
        for key in past.keys:
            self._with_key[key].remove(number)
            if not self._with_key[key]:
                del self._with_key[key]
        del self.past[number]

    def copy(self) -> Memory:
        """Return a memory of the same conversations that grows on its own."""
        more = Memory()
        for one in self.past.values():
            more.add(one)
        return more

    def recall(self, history: History) -> list[Recalled]:
        """Return calls of the nearest past conversations."""
        likeness: Counter[int] = Counter()
        for key in spoken_keys(history):
            holders = self._with_key.get(key, ())
            if holders and len(holders) <= max(2.0, _COMMON * len(self.past)):
                weight = math.log(len(self.past) / len(holders))
                for number in holders:
                    likeness[number] += weight  # type: ignore[assignment, unused-ignore]
        nearest = likeness.most_common(NEAREST)
        # 0 where all past conversations hold what this one shares with them.
        total = sum(weight for _, weight in nearest) or 1.0
        found: dict[str, tuple[Call, float, float, bool]] = {}
        for number, weight in nearest:
            past = self.past[number]
            following = 1 + max((past.order[key] for key in history.calls if key in past.order), default=-1)
            for place, call in enumerate(past.calls):
                _, best, share, is_next = found.get(call.key, (call, 0.0, 0.0, False))
                found[call.key] = (
                    call,
                    max(best, weight),
                    share + weight / total,
                    is_next or place == following,
                )
        return [Recalled(*parts) for parts in found.values()]


def spoken_keys(history: History) -> set[str]:
    """Return the values of users' texts and of calls."""
    return {
        key
        for entry in history.entries
        if entry.source == "user" or entry.source.startswith("argument")
        for key in entry.by_key
    }
