"""How long passes take while an engine works: T(n) as it is now, not as it was at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from reason_spec.engines.stats import PassTime
from reason_spec.speculation.goodput import BatchTime

_LARGEST = 96
"""Larger passes hold prompts; no draft is as long."""
_MEMORY = 0.99
"""What a pass still counts after each later one of about its size."""
_FADING = 0.995
"""What the mean of a size counts after each pass of another: what it took may have changed since."""
_FORGOTTEN = 0.01
"""A mean that counts for less is dropped."""
_NUM_KNOWN = 16
"""Passes after which it is known what a token costs."""
_FIT_EVERY = 64
"""Passes after which the time of a batch is fitted anew."""


@dataclass(frozen=True, slots=True)
class _Mean:
    """Sums over passes of about one size, and how many they are of, all of them faded."""

    tokens: float
    seconds: float
    count: float

    def faded(self, by: float) -> _Mean:
        return _Mean(self.tokens * by, self.seconds * by, self.count * by)


class PassTimes:
    """Means over the passes of late, apart for sizes near each power of two, and for numbers of threads."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self.num_passes = 0
        self.num_threads = 0
        """How many compute the passes from now on."""
        self._means: dict[tuple[int, int], _Mean] = {}
        self._batches: dict[tuple[int, int, int], tuple[float, float, float, float]] = {}
        self._fitted: tuple[int, int, BatchTime] | None = None
        self._num_batches = 0
        self._written = 0.0
        self._seconds = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        """Take a pass over ``num_tokens`` new tokens."""
        self.num_passes += 1
        self.busy_seconds += seconds
        if not 0 < num_tokens <= _LARGEST:
            return
        near = self.num_threads, round(log2(num_tokens))
        before = self._means.pop(near, _Mean(0.0, 0.0, 0.0)).faded(_MEMORY)
        others = ((key, mean.faded(_FADING)) for key, mean in self._means.items())
        self._means = {key: mean for key, mean in others if mean.count > _FORGOTTEN}
        self._means[near] = _Mean(before.tokens + num_tokens, before.seconds + seconds, before.count + 1.0)

    def means(self) -> tuple[PassTime, ...]:
        """Return mean size and time of passes of each size, on as many threads as now, the smallest first."""
        return tuple(
            PassTime(mean.tokens / mean.count, mean.seconds / mean.count, mean.count)
            for (threads, _), mean in sorted(self._means.items())
            if threads == self.num_threads
        )

    def add_batch(self, num_tokens: int, num_requests: int, seconds: float) -> None:
        """Take a pass in which requests did nothing but write, with so many new tokens, drafts included."""
        key = self.num_threads, round(log2(num_tokens)), round(log2(num_requests))
        tokens, requests, total, count = self._batches.get(key, (0.0, 0.0, 0.0, 0.0))
        self._num_batches += 1
        self._batches[key] = (
            tokens * _MEMORY + num_tokens,
            requests * _MEMORY + num_requests,
            total * _MEMORY + seconds,
            count * _MEMORY + 1.0,
        )

    def batches(self) -> tuple[PassTime, ...]:
        """Return the means of what ``add_batch`` was told, by threads, tokens and requests."""
        return tuple(
            PassTime(tokens / count, seconds / count, count, requests / count, threads)
            for (threads, _, _), (tokens, requests, seconds, count) in sorted(self._batches.items())
        )

    @property
    def batch_time(self) -> BatchTime:
        """T(n, r) with as many threads as compute now."""
        fitted = self._fitted
        if fitted is None or fitted[0] != self.num_threads or self._num_batches - fitted[1] >= _FIT_EVERY:
            own = [time for time in self.batches() if time.num_threads == self.num_threads]
            fitted = self._fitted = (self.num_threads, self._num_batches, BatchTime(own))
        return fitted[2]

    def add_written(self, num_written: int, seconds: float) -> None:
        """Take a pass in which requests wrote so many tokens."""
        self._written = self._written * _MEMORY + num_written
        self._seconds = self._seconds * _MEMORY + seconds

    @property
    def least_chance(self) -> float:
        """How likely a drafted token must be to be worth its time; 0 where that is not known yet.

        A token more makes a pass longer by T'(n). In that time the engine writes, as it goes, so many
        tokens: one that is less likely than that costs more than it brings (Dinkelbach's rule for the
        best ratio of tokens to seconds).
        """
        if self._seconds <= 0 or sum(mean.count for mean in self.means()) < _NUM_KNOWN:
            return 0.0
        return self._written / self._seconds * self._token_seconds()

    def _token_seconds(self) -> float:
        """Return the seconds of one more token in a pass: the slope of the line through the means."""
        means = self.means()
        total = sum(mean.count for mean in means)
        size = sum(mean.num_tokens * mean.count for mean in means) / total
        seconds = sum(mean.seconds * mean.count for mean in means) / total
        spread = sum((mean.num_tokens - size) ** 2 * mean.count for mean in means)
        if spread <= 0:
            return 0.0
        joint = sum((mean.num_tokens - size) * (mean.seconds - seconds) * mean.count for mean in means)
        return max(0.0, joint / spread)


def renewed(old: Sequence[PassTime], new: Sequence[PassTime]) -> tuple[PassTime, ...]:
    """Return the means of batches with the new ones in the places of old ones of about their size."""
    kept = {_size(time): time for time in old} | {_size(time): time for time in new}
    return tuple(kept[size] for size in sorted(kept))


def _size(time: PassTime) -> tuple[int, int, int]:
    return time.num_threads, round(log2(time.num_tokens)), round(log2(time.num_requests))
