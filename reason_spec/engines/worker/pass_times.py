"""Times of recent passes: T(n) as it is now, not as it was at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from reason_spec.engines.stats import PassTime
from reason_spec.speculation.goodput import BatchTime

_MAX_TOKENS = 96
"""The most new tokens of a recorded pass; larger ones have prompts."""
_DECAY = 0.99
"""Factor of the weight of a pass for each later one of about its size."""
_DECAY_OF_OTHERS = 0.995
"""The same for each later pass of another size."""
_MIN_WEIGHT = 0.01
"""A mean with less weight is dropped."""
_MIN_PASSES = 16
"""Passes before the cost of a token counts as known."""
FULL_DRAFT_INTERVAL = 64
"""One of so many passes has its drafts in full: of short drafts alone the cost of a token cannot be told from
what any draft costs."""
_FIT_INTERVAL = 64
"""Passes between two fits of the batch time."""


@dataclass(frozen=True, slots=True)
class _Sums:
    """Decayed sums over passes of about one size."""

    tokens: float = 0.0
    requests: float = 0.0
    seconds: float = 0.0
    count: float = 0.0

    def decayed(self, factor: float) -> _Sums:
        return _Sums(self.tokens * factor, self.requests * factor, self.seconds * factor, self.count * factor)

    def with_pass(self, tokens: float, requests: float, seconds: float) -> _Sums:
        old = self.decayed(_DECAY)
        return _Sums(old.tokens + tokens, old.requests + requests, old.seconds + seconds, old.count + 1.0)

    def mean(self, num_threads: int) -> PassTime:
        count = self.count
        return PassTime(self.tokens / count, self.seconds / count, count, self.requests / count, num_threads)


class PassTimes:
    """Mean times of recent passes, by powers of two of their sizes and by numbers of threads."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self.num_passes = 0
        self.num_threads = 0
        """Threads that compute the next passes."""
        self._sizes: dict[tuple[int, int], _Sums] = {}
        self._batches: dict[tuple[int, int, int], _Sums] = {}
        self._fitted: tuple[int, int, BatchTime] | None = None
        self._num_batches = 0
        self._generated = 0.0
        self._seconds = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        """Record a pass over ``num_tokens`` new tokens."""
        self.num_passes += 1
        self.busy_seconds += seconds
        if not 0 < num_tokens <= _MAX_TOKENS:
            return
        key = self.num_threads, round(log2(num_tokens))
        sums = self._sizes.pop(key, _Sums()).with_pass(num_tokens, 1.0, seconds)
        others = ((other, old.decayed(_DECAY_OF_OTHERS)) for other, old in self._sizes.items())
        self._sizes = {other: old for other, old in others if old.count > _MIN_WEIGHT}
        self._sizes[key] = sums

    def means(self) -> tuple[PassTime, ...]:
        """Return the mean of each size with the present number of threads, the smallest size first."""
        return tuple(
            sums.mean(threads)
            for (threads, _), sums in sorted(self._sizes.items())
            if threads == self.num_threads
        )

    def add_batch(self, num_tokens: int, num_requests: int, seconds: float) -> None:
        """Record a pass without prompts; ``num_tokens`` includes drafts."""
        key = self.num_threads, round(log2(num_tokens)), round(log2(num_requests))
        self._num_batches += 1
        self._batches[key] = self._batches.get(key, _Sums()).with_pass(num_tokens, num_requests, seconds)

    def batches(self) -> tuple[PassTime, ...]:
        """Return the means of passes without prompts, by threads, tokens and requests."""
        return tuple(sums.mean(threads) for (threads, _, _), sums in sorted(self._batches.items()))

    @property
    def batch_time(self) -> BatchTime:
        """T(n, r) with the present number of threads."""
        fitted = self._fitted
        if fitted is None or fitted[0] != self.num_threads or self._num_batches - fitted[1] >= _FIT_INTERVAL:
            own = [time for time in self.batches() if time.num_threads == self.num_threads]
            fitted = self._fitted = (self.num_threads, self._num_batches, BatchTime(own))
        return fitted[2]

    def add_generated(self, num_tokens: int, seconds: float) -> None:
        """Record the number of tokens that a pass generated."""
        self._generated = self._generated * _DECAY + num_tokens
        self._seconds = self._seconds * _DECAY + seconds

    def tokens_in(self, seconds: float) -> float:
        """Return how many tokens are generated in that time at the present rate; 0 while it is unknown."""
        return 0.0 if self._seconds <= 0 else seconds * self._generated / self._seconds

    @property
    def least_chance(self) -> float:
        """The acceptance chance above which a drafted token saves time; 0 while it is unknown.

        One more token makes a pass longer by T'(n). In that time the engine generates tokens at its present
        rate. A less likely token costs more than it saves (Dinkelbach's rule for the best ratio).
        """
        if self._seconds <= 0 or sum(mean.count for mean in self.means()) < _MIN_PASSES:
            return 0.0
        return self._generated / self._seconds * self._token_seconds()

    def _token_seconds(self) -> float:
        """Return the seconds of one more token in a pass: the slope of the line through the means."""
        means = self.means()
        total = sum(mean.count for mean in means)
        size = sum(mean.num_tokens * mean.count for mean in means) / total
        seconds = sum(mean.seconds * mean.count for mean in means) / total
        variance = sum((mean.num_tokens - size) ** 2 * mean.count for mean in means)
        if variance <= 0:
            return 0.0
        covariance = sum((mean.num_tokens - size) * (mean.seconds - seconds) * mean.count for mean in means)
        return max(0.0, covariance / variance)


def merge_batch_times(old: Sequence[PassTime], new: Sequence[PassTime]) -> tuple[PassTime, ...]:
    """Return all means; new ones replace old ones of about their size."""
    kept = {_size(time): time for time in old} | {_size(time): time for time in new}
    return tuple(kept[size] for size in sorted(kept))


def _size(time: PassTime) -> tuple[int, int, int]:
    return time.num_threads, round(log2(time.num_tokens)), round(log2(time.num_requests))
