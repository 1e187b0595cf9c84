"""An event loop whose time costs nothing to wait for, for scripted models."""

from __future__ import annotations

import asyncio
import selectors


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
    """Counts seconds that are slept instead of waiting for them."""

    def __init__(self) -> None:
        self._waits = _SkipsWaits()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.skipped
