"""Who is answered now, who waits, and who is told to come back: a fair queue across tenants."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from reason_spec.server.base import ApiError, Client
from reason_spec.server.deadline import Deadline
from reason_spec.settings import ServerSettings

Shed: TypeAlias = Literal["speculation", "queue_full", "tenant_limit", "rate", "draining"]
"""What was kept from whom: speculation from an answer, or the answer itself and why."""

_RELIEF = 0.8
"""Speculation comes back below this share of the load at which it was shed."""
_WEIGHT = 0.1
"""Of the newest request in the mean of how long requests take."""
_SHORTEST_RETRY, _LONGEST_RETRY = 1.0, 60.0
"""Seconds. OpenAI's clients obey up to 120."""


class Watcher(Protocol):
    """Is told what admission did."""

    def shed(self, what: Shed) -> None: ...

    def waited(self, seconds: float) -> None: ...


class _Nobody:
    def shed(self, what: Shed) -> None: ...

    def waited(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A request's right to run. ``speculate`` False: the target is to write alone, the load is high."""

    speculate: bool
    waited: float


@dataclass(eq=False, slots=True)
class _Waiter:
    size: int
    granted: asyncio.Future[None]


@dataclass(slots=True)
class _Tenant:
    """One tenant's share: requests that run or wait, and what is left of its rate."""

    num_requests: int = 0
    waiting: deque[_Waiter] = field(default_factory=deque)
    allowance: float = 0.0
    refilled: float = -math.inf


class Admission:
    """Hands out places: no more at once than ``max_running_requests``, in turn across tenants.

    Within a tenant the first to come is the first to run. Where the queue is full, the tenant with most
    waiting requests gives way: its newest is refused in the place of another tenant's. All methods are called
    from one event loop.
    """

    def __init__(
        self,
        settings: ServerSettings,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
        is_gated: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args:
        is_gated: whether something that knows what passes cost decides about speculation: none is shed then.
        """
        self._settings = settings
        self._is_gated = is_gated
        self._watcher = watcher or _Nobody()
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._mean_seconds: float | None = None
        self._shedding = False
        self.num_running = 0
        """Answers that are written now."""
        self.num_waiting = 0
        """Requests that wait for a place."""
        self.draining = False

    @asynccontextmanager
    async def place(
        self, client: Client, *, size: int = 1, deadline: Deadline | None = None
    ) -> AsyncIterator[Place]:
        """Wait for a place and keep it for the block, and until work that was left behind there has ended.

        Args:
            size: answers that the request asks for; more than there are places count as all of them.
            deadline: a request whose time is over leaves the queue.

        Raises:
            ApiError: 429 where the tenant is over its own limit, 503 where the server is full or stops, 504
                where the deadline passed in the queue.
        """
        size = min(size, self._settings.max_running_requests)
        arrived = self._clock()
        tenant = self._enter(client.tenant)
        started: float | None = None

        def leave() -> None:
            if started is not None:
                self.num_running -= size
                self._measure(self._clock() - started)
            tenant.num_requests -= 1
            self._grant()

        try:
            await self._wait(client.tenant, tenant, size, deadline)
            started = self._clock()
            self._watcher.waited(started - arrived)
            yield Place(self._may_speculate(size), started - arrived)
        finally:
            if deadline is None:
                leave()
            else:
                deadline.when_over(leave)

    def drain(self) -> None:
        """Refuse all that comes from now on; what runs or waits goes on."""
        self.draining = True

    @property
    def load(self) -> float:
        """Answers that run or wait, over the places there are."""
        waiting = sum(waiter.size for tenant in self._tenants.values() for waiter in tenant.waiting)
        return (self.num_running + waiting) / self._settings.max_running_requests

    @property
    def retry_after(self) -> float:
        """Seconds until a request that comes now would have its turn, by how long requests take lately."""
        if self._mean_seconds is None:
            return _SHORTEST_RETRY
        turns = (self.num_waiting + 1) / self._settings.max_running_requests
        return min(max(self._mean_seconds * turns, _SHORTEST_RETRY), _LONGEST_RETRY)

    def _enter(self, name: str) -> _Tenant:
        """Count a request for its tenant, or refuse it."""
        tenant = self._tenants.setdefault(name, _Tenant())
        settings = self._settings
        if self.draining:
            raise self._refuse("draining", 503, "the server is stopping; ask again elsewhere or later")
        if settings.max_requests_per_tenant is not None and (
            tenant.num_requests >= settings.max_requests_per_tenant
        ):
            text = f"{tenant.num_requests} of your requests run or wait already; wait for one to end"
            raise self._refuse("tenant_limit", 429, text)
        if settings.requests_per_minute is not None:
            self._take_allowance(tenant, settings.requests_per_minute)
        tenant.num_requests += 1
        return tenant

    def _take_allowance(self, tenant: _Tenant, per_minute: int) -> None:
        """A bucket that holds a minute's requests and fills evenly."""
        now = self._clock()
        passed = now - tenant.refilled
        tenant.allowance = min(tenant.allowance + passed * per_minute / 60, per_minute)
        tenant.refilled = now
        if tenant.allowance < 1:
            wait = (1 - tenant.allowance) * 60 / per_minute
            text = f"more than {per_minute} requests a minute"
            raise self._refuse("rate", 429, text, retry_after=wait)
        tenant.allowance -= 1

    async def _wait(self, name: str, tenant: _Tenant, size: int, deadline: Deadline | None) -> None:
        """Return when the request runs."""
        if not self.num_waiting and self._fits(size):
            self.num_running += size
            return
        if self.num_waiting >= self._settings.max_queued_requests:
            self._make_room(tenant)
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        tenant.waiting.append(waiter)
        self._turns.setdefault(name)
        self.num_waiting += 1
        try:
            if deadline is None:
                await waiter.granted
            else:
                async with deadline.first():
                    await waiter.granted
        except BaseException:
            if waiter in tenant.waiting:
                tenant.waiting.remove(waiter)
                self.num_waiting -= 1
            elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
                # It was given a place in the moment in which it gave up.
                self.num_running -= size
            raise

    def _fits(self, size: int) -> bool:
        return self.num_running + size <= self._settings.max_running_requests

    def _make_room(self, newcomer: _Tenant) -> None:
        """Refuse the newest waiting request of the tenant with most of them, or the newcomer's."""
        longest = max(self._tenants.values(), key=lambda tenant: len(tenant.waiting))
        error = self._refuse("queue_full", 503, "the server is full; ask again later")
        if len(longest.waiting) <= len(newcomer.waiting) + 1:
            raise error
        last = longest.waiting.pop()
        self.num_waiting -= 1
        if not last.granted.done():
            last.granted.set_exception(error)

    def _grant(self) -> None:
        """Give free places to those whose turn it is."""
        while self._turns:
            name = next(iter(self._turns))
            tenant = self._tenants[name]
            while tenant.waiting and tenant.waiting[0].granted.done():
                # Cancelled, and not yet awake to leave by itself.
                tenant.waiting.popleft()
                self.num_waiting -= 1
            if not tenant.waiting:
                del self._turns[name]
                continue
            if not self._fits(tenant.waiting[0].size):
                # Smaller ones behind it may not overtake it for ever.
                break
            waiter = tenant.waiting.popleft()
            self._turns.move_to_end(name)
            self.num_waiting -= 1
            self.num_running += waiter.size
            waiter.granted.set_result(None)

    def _may_speculate(self, size: int) -> bool:
        """Tell whether a request that runs from now on may, by the load that others make."""
        above = self._settings.shed_speculation_above
        if above is None or self._is_gated():
            return True
        others = self.load - size / self._settings.max_running_requests
        self._shedding = others > above * (_RELIEF if self._shedding else 1.0)
        if self._shedding:
            self._watcher.shed("speculation")
        return not self._shedding

    def _measure(self, seconds: float) -> None:
        before = self._mean_seconds
        self._mean_seconds = seconds if before is None else before + _WEIGHT * (seconds - before)

    def _refuse(
        self, what: Shed, status: Literal[429, 503], text: str, *, retry_after: float | None = None
    ) -> ApiError:
        self._watcher.shed(what)
        wait = math.ceil(self.retry_after if retry_after is None else retry_after)
        kind, code = (
            ("rate_limit_error", "rate_limit_exceeded")
            if status == 429
            else ("server_error", "server_overloaded")
        )
        message = f"{text} (in about {wait} s)"
        return ApiError(status, message, kind=kind, code=code, retry_after=wait)
