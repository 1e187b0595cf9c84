"""How long passes take while an engine works: T(n) as it is now, not as it was at the start."""

from __future__ import annotations

from math import log2

from reason_spec.engines.base import PassTime

_LARGEST = 96
"""Larger passes hold prompts; no draft is as long."""
_MEMORY = 0.99
"""What a pass still counts after each later one of about its size."""


class PassTimes:
    """Means over the passes of late, apart for sizes near each power of two."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self.num_passes = 0
        self._means: dict[int, tuple[float, float, float]] = {}

    def add(self, num_tokens: int, seconds: float) -> None:
        """Take a pass over ``num_tokens`` new tokens."""
        self.num_passes += 1
        self.busy_seconds += seconds
        if not 0 < num_tokens <= _LARGEST:
            return
        near = round(log2(num_tokens))
        tokens, total, count = self._means.get(near, (0.0, 0.0, 0.0))
        self._means[near] = (
            tokens * _MEMORY + num_tokens,
            total * _MEMORY + seconds,
            count * _MEMORY + 1.0,
        )

    def means(self) -> tuple[PassTime, ...]:
        """Return the mean size and time of passes of each size, the smallest first."""
        return tuple(
            PassTime(tokens / count, seconds / count, count)
            for _, (tokens, seconds, count) in sorted(self._means.items())
        )
