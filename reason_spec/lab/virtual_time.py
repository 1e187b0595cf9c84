"""An event loop whose time costs nothing to wait for, for scripted models."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")


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
    """Counts seconds that are slept instead of waiting for them.

    Work for threads is done at once, and takes as long as it took. It must not wait for this loop.
    """

    def __init__(self) -> None:
        self._waits = _SkipsWaits()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.skipped

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Arguments], _Result], *args: *_Arguments
    ) -> asyncio.Future[_Result]:
        future: asyncio.Future[_Result] = self.create_future()
        started = time.monotonic()

        def settle() -> None:
            if future.done():
                return
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)

        found: _Result | Exception
        try:
            found = func(*args)
        except Exception as error:
            found = error
        self.call_later(time.monotonic() - started, settle)
        return future
