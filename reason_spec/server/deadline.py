"""Early ends of a request: its time limits, and a client that closes the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

from reason_spec.server.base import ApiError, ClientGoneError
from reason_spec.settings import ServerSettings

_END_SECONDS = 1.0
"""Seconds that cancelled work has to end before the client gets its response."""
_T = TypeVar("_T")


class Deadline:
    """The clock of one request. Make it when the request arrives: time in the queue counts.

    ::

        deadline = Deadline(settings)
        async with admission.place(client, deadline=deadline) as speculate:
            answer = await deadline.whole(chat.answer(request, speculate=speculate))

    Late work is cancelled. A hanging engine does not confirm the cancellation; then the client gets its
    error, and `when_over` runs a callback once the work has ended.
    """

    def __init__(self, settings: ServerSettings) -> None:
        now = asyncio.get_running_loop().time()
        self._settings = settings
        self._end = now + settings.request_timeout
        self._first = min(now + settings.first_token_timeout, self._end)
        self._left: set[asyncio.Future[Any]] = set()

    async def whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work within the time of the request and return its result.

        Raises:
            ApiError: 504; the work was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            left = self._end - asyncio.get_running_loop().time()
            await asyncio.wait({task}, timeout=max(0.0, left))
            if task.done():
                return task.result()
            raise self.late(started=True)
        finally:
            await self.stop({task})

    @asynccontextmanager
    async def first(self) -> AsyncIterator[None]:
        """Cancel the block when the time for the first token is over; it must not hold an engine.

        Raises:
            ApiError: 504.
        """
        if asyncio.get_running_loop().time() >= self._first:
            raise self.late(started=False)
        timeout = asyncio.timeout_at(self._first)
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.late(started=False) from None

    def limit(self, *, started: bool) -> float:
        """Return until when the next token has to come, by the clock of the event loop."""
        return self._end if started else self._first

    async def stop(self, work: Collection[asyncio.Future[Any]]) -> None:
        """Cancel work and wait `_END_SECONDS` for it.

        Work that has not ended by then goes on in the background.
        """
        for task in work:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(self._left.discard)
                # Retrieves the exception, so that asyncio does not log it; the engine already did.
                task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
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

    def late(self, *, started: bool) -> ApiError:
        """Return the error for a request that is late."""
        settings = self._settings
        if not started and self._first < self._end:
            text = f"no token came within {settings.first_token_timeout:g} seconds"
        else:
            text = f"the request took longer than {settings.request_timeout:g} seconds"
        return ApiError(504, f"{text} and was stopped", kind="server_error", code="deadline_exceeded")


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncGenerator[None]:
    """Cancel the block, once, when the client disconnects; the body must have been read before.

    Raises:
        ClientGoneError: the client disconnected; work of the block has ended.
    """
    # Not a cancel scope of anyio: it would cancel the clean-up in the block again and again.
    task = asyncio.current_task()
    assert task is not None
    watching = asyncio.create_task(_disconnect(receive))
    is_gone = is_over = False

    def cancel(watched: asyncio.Task[None]) -> None:
        nonlocal is_gone
        # A client may go as the block ends: then this call is due already and cannot be taken back.
        if not watched.cancelled() and not is_over:
            is_gone = True
            task.cancel()

    watching.add_done_callback(cancel)
    try:
        yield
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        is_over = True
        watching.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
