"""How long a request may take: until its first words, and in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from reason_spec.server.base import ApiError
from reason_spec.settings_server import ServerSettings

_T = TypeVar("_T")


class Deadline:
    """The clock of one request. Make it when the request arrives: waiting for a place counts.

    ::

        deadline = Deadline(settings)
        async with admission.place(client, deadline=deadline) as place:
            async with deadline.whole():
                answer = await chat.answer(request)

    or, for a stream::

            async for event in deadline.each(chat.stream(request)):
                ...
    """

    def __init__(self, settings: ServerSettings) -> None:
        now = asyncio.get_running_loop().time()
        self._settings = settings
        self._end = now + settings.request_timeout
        self._first = min(now + settings.first_token_timeout, self._end)

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """Cancel the block when the request's time is over.

        Raises:
            ApiError: 504; the block's work has ended by then.
        """
        async with _until(self._end, self._late(first=False)):
            yield

    @asynccontextmanager
    async def first(self) -> AsyncIterator[None]:
        """Like ``whole``, for what comes before the first words."""
        async with _until(self._first, self._late(first=True)):
            yield

    async def each(self, events: AsyncGenerator[_T]) -> AsyncGenerator[_T]:
        """Yield what a generator yields, the first in time and all in time; it is closed at the end.

        Raises:
            ApiError: 504; the generator is closed by then, and so its work cancelled.
        """
        limit, late = self._first, self._late(first=True)
        async with aclosing(events):
            while True:
                # Only while the generator works: a consumer that is interrupted could not tell why.
                try:
                    async with _until(limit, late):
                        event = await anext(events)
                except StopAsyncIteration:
                    return
                yield event
                limit, late = self._end, self._late(first=False)

    def _late(self, *, first: bool) -> ApiError:
        settings = self._settings
        if first and self._first < self._end:
            text = f"no words came within {settings.first_token_timeout:g} seconds"
        else:
            text = f"the request took longer than {settings.request_timeout:g} seconds"
        return ApiError(504, f"{text} and was stopped", kind="server_error", code="deadline_exceeded")


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
