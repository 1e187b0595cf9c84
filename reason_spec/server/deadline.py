"""Time limits of a request: until its first token, and in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from reason_spec.server.base import ApiError
from reason_spec.settings import ServerSettings

_END_SECONDS = 1.0
"""Seconds that cancelled work has to end before the client is answered."""
_T = TypeVar("_T")


class Deadline:
    """The clock of one request. Make it when the request arrives: waiting for a place counts.

    ::

        deadline = Deadline(settings)
        async with admission.place(client, deadline=deadline) as place:
            answer = await deadline.whole(chat.answer(request))

    Late work is cancelled. A hanging engine does not confirm the cancellation; then the client is answered,
    and `when_over` runs a callback once the work has ended.
    """

    def __init__(self, settings: ServerSettings) -> None:
        now = asyncio.get_running_loop().time()
        self._settings = settings
        self._end = now + settings.request_timeout
        self._first = min(now + settings.first_token_timeout, self._end)
        self._left: set[asyncio.Future[Any]] = set()

    async def whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work in the request's time and return what comes of it.

        Raises:
            ApiError: 504; the work was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            left = self._end - asyncio.get_running_loop().time()
            await asyncio.wait({task}, timeout=max(0.0, left))
            if task.done():
                return task.result()
            raise self.late(begun=True)
        finally:
            await self.stop({task})

    @asynccontextmanager
    async def first(self) -> AsyncIterator[None]:
        """Cancel the block where the time for the first words is over; it holds nothing of an engine.

        Raises:
            ApiError: 504.
        """
        async with _until(self._first, self.late(begun=False)):
            yield

    def limit(self, *, begun: bool) -> float:
        """Return until when, by the event loop's clock, the next words have to come."""
        return self._end if begun else self._first

    async def stop(self, work: Collection[asyncio.Future[Any]]) -> None:
        """Cancel work and wait `_END_SECONDS` for it.

        Work that has not ended by then goes on in the background.
        """
        for task in work:
            if not task.done():
                task.cancel()
                task.add_done_callback(_look_at_end)
                self._left.add(task)
                task.add_done_callback(self._left.discard)
        if self._left:
            await asyncio.wait(set(self._left), timeout=_END_SECONDS)

    def when_over(self, call: Callable[[], None]) -> None:
        """Call when all work has ended, now or later."""
        waiting = {task for task in self._left if not task.done()}

        def ended(task: asyncio.Future[Any]) -> None:
            waiting.discard(task)
            if not waiting:
                call()

        for task in tuple(waiting):
            task.add_done_callback(ended)
        if not waiting:
            call()

    def late(self, *, begun: bool) -> ApiError:
        """Return the error for a request that is late."""
        settings = self._settings
        if not begun and self._first < self._end:
            text = f"no words came within {settings.first_token_timeout:g} seconds"
        else:
            text = f"the request took longer than {settings.request_timeout:g} seconds"
        return ApiError(504, f"{text} and was stopped", kind="server_error", code="deadline_exceeded")


def _look_at_end(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of abandoned work, so that asyncio does not log it; the engine already did."""
    if not task.cancelled():
        task.exception()


@asynccontextmanager
async def _until(end: float, late: ApiError) -> AsyncIterator[None]:
    if asyncio.get_running_loop().time() >= end:
        raise late
    timeout = asyncio.timeout_at(end)
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise late from None
