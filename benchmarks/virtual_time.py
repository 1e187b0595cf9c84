"""Time that costs nothing to wait for: import it before anything that reads the clock."""

from __future__ import annotations

import asyncio
import selectors
import time


class _SkipsWaits(selectors.DefaultSelector):
    """Adds up time-outs instead of waiting for them."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is not None:
            self.skipped += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Counts the seconds that are slept; `time.perf_counter` tells them while the loop runs."""

    def __init__(self) -> None:
        self._waits = _SkipsWaits()
        super().__init__(self._waits)
        _Clock.loop = self

    def time(self) -> float:
        return self._waits.skipped


class _Clock:
    loop: VirtualTimeLoop | None = None

    @classmethod
    def now(cls) -> float:
        return 0.0 if cls.loop is None else cls.loop.time()


# The recorder and the measurement of costs read this clock.
time.perf_counter = _Clock.now
