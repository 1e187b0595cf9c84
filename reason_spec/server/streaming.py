"""Server-sent events: several answers at once in one stream, kept alive, and stopped with their client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reason_spec.chat.base import ChatEvent
from reason_spec.server.base import ApiError
from reason_spec.server.deadline import Deadline
from reason_spec.server.disconnect import ClientGoneError, while_connected
from reason_spec.server.failures import api_error
from reason_spec.server.pacing import Backlog, Pace, padded, ticks

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
STREAM_CONTENT = {"text/event-stream": {"schema": {"type": "string"}}}
"""For the OpenAPI document: what an endpoint sends beside JSON."""
_READ_AHEAD = 64
"""Events that may wait for a slow client, over all answers of a stream."""
_T = TypeVar("_T")


class Told(Protocol):
    """Makes the events of a stream of what the chat says."""

    def event(self, index: int, event: ChatEvent) -> Iterable[bytes]:
        """Return what answer ``index`` adds."""

    def end(self) -> Iterable[bytes]:
        """Return what comes when all answers are complete."""

    def failure(self, error: ApiError) -> Iterable[bytes]:
        """Return what comes in the place of the rest; nothing comes behind it."""


Item: TypeAlias = tuple[int, ChatEvent]


@dataclass(frozen=True, slots=True)
class _Ended:
    index: int
    failure: Exception | None


async def together(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Do work at once and return what comes of it, in order; the first failure stops the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def merged(
    streams: Sequence[AsyncGenerator[ChatEvent]], ping_seconds: float, deadline: Deadline
) -> AsyncGenerator[Item | None]:
    """Yield what streams say as it comes, with the stream's index; None after a silence of ``ping_seconds``.

    Raises:
        Exception: what the first stream that failed raised; the others are closed.
        ApiError: 504, the time for the first words of a stream, or for all, is over.
    """
    queue: asyncio.Queue[Item | _Ended] = asyncio.Queue(_READ_AHEAD)
    pumps = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    num_open = len(pumps)
    silent = set(range(len(pumps)))
    clock = asyncio.get_running_loop().time
    try:
        while num_open:
            if clock() >= deadline.limit(begun=True):
                # Also where the next words are there already: some streams never pause.
                raise deadline.late(begun=True)
            item: Item | _Ended | None = None
            limit = deadline.limit(begun=not silent)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(limit, clock() + ping_seconds)):
                    item = await queue.get()
            if item is None and clock() >= limit:
                raise deadline.late(begun=not silent)
            if not isinstance(item, _Ended):
                if item is not None:
                    silent.discard(item[0])
                yield item
                continue
            num_open -= 1
            silent.discard(item.index)
            if item.failure is not None:
                raise item.failure
    finally:
        await deadline.stop(pumps)


async def _pump(index: int, stream: AsyncGenerator[ChatEvent], queue: asyncio.Queue[Item | _Ended]) -> None:
    failure = None
    try:
        async with aclosing(stream):
            async for event in stream:
                await queue.put((index, event))
    except Exception as error:
        failure = error
    await queue.put(_Ended(index, failure))


class EventStream(Response):
    """Streams what a chat says, and holds its place until all work for it has ended."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Item | None,
        rest: AsyncGenerator[Item | None],
        tell: Told,
        held: AsyncExitStack,
        request_id: str,
        pace: Pace | None = None,
    ) -> None:
        """Args:
        first, rest: what ``merged`` yields.
        held: is closed when the stream ends, in whatever way.
        pace: how evenly the client is sent what the chat says; None: at once.
        """
        self._first, self._rest, self._tell = first, rest, tell
        self._held = held
        self._request_id = request_id
        self._pace = pace
        self.status_code = 200
        self.background = None
        # Proxies would gather what should be seen at once.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            with suppress(ClientGoneError):
                sent = self._chunks() if self._pace is None else self._paced(self._pace)
                async with while_connected(receive), aclosing(sent) as chunks:
                    start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                    await send(start)
                    async for chunk in chunks:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self) -> AsyncGenerator[bytes]:
        try:
            for chunk in self._told(self._first):
                yield chunk
            async for item in self._rest:
                for chunk in self._told(item):
                    yield chunk
            for chunk in self._tell.end():
                yield chunk
        except Exception as failure:
            for chunk in self._tell.failure(api_error(failure, self._request_id)):
                yield chunk

    async def _paced(self, pace: Pace) -> AsyncGenerator[bytes]:
        """Yield what is new at each tick, nothing included, in packets whose sizes say little."""
        backlog = Backlog()
        if self._first is not None:
            backlog.add(*self._first)
        reading = asyncio.create_task(self._read_into(backlog))
        try:
            async with aclosing(ticks(pace.seconds)) as times:
                async for _ in times:
                    has_all = reading.done()
                    told = [self._tell.event(*item) for item in backlog.take(pace.chars)]
                    content = b"".join(chunk for chunks in told for chunk in chunks)
                    if has_all and not backlog:
                        yield padded(content + b"".join(self._last(reading.result())))
                        return
                    yield padded(content)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_into(self, backlog: Backlog) -> Exception | None:
        """Gather all that the chat says; return what ended it before its time."""
        try:
            async for item in self._rest:
                if item is not None:
                    backlog.add(*item)
        except Exception as failure:
            return failure
        return None

    def _last(self, failure: Exception | None) -> Iterable[bytes]:
        return (
            self._tell.end() if failure is None else self._tell.failure(api_error(failure, self._request_id))
        )

    def _told(self, item: Item | None) -> Iterable[bytes]:
        return (PING,) if item is None else self._tell.event(*item)


def data_event(body: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return one server-sent event; ``name`` is its type, where the protocol has types."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
