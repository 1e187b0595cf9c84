"""Server-sent events: several answers in one stream, kept alive by pings, stopped with their client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reason_spec.server.base import ApiError, ClientGoneError, StreamEvent
from reason_spec.server.deadline import Deadline, while_connected
from reason_spec.server.failures import api_error
from reason_spec.server.pacing import Backlog, Pace, padded, ticks

PING = b": ping\n\n"
PING_SECONDS = 15.0
"""A stream without an event for so long sends a comment, which keeps the connection alive."""
DONE = b"data: [DONE]\n\n"
# A schema would be that of an event, which OpenAPI 3.1 cannot describe.
STREAM_CONTENT: dict[str, dict[str, object]] = {"text/event-stream": {}}
"""For the OpenAPI document: the content of an endpoint besides JSON."""
_READ_AHEAD = 64
"""Events of a stream that may wait for a slow client."""
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters of a JSON text that some clients take for the end of a line, as escapes."""
_T = TypeVar("_T")


class EventFormat(Protocol):
    """Turns events of the chat into server-sent events."""

    def event(self, index: int, event: StreamEvent) -> Iterable[bytes]:
        """Return the events for answer ``index``."""

    def end(self) -> Iterable[bytes]:
        """Return the events after all answers."""

    def failure(self, error: ApiError) -> Iterable[bytes]:
        """Return the events that end the stream with an error."""


Item: TypeAlias = tuple[int, StreamEvent]
_Queue: TypeAlias = asyncio.Queue[tuple[int, StreamEvent | Exception | None]]
"""Per stream: events, then the failure that ended it, or None."""


async def together(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run work concurrently and return the results in order; the first failure stops the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def merged(
    streams: Sequence[AsyncGenerator[StreamEvent]], deadline: Deadline
) -> AsyncGenerator[Item | None]:
    """Yield events as they come, with the index of their stream; None after `PING_SECONDS` of silence.

    Raises:
        Exception: that of the first stream that failed; the others are closed.
        ApiError: 504, the time for the first token of a stream, or for all, is over.
    """
    queue: _Queue = asyncio.Queue(_READ_AHEAD)
    pumps = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    num_open = len(pumps)
    silent = set(range(len(pumps)))
    clock = asyncio.get_running_loop().time
    try:
        while num_open:
            if clock() >= deadline.limit(started=True):
                # Checked although the next event may be there: some streams never pause.
                raise deadline.late(started=True)
            item = None
            limit = deadline.limit(started=not silent)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(limit, clock() + PING_SECONDS)):
                    item = await queue.get()
            if item is None and clock() >= limit:
                raise deadline.late(started=not silent)
            if item is None:
                yield None
                continue
            index, event = item
            silent.discard(index)
            if isinstance(event, Exception):
                raise event
            if event is None:
                num_open -= 1
            else:
                yield index, event
    finally:
        await deadline.stop(pumps)


async def _pump(index: int, stream: AsyncGenerator[StreamEvent], queue: _Queue) -> None:
    failure = None
    try:
        async with aclosing(stream):
            async for event in stream:
                await queue.put((index, event))
    except Exception as error:
        failure = error
    await queue.put((index, failure))


class EventStream(StreamingResponse):
    """Streams the events of a chat, and holds the place until all work for it has ended."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Item | None,
        rest: AsyncGenerator[Item | None],
        form: EventFormat,
        held: AsyncExitStack,
        request_id: str,
        pace: Pace | None = None,
    ) -> None:
        """Args:
        first, rest: from ``merged``.
        held: closed when the stream ends.
        pace: of packets; None: events are sent at once.
        """
        self._first, self._rest, self._format = first, rest, form
        self._held = held
        self._request_id = request_id
        self._sent = self._chunks() if pace is None else self._paced(pace)
        # Keeps proxies from buffering.
        super().__init__(self._sent, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            with suppress(ClientGoneError):
                async with while_connected(receive), aclosing(self._sent):
                    await self.stream_response(send)

    async def _chunks(self) -> AsyncGenerator[bytes]:
        try:
            for chunk in self._events(self._first):
                yield chunk
            async for item in self._rest:
                for chunk in self._events(item):
                    yield chunk
            for chunk in self._format.end():
                yield chunk
        except Exception as failure:
            for chunk in self._format.failure(api_error(failure, self._request_id)):
                yield chunk

    async def _paced(self, pace: Pace) -> AsyncGenerator[bytes]:
        """Yield a padded packet at each tick, also without new events."""
        backlog = Backlog()
        if self._first is not None:
            backlog.add(*self._first)
        reading = asyncio.create_task(self._read_into(backlog))
        try:
            async with aclosing(ticks(pace.seconds)) as times:
                async for _ in times:
                    has_all = reading.done()
                    items = backlog.take(pace.chars)
                    content = b"".join(chunk for item in items for chunk in self._format.event(*item))
                    if has_all and not backlog:
                        yield padded(content + b"".join(self._last(reading.result())))
                        return
                    yield padded(content)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_into(self, backlog: Backlog) -> Exception | None:
        """Add all events to the backlog; return the failure that ended them, if any."""
        try:
            async for item in self._rest:
                if item is not None:
                    backlog.add(*item)
        except Exception as failure:
            return failure
        return None

    def _last(self, failure: Exception | None) -> Iterable[bytes]:
        return (
            self._format.end()
            if failure is None
            else self._format.failure(api_error(failure, self._request_id))
        )

    def _events(self, item: Item | None) -> Iterable[bytes]:
        return (PING,) if item is None else self._format.event(*item)


def data_event(body: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return one server-sent event; ``name`` is its type, if the protocol has types."""
    head = f"event: {name}\n" if name else ""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return f"{head}data: {text}\n\n".encode()
