"""Acceptance rates of drafted tokens, measured on recent drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from reason_spec.suffix.base import Proposal, num_shared

MAX_CACHE_KEYS = 1024
"""The most cache keys (tenant and scope) whose acceptance rates an engine keeps."""
_BINS = 10
_PRIOR_WEIGHT = 4.0
"""Weight of a predicted chance beside measured outcomes, in drafts."""
_DECAY = 0.98
"""Factor of the weight of a draft for each later one."""
_HINT_RATE, _HINT_WEIGHT = 0.9, 16.0
"""Prior acceptance rate of hinted tokens, and its weight in tokens."""
_FIRST_RATE, _LATER_RATE, _LOOKUP_WEIGHT = 0.5, 0.75, 8.0
"""Prior acceptance rates of the first looked-up token and of later ones, and their weight."""
_SHARED_WEIGHT = 16.0
"""Weight of the rate of all requests beside that of one request, in tokens."""


_K = TypeVar("_K")
_V = TypeVar("_V")


def entry_of(kept: dict[_K, _V], cache_key: _K, make: Callable[[], _V], most: int = MAX_CACHE_KEYS) -> _V:
    """Return the entry of a cache key, created if new; beyond ``most`` the least recently used is evicted."""
    value = kept[cache_key] = kept.pop(cache_key) if cache_key in kept else make()
    if len(kept) > most:
        del kept[next(iter(kept))]
    return value


class DraftCalibration:
    """Corrects predicted chances of drafts by their outcomes: the prediction was fitted on other texts.

    The outcomes are kept by tenths of the predicted chance, with linear interpolation between their middles.
    """

    def __init__(self) -> None:
        self._right = [0.0] * _BINS
        self._count = [0.0] * _BINS

    def learn(self, drafted: Proposal, generated: Sequence[int]) -> None:
        """Take a draft and the tokens that followed; tokens with unknown outcomes are left out."""
        outcomes = zip(drafted.chances, _outcomes(drafted, generated), strict=True)
        self.add((chance, right) for chance, right in outcomes if right is not None)

    def add(self, outcomes: Iterable[tuple[float, bool]]) -> None:
        """Take the predicted chances of one draft's tokens, and whether each was right.

        Outcomes within a draft are correlated, so the tokens of one tenth count as one.
        """
        found: dict[int, list[bool]] = {}
        for chance, right in outcomes:
            found.setdefault(min(int(chance * _BINS), _BINS - 1), []).append(right)
        for tenth, rights in found.items():
            self._right[tenth] = self._right[tenth] * _DECAY + sum(rights) / len(rights)
            self._count[tenth] = self._count[tenth] * _DECAY + 1.0

    def corrected(self, chance: float) -> float:
        """Return the acceptance rate of drafts with a predicted chance."""
        position = min(max(chance * _BINS - 0.5, 0.0), _BINS - 1.0)
        low = min(int(position), _BINS - 2)
        share = position - low
        return (1.0 - share) * self._rate(low) + share * self._rate(low + 1)

    def _rate(self, tenth: int) -> float:
        middle = (tenth + 0.5) / _BINS
        return (_PRIOR_WEIGHT * middle + self._right[tenth]) / (_PRIOR_WEIGHT + self._count[tenth])


class NoCalibration(DraftCalibration):
    """Leaves predicted chances as they are."""

    def add(self, outcomes: Iterable[tuple[float, bool]]) -> None:
        return None

    def corrected(self, chance: float) -> float:
        return chance


class HintRate:
    """The acceptance rate of hinted tokens whose predecessors were accepted.

    Args:
        shared: for the rate of one request, that of all requests. It is the prior, and learns too.
    """

    def __init__(self, shared: HintRate | None = None) -> None:
        self._shared = shared
        assumed, weight = (_HINT_RATE, _HINT_WEIGHT) if shared is None else (shared.chance(1), _SHARED_WEIGHT)
        self._right = assumed * weight
        self._count = weight

    def learn(self, hinted: Sequence[int], generated: Sequence[int]) -> None:
        """Take a verified hint and the tokens that followed."""
        if self._shared is not None:
            self._shared.learn(hinted, generated)
        checked = min(len(hinted), len(generated))
        num_right = num_shared(tuple(hinted[:checked]), tuple(generated[:checked]))
        if checked:
            self._right = self._right * _DECAY + num_right
            self._count = self._count * _DECAY + num_right + (num_right < checked)

    def chance(self, num_hinted: int) -> float:
        """Return the chance that ``num_hinted`` tokens are all accepted."""
        return float((self._right / self._count) ** num_hinted)


class LookupRate:
    """The acceptance rates of looked-up tokens: of the first, and of later ones after accepted tokens.

    The first decides whether the text repeats itself at all, so it is accepted less often.
    """

    def __init__(self) -> None:
        self._first = _FIRST_RATE * _LOOKUP_WEIGHT, _LOOKUP_WEIGHT
        self._later = _LATER_RATE * _LOOKUP_WEIGHT, _LOOKUP_WEIGHT

    def learn(self, looked_up: Sequence[int], generated: Sequence[int]) -> None:
        """Take verified tokens of a lookup and the tokens that followed."""
        checked = min(len(looked_up), len(generated))
        if not checked:
            return
        num_right = num_shared(tuple(looked_up[:checked]), tuple(generated[:checked]))
        right, count = self._first
        self._first = right * _DECAY + (num_right > 0), count * _DECAY + 1
        if num_right and checked > 1:
            right, count = self._later
            wrong = num_right < checked
            self._later = right * _DECAY + num_right - 1, count * _DECAY + num_right - 1 + wrong

    def chance(self, num_tokens: int) -> float:
        """Return the chance that ``num_tokens`` (at least 1) are all accepted."""
        (first, count), (later, later_count) = self._first, self._later
        return float(first / count * (later / later_count) ** (num_tokens - 1))


class ModelDraftRates:
    """How far the chain of tokens that a draft model has drafted is accepted, by its own probabilities.

    The rate of the next token, whose probability is not known yet, is kept by the length of the text, in
    powers of two: heads are trained on short texts, and are accepted less in long ones.
    """

    def __init__(self) -> None:
        self._chains = DraftCalibration()
        self._next = HintRate()
        self._by_length: dict[int, HintRate] = {}

    def learn(self, drafted: Proposal, generated: Sequence[int], text_length: int = 0) -> None:
        """Take a verified chain and the tokens that were generated after ``text_length`` tokens."""
        self._chains.learn(drafted, generated)
        self._next_at(text_length).learn(drafted.tokens, generated)

    def chance_of(self, drafted: Proposal) -> float:
        """Return the chance that a whole chain is accepted."""
        return self._chains.corrected(drafted.chances[-1]) if drafted.chances else 1.0

    def chance_of_next(self, drafted: Proposal, text_length: int = 0) -> float:
        """Return the chance that a chain is accepted with one more token."""
        return self.chance_of(drafted) * self._next_at(text_length).chance(1)

    def _next_at(self, text_length: int) -> HintRate:
        octave = text_length.bit_length()
        if octave not in self._by_length:
            self._by_length[octave] = HintRate(self._next)
        return self._by_length[octave]


def _outcomes(drafted: Proposal, generated: Sequence[int]) -> list[bool | None]:
    """Return whether each drafted token was right; None if the text has not reached it."""
    outcomes: list[bool | None] = []
    depths: list[int] = []
    for token, parent in zip(drafted.tokens, drafted.parents, strict=True):
        depth = depths[parent] + 1 if parent >= 0 else 0
        before = outcomes[parent] if parent >= 0 else True
        known = before and depth < len(generated)
        outcomes.append(token == generated[depth] if known else None if before is not False else False)
        depths.append(depth)
    return outcomes
