"""The servers of one model: which is next, how long it rests after a failure, how many requests run."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count

from reason_spec.engines.request_queue import RequestQueue
from reason_spec.errors import EngineError, ReasonSpecError

_FIRST_DELAY_SECONDS = 0.25
_LONGEST_DELAY_SECONDS = 30.0
_MOST_DOUBLED = 7
_LONGEST_RETRY_AFTER = 600.0


class ServerError(ReasonSpecError):
    """A request failed, but a retry, or another server, may succeed.

    ``after`` is the server's Retry-After in seconds; None without one.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class RefusalError(EngineError):
    """A server refused a request for good, with ``status`` and its own ``message``."""

    def __init__(self, reason: str, status: int, message: str) -> None:
        super().__init__(reason)
        self.status = status
        self.message = message


def retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date; at most ten minutes."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        pass
    else:
        return min(max(0.0, seconds), _LONGEST_RETRY_AFTER) if math.isfinite(seconds) else None
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(max(0.0, (date - datetime.now(UTC)).total_seconds()), _LONGEST_RETRY_AFTER)


@dataclass(eq=False, slots=True)
class RemoteServer:
    """One base URL. ``ready_at`` is in seconds of the event loop's clock.

    ``model`` is its name of the model, None until it has answered.
    """

    url: str
    index: int
    model: str | None = None
    num_live: int = 0
    num_failures: int = 0
    ready_at: float = 0.0


class ServerPool:
    """Chooses the server with the fewest live requests, and lets failing ones rest.

    Rests double from 0.25 to 30 seconds, less a random part of up to half, and last at least as long as
    Retry-After says.
    """

    def __init__(self, urls: Sequence[str], seed: int = 0) -> None:
        self.servers = [RemoteServer(url, index) for index, url in enumerate(urls)]
        self._random = random.Random(seed)

    def model_at(self, server: RemoteServer) -> str:
        """Return a server's name of the model; a server that was down at the start has that of the others."""
        return server.model or next(other.model for other in self.servers if other.model)

    @asynccontextmanager
    async def use(self, affinity: int) -> AsyncIterator[RemoteServer]:
        """Take a server for one request; a `ServerError` makes it rest.

        Among servers with equally few requests, equal ``affinity`` gives the same one, whose prefix cache has
        the beginning of the text.
        """
        server = await self._choose(affinity)
        server.num_live += 1
        try:
            yield server
            server.num_failures = 0
        except ServerError as trouble:
            self.rest(server, trouble.after)
            raise
        finally:
            server.num_live -= 1

    def rest(self, server: RemoteServer, at_least: float | None = None) -> None:
        """Send nothing to a server for a while, longer after each failure in a row."""
        now = asyncio.get_running_loop().time()
        delay = _FIRST_DELAY_SECONDS * 2 ** min(server.num_failures, _MOST_DOUBLED)
        delay = min(_LONGEST_DELAY_SECONDS, delay) * self._random.uniform(0.5, 1.0)
        if server.ready_at <= now:
            # Requests that ran at once fail at once: that is one failure.
            server.num_failures += 1
        ready_at = now + max(delay, at_least or 0.0)
        server.ready_at = max(server.ready_at, ready_at)

    def seconds_until_ready(self) -> float:
        """Return the seconds until a server is ready."""
        now = asyncio.get_running_loop().time()
        return max(0.0, min(server.ready_at for server in self.servers) - now)

    async def _choose(self, affinity: int) -> RemoteServer:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            ready = [server for server in self.servers if server.ready_at <= now]
            if ready:
                return min(ready, key=lambda server: (server.num_live, self._distance(server, affinity)))
            await asyncio.sleep(min(server.ready_at for server in self.servers) - now)

    def _distance(self, server: RemoteServer, affinity: int) -> int:
        return (server.index - affinity) % len(self.servers)


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request without a place; its priority may change while it waits."""

    priority: Callable[[], int]
    arrival: int
    place: asyncio.Future[None]

    @property
    def order(self) -> tuple[int, int]:
        return self.priority(), self.arrival


class PrioritySemaphore:
    """Admits a number of requests at once, the most urgent of the waiting ones first."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._arrivals = count()
        self._waiting: RequestQueue[_Waiting] = RequestQueue()

    @property
    def num_waiting(self) -> int:
        return sum(not waiting.place.done() for waiting in self._waiting)

    @asynccontextmanager
    async def place(self, priority: Callable[[], int] = lambda: 0) -> AsyncIterator[None]:
        """Hold a place; wait for one if all are taken."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: Callable[[], int]) -> None:
        place = asyncio.get_running_loop().create_future()
        waiting = _Waiting(priority, next(self._arrivals), place)
        self._waiting.add(waiting)
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not place.cancelled():
                # It was admitted and cancelled in the same turn of the event loop.
                self._release()
            raise

    def _release(self) -> None:
        self._num_free += 1
        self._admit()

    def _admit(self) -> None:
        for waiting in self._waiting:
            if self._num_free <= 0:
                return
            self._waiting.remove(waiting)
            if not waiting.place.done():
                waiting.place.set_result(None)
                self._num_free -= 1
