"""Admission: never too many at once, in turn across tenants, and nothing is left behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.server.admission import Admission, Shed
from reason_spec.server.base import ApiError, Client
from reason_spec.server.deadline import Deadline
from reason_spec.settings import ServerSettings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Counts:
    what: list[Shed] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def shed(self, what: Shed) -> None:
        self.what.append(what)

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)


class Caller:
    """One request: it waits for its place, and leaves it when it is asked to."""

    def __init__(self, admission: Admission, tenant: str, order: list[Caller], size: int = 1) -> None:
        self.tenant, self.size = tenant, size
        self.speculate: bool | None = None
        self._leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(admission, order))

    async def _run(self, admission: Admission, order: list[Caller]) -> None:
        async with admission.place(Client(self.tenant), size=self.size) as self.speculate:
            order.append(self)
            await self._leave.wait()

    @property
    def runs(self) -> bool:
        return self.speculate is not None and not self.task.done()

    async def end(self) -> None:
        self._leave.set()
        await settle()

    async def cancel(self) -> None:
        self.task.cancel()
        await settle()

    @property
    def error(self) -> ApiError:
        error = self.task.exception()
        assert isinstance(error, ApiError)
        return error


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def admission_of(
    clock: Clock | None = None, counts: Counts | None = None, sheds: bool = False, **values: Any
) -> Admission:
    return Admission(ServerSettings(**values), counts or Counts(), clock or Clock(), sheds=lambda: sheds)


def is_empty(admission: Admission) -> bool:
    tenants = admission._tenants.values()
    return (
        admission.num_running == admission.num_waiting == 0
        and admission.load == 0
        and all(tenant.num_requests == 0 and not tenant.waiting for tenant in tenants)
    )


ACTIONS = st.one_of(
    st.tuples(st.just("come"), st.sampled_from("abc"), st.integers(1, 5)),
    st.tuples(st.just("end"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    # The place is given and the wait is given up in the same moment.
    st.tuples(st.just("end and cancel"), st.integers(0, 30), st.integers(0, 30)),
)


@settings(max_examples=60)
@given(st.lists(ACTIONS, max_size=40), st.integers(1, 4), st.integers(0, 6))
def test_places_are_never_overdrawn_tenants_keep_their_order_and_nothing_leaks(
    actions: list[tuple[str, str | int, int]], num_places: int, num_queued: int
) -> None:
    played = asyncio.run(play(actions, num_places, num_queued))
    assert played.most_running <= num_places
    assert played.most_waiting <= num_queued
    for tenant in "abc":
        own = [caller for caller in played.callers if caller.tenant == tenant]
        began = [caller for caller in played.began if caller.tenant == tenant]
        assert began == [caller for caller in own if caller in began]
    assert all(caller.task.done() for caller in played.callers)
    assert is_empty(played.admission)


@dataclass
class Played:
    """What became of some callers: those that came, and those that had a place, both in order."""

    admission: Admission
    callers: list[Caller] = field(default_factory=list)
    began: list[Caller] = field(default_factory=list)
    most_running: int = 0
    most_waiting: int = 0


async def play(actions: list[tuple[str, str | int, int]], num_places: int, num_queued: int) -> Played:
    """Let callers come and go; the counts of the admission are compared with theirs at every turn."""
    admission = admission_of(max_running_requests=num_places, max_queued_requests=num_queued)
    played = Played(admission)
    callers, began = played.callers, played.began

    def pick(number: str | int, among: list[Caller]) -> Caller | None:
        return among[int(number) % len(among)] if among else None

    for action, first, second in actions:
        running = [caller for caller in callers if caller.runs]
        open_ones = [caller for caller in callers if not caller.task.done()]
        if action == "come":
            callers.append(Caller(admission, str(first), began, second))
        elif action == "end and cancel":
            if (ending := pick(first, running)) is not None:
                ending._leave.set()
            await asyncio.sleep(0)
            if (other := pick(second, open_ones)) is not None:
                other.task.cancel()
        elif (caller := pick(first, running if action == "end" else open_ones)) is not None:
            await (caller.end() if action == "end" else caller.cancel())
        await settle()
        sizes = [min(caller.size, num_places) for caller in callers if caller.runs]
        played.most_running = max(played.most_running, sum(sizes))
        played.most_waiting = max(played.most_waiting, admission.num_waiting)
        assert sum(sizes) == admission.num_running
        assert admission.num_waiting == sum(
            not caller.task.done() and caller.speculate is None for caller in callers
        )
    # Whoever still waits is reached when those before leave.
    while waiting := [caller for caller in callers if not caller.task.done()]:
        running = [caller for caller in waiting if caller.runs]
        assert running
        for caller in running:
            await caller.end()
    for caller in callers:
        with suppress(ApiError, asyncio.CancelledError):
            await caller.task
    return played


async def test_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    admission = admission_of(max_running_requests=1)
    order: list[Caller] = []
    callers = [Caller(admission, tenant, order) for tenant in "aaaabbc"]
    await settle()
    for _ in callers:
        await order[-1].end()
    assert "".join(caller.tenant for caller in order) == "aabcaba"
    assert is_empty(admission)


async def test_a_large_request_is_not_overtaken_for_ever() -> None:
    admission = admission_of(max_running_requests=3)
    order: list[Caller] = []
    first = [Caller(admission, "a", order) for _ in range(3)]
    await settle()
    large = Caller(admission, "b", order, size=8)
    small = Caller(admission, "a", order)
    await settle()
    for caller in first:
        assert not large.runs
        await caller.end()
    assert (large.runs, small.runs) == (True, False)
    await large.end()
    assert small.runs
    await small.end()
    assert is_empty(admission)


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    clock, counts = Clock(), Counts()
    admission = admission_of(clock, counts, max_running_requests=2, max_queued_requests=2)
    order: list[Caller] = []
    early = Caller(admission, "a", order)
    await settle()
    clock.now = 8.0
    await early.end()
    callers = [Caller(admission, "a", order) for _ in range(5)]
    await settle()
    refused = callers[4].error
    assert (refused.status, refused.code, counts.what) == (503, "server_overloaded", ["queue_full"])
    # Requests take 8 seconds, two run at once, and two are before it.
    assert refused.retry_after == 12
    for caller in callers[:4]:
        await caller.end()


async def test_where_the_queue_is_full_who_fills_it_gives_way() -> None:
    admission = admission_of(max_running_requests=1, max_queued_requests=3)
    order: list[Caller] = []
    greedy = [Caller(admission, "greedy", order) for _ in range(4)]
    await settle()
    other = Caller(admission, "other", order)
    await settle()
    assert greedy[3].error.status == 503
    assert not other.task.done()
    await greedy[0].end()
    await greedy[1].end()
    assert other.runs
    for caller in (other, greedy[2]):
        await caller.end()
    assert is_empty(admission)


async def test_a_tenant_over_its_limit_is_refused_alone() -> None:
    counts = Counts()
    admission = admission_of(counts=counts, max_requests_per_tenant=2, max_running_requests=1)
    order: list[Caller] = []
    callers = [Caller(admission, tenant, order) for tenant in "aaab"]
    await settle()
    assert (callers[2].error.status, callers[2].error.code) == (429, "rate_limit_exceeded")
    assert not callers[3].task.done()
    assert counts.what == ["tenant_limit"]
    for caller in (callers[0], callers[1], callers[3]):
        await caller.end()


async def test_a_rate_fills_evenly_and_says_when_the_next_may_come() -> None:
    clock = Clock()
    admission = admission_of(clock, requests_per_minute=6)

    async def ask(tenant: str = "a") -> None:
        async with admission.place(Client(tenant)):
            pass

    for _ in range(6):
        await ask()
    with pytest.raises(ApiError) as caught:
        await ask()
    assert (caught.value.status, caught.value.retry_after) == (429, 10)
    await ask("b")
    clock.now = 10.5
    await ask()
    with pytest.raises(ApiError):
        await ask()
    assert is_empty(admission)


async def test_speculation_is_shed_before_requests_are_and_comes_back_later() -> None:
    counts = Counts()
    admission = admission_of(counts=counts, sheds=True, max_running_requests=10, max_queued_requests=0)
    order: list[Caller] = []

    async def come(number: int) -> list[Caller]:
        callers = [Caller(admission, "a", order) for _ in range(number)]
        await settle()
        return callers

    callers = await come(10)
    assert [caller.speculate for caller in callers] == [True] * 8 + [False] * 2
    (refused,) = await come(1)
    assert refused.error.status == 503
    assert counts.what == ["speculation"] * 2 + ["queue_full"]
    for caller in callers[:3]:
        await caller.end()
    # Seven run: fewer than where it was shed, and not few enough.
    (eighth,) = await come(1)
    assert eighth.speculate is False
    for caller in (eighth, callers[3]):
        await caller.end()
    (seventh,) = await come(1)
    assert seventh.speculate is True
    for caller in (seventh, *callers[4:]):
        await caller.end()


async def test_what_is_under_way_goes_on_while_the_server_drains() -> None:
    admission = admission_of(max_running_requests=1)
    order: list[Caller] = []
    running, waiting = Caller(admission, "a", order), Caller(admission, "a", order)
    await settle()
    admission.drain()
    late = Caller(admission, "a", order)
    await settle()
    assert (late.error.status, late.error.retry_after) == (503, 1)
    await running.end()
    assert waiting.runs
    await waiting.end()
    assert is_empty(admission)


async def test_a_request_whose_time_is_over_leaves_the_queue() -> None:
    admission = admission_of(max_running_requests=1)
    order: list[Caller] = []
    running = Caller(admission, "a", order)
    await settle()
    deadline = Deadline(ServerSettings(first_token_timeout=0.01))
    with pytest.raises(ApiError) as caught:
        async with admission.place(Client("b"), deadline=deadline):
            raise AssertionError("it had no place")
    assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
    assert admission.num_waiting == 0
    await running.end()
    assert is_empty(admission)
