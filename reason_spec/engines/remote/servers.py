"""The servers of one model: who is asked next, how long after trouble, how many requests at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from reason_spec.errors import ReasonSpecError

_FIRST_DELAY_SECONDS = 0.25
_LONGEST_DELAY_SECONDS = 30.0


class ServerError(ReasonSpecError):
    """A request failed in a way that another try, or another server, may mend.

    ``after`` is how many seconds the server asked to be left alone, None where it did not say.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


def retry_after(header: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for: a number, or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


@dataclass(eq=False, slots=True)
class RemoteServer:
    """One base URL. ``ready_at`` is in seconds of the event loop's clock.

    ``model`` is what it calls the model, None until it has said so.
    """

    url: str
    index: int
    model: str | None = None
    num_live: int = 0
    num_failures: int = 0
    ready_at: float = 0.0


class ServerPool:
    """Chooses the server with the fewest live requests, and lets one in trouble rest.

    Rests double from a quarter of a second to half a minute, less a random part, and last at least as
    long as the server asked for.
    """

    def __init__(self, urls: Sequence[str], seed: int = 0) -> None:
        self.servers = [RemoteServer(url, index) for index, url in enumerate(urls)]
        self._random = random.Random(seed)

    @asynccontextmanager
    async def use(self, affinity: int) -> AsyncIterator[RemoteServer]:
        """Take a server for one request; its failure by `ServerError` makes it rest.

        Among those with equally few requests, equal ``affinity`` leads to the same one: it has the
        beginning of the text in its prefix cache.
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
        """Ask nothing of a server for a while; longer after each failure in a row."""
        delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2**server.num_failures)
        delay *= self._random.uniform(0.5, 1.0)
        server.num_failures += 1
        ready_at = asyncio.get_running_loop().time() + max(delay, at_least or 0.0)
        server.ready_at = max(server.ready_at, ready_at)

    def seconds_until_ready(self) -> float:
        """Return how long the first of them still rests, 0 where one is ready."""
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
    """``priority`` is a callable, because it may change while the request waits."""

    priority: Callable[[], int]
    place: asyncio.Future[None]


class PriorityGate:
    """Lets so many in at once, the most urgent of those that wait first (smaller number, then arrival)."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: list[_Waiting] = []

    @property
    def num_waiting(self) -> int:
        return sum(not waiting.place.done() for waiting in self._waiting)

    @asynccontextmanager
    async def place(self, priority: Callable[[], int] = lambda: 0) -> AsyncIterator[None]:
        """Hold a place; wait for one where all are taken."""
        await self._enter(priority)
        try:
            yield
        finally:
            self._num_free += 1
            self._let_in()

    async def _enter(self, priority: Callable[[], int]) -> None:
        waiting = _Waiting(priority, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._let_in()
        try:
            await waiting.place
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting.place.cancelled():
                # It was let in and cancelled in the same turn of the loop.
                self._num_free += 1
                self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and self._num_free > 0:
            first = min(self._waiting, key=lambda waiting: waiting.priority())
            self._waiting.remove(first)
            if not first.place.done():
                first.place.set_result(None)
                self._num_free -= 1
