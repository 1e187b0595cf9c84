"""Which drafted tokens are worth their place in a pass: how often such were right of late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from reason_spec.suffix.base import Proposal, num_shared

MOST_ACCOUNTS = 1024
"""Accounts (a tenant in a scope) of which an engine knows how often drafts were right."""
_BINS = 10
_PRIOR_WEIGHT = 4.0
"""Drafts that a chance counts for as it was given, until others were seen."""
_MEMORY = 0.98
"""What a draft still counts after each later one."""
_HINT_RATE, _HINT_WEIGHT = 0.9, 16.0
"""The assumed chance of a hinted token behind right ones, and the tokens that it counts for."""
_OWN_WEIGHT = 16.0
"""Tokens of one request that the rate of all requests counts for beside its own."""


_K = TypeVar("_K")
_V = TypeVar("_V")


def entry_of(kept: dict[_K, _V], cache_key: _K, make: Callable[[], _V]) -> _V:
    """Return the entry of an cache_key, created if new; the least recently used one is evicted."""
    value = kept[cache_key] = kept.pop(cache_key) if cache_key in kept else make()
    if len(kept) > MOST_ACCOUNTS:
        del kept[next(iter(kept))]
    return value


class Calibration:
    """Chances as they turn out: a model of them that was fitted on other texts may be far off.

    Chances are told apart by tenths; between the middles of two of them lines are straight.
    """

    def __init__(self) -> None:
        self._right = [0.0] * _BINS
        self._count = [0.0] * _BINS

    def learn(self, drafted: Proposal, came: Sequence[int]) -> None:
        """Take a draft and the tokens that came; what nobody knows of it counts neither way.

        The tokens of a draft stand and fall together, so that those of one tenth count as one.
        """
        found: dict[int, list[bool]] = {}
        for chance, right in zip(drafted.chances, _outcomes(drafted, came), strict=True):
            if right is not None:
                found.setdefault(min(int(chance * _BINS), _BINS - 1), []).append(right)
        for tenth, outcomes in found.items():
            self._right[tenth] = self._right[tenth] * _MEMORY + sum(outcomes) / len(outcomes)
            self._count[tenth] = self._count[tenth] * _MEMORY + 1.0

    def corrected(self, chance: float) -> float:
        """Return how often drafts with a chance were right."""
        place = min(max(chance * _BINS - 0.5, 0.0), _BINS - 1.0)
        low = min(int(place), _BINS - 2)
        share = place - low
        return (1.0 - share) * self._rate(low) + share * self._rate(low + 1)

    def _rate(self, tenth: int) -> float:
        middle = (tenth + 0.5) / _BINS
        return (_PRIOR_WEIGHT * middle + self._right[tenth]) / (_PRIOR_WEIGHT + self._count[tenth])


class HintRate:
    """How often the next token of a hint is right where those before it were.

    Args:
        shared: the rate of all requests, where this is of one of them: it learns too, and is the prior.
    """

    def __init__(self, shared: HintRate | None = None) -> None:
        self._shared = shared
        assumed, weight = (_HINT_RATE, _HINT_WEIGHT) if shared is None else (shared.chance(1), _OWN_WEIGHT)
        self._right = assumed * weight
        self._count = weight

    def learn(self, hinted: Sequence[int], came: Sequence[int]) -> None:
        """Take a hint that was checked, and the tokens that came."""
        if self._shared is not None:
            self._shared.learn(hinted, came)
        checked = min(len(hinted), len(came))
        num_right = num_shared(tuple(hinted[:checked]), tuple(came[:checked]))
        if checked:
            self._right = self._right * _MEMORY + num_right
            self._count = self._count * _MEMORY + num_right + (num_right < checked)

    def chance(self, num_hinted: int) -> float:
        """Return the chance that so many hinted tokens are all right."""
        return float((self._right / self._count) ** num_hinted)


def _outcomes(drafted: Proposal, came: Sequence[int]) -> list[bool | None]:
    """Tell of each drafted token whether the text went on through it; None: it did not go on so far."""
    outcomes: list[bool | None] = []
    depths: list[int] = []
    for token, parent in zip(drafted.tokens, drafted.parents, strict=True):
        depth = depths[parent] + 1 if parent >= 0 else 0
        before = outcomes[parent] if parent >= 0 else True
        known = before and depth < len(came)
        outcomes.append(token == came[depth] if known else None if before is not False else False)
        depths.append(depth)
    return outcomes
