"""Admission of requests: which run now, which wait, which are refused; the queue is fair across tenants."""

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
"""A refusal: of speculation for an answer, or of the request, with the reason."""

_SHED_ABOVE = 0.75
"""Load from which on speculation is shed: answers that run or wait, over ``max_running_requests``."""
_RELIEF = 0.8
"""Speculation comes back below this share of ``_SHED_ABOVE``."""
_WEIGHT = 0.1
"""Weight of the newest request in the moving mean of the seconds that requests take."""
_SHORTEST_RETRY, _LONGEST_RETRY = 1.0, 60.0
"""Seconds. OpenAI's clients obey up to 120."""


class Watcher(Protocol):
    """Counts what admission did."""

    def shed(self, what: Shed) -> None: ...

    def waited(self, seconds: float) -> None: ...


@dataclass(eq=False, slots=True)
class _Waiter:
    size: int
    granted: asyncio.Future[None]


@dataclass(slots=True)
class _Tenant:
    """One tenant: its requests that run or wait, and the rest of its rate."""

    num_requests: int = 0
    waiting: deque[_Waiter] = field(default_factory=deque)
    allowance: float = 0.0
    refilled: float = -math.inf


class Admission:
    """Admits at most ``max_running_requests`` at once, in turn across tenants.

    Within a tenant the queue is first in, first out. If the queue is full and another tenant has more waiting
    requests than the newcomer's, the newest of those is refused instead of the newcomer. All methods are
    called from one event loop.
    """

    def __init__(
        self,
        settings: ServerSettings,
        watcher: Watcher,
        clock: Callable[[], float] = time.monotonic,
        sheds: Callable[[], bool] = lambda: True,
    ) -> None:
        """Args:
        sheds: whether speculation is shed at a high load; False while the load controller decides.
        """
        self._settings = settings
        self._sheds = sheds
        self._watcher = watcher
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._mean_seconds: float | None = None
        self._shedding = False
        self.num_running = 0
        """Answers being written."""
        self.num_waiting = 0
        """Requests in the queue."""
        self.draining = False

    @asynccontextmanager
    async def place(
        self, client: Client, *, size: int = 1, deadline: Deadline | None = None
    ) -> AsyncIterator[bool]:
        """Wait for a place and keep it for the block, and until work that the block left behind has ended.

        The block is given whether to speculate; at a high load the target writes alone.

        Args:
            size: answers that the request asks for; at most ``max_running_requests`` count.
            deadline: a request whose time is over leaves the queue.

        Raises:
            ApiError: 429 if the tenant is over its own limit, 503 if the server is full or stops, 504 if the
                deadline passed in the queue.
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
            yield self._may_speculate(size)
        finally:
            if deadline is None:
                leave()
            else:
                deadline.when_over(leave)

    def drain(self) -> None:
        """Refuse new requests; those that run or wait go on."""
        self.draining = True

    @property
    def load(self) -> float:
        """Answers that run or wait, over ``max_running_requests``."""
        waiting = sum(waiter.size for tenant in self._tenants.values() for waiter in tenant.waiting)
        return (self.num_running + waiting) / self._settings.max_running_requests

    @property
    def retry_after(self) -> float:
        """Seconds until a request that comes now would run, by the time that requests took lately."""
        if self._mean_seconds is None:
            return _SHORTEST_RETRY
        turns = (self.num_waiting + 1) / self._settings.max_running_requests
        return min(max(self._mean_seconds * turns, _SHORTEST_RETRY), _LONGEST_RETRY)

    def _enter(self, name: str) -> _Tenant:
        """Count a request for its tenant, or refuse it."""
        tenant = self._tenants.setdefault(name, _Tenant())
        settings = self._settings
        if self.draining:
            raise self._refuse("draining", 503, "the server is stopping; retry elsewhere or later")
        if settings.max_requests_per_tenant is not None and (
            tenant.num_requests >= settings.max_requests_per_tenant
        ):
            text = f"{tenant.num_requests} of your requests run or wait; wait for one to end"
            raise self._refuse("tenant_limit", 429, text)
        if settings.requests_per_minute is not None:
            self._take_allowance(tenant, settings.requests_per_minute)
        tenant.num_requests += 1
        return tenant

    def _take_allowance(self, tenant: _Tenant, per_minute: int) -> None:
        """Take one request from a token bucket that holds a minute's requests and fills evenly."""
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
        """Return when the request may run."""
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
                # A place was granted while the request gave up.
                self.num_running -= size
            raise

    def _fits(self, size: int) -> bool:
        return self.num_running + size <= self._settings.max_running_requests

    def _make_room(self, newcomer: _Tenant) -> None:
        """Refuse the newest waiting request of the tenant with most of them, or the newcomer's."""
        longest = max(self._tenants.values(), key=lambda tenant: len(tenant.waiting))
        error = self._refuse("queue_full", 503, "the server is full; retry later")
        if len(longest.waiting) <= len(newcomer.waiting) + 1:
            raise error
        last = longest.waiting.pop()
        self.num_waiting -= 1
        if not last.granted.done():
            last.granted.set_exception(error)

    def _grant(self) -> None:
        """Give free places to the requests whose turn it is."""
        while self._turns:
            name = next(iter(self._turns))
            tenant = self._tenants[name]
            while tenant.waiting and tenant.waiting[0].granted.done():
                # Cancelled, and has not run since.
                tenant.waiting.popleft()
                self.num_waiting -= 1
            if not tenant.waiting:
                del self._turns[name]
                continue
            if not self._fits(tenant.waiting[0].size):
                # Smaller requests behind it must not starve it.
                break
            waiter = tenant.waiting.popleft()
            self._turns.move_to_end(name)
            self.num_waiting -= 1
            self.num_running += waiter.size
            waiter.granted.set_result(None)

    def _may_speculate(self, size: int) -> bool:
        """Decide by the load of the other requests."""
        if not self._sheds():
            return True
        others = self.load - size / self._settings.max_running_requests
        self._shedding = others > _SHED_ABOVE * (_RELIEF if self._shedding else 1.0)
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
