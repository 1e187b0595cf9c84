"""An event loop whose time costs nothing to wait for, for scripted models."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any


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
    """Counts seconds that are slept instead of waiting for them. Work for threads is done at once, and takes
    its own seconds."""

    def __init__(self) -> None:
        self._waits = _SkipsWaits()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.skipped

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future, started = self.create_future(), time.monotonic()
        try:
            settle, found = future.set_result, func(*args)
        except Exception as error:
            settle, found = future.set_exception, error
        self.call_later(time.monotonic() - started, lambda: None if future.done() else settle(found))
        return future
