"""Deadlines: work that is late is stopped, and its client gets an error, whether the work ends or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import pytest

from reason_spec.chat.base import ChatEvent, TextDelta
from reason_spec.server.admission import Admission
from reason_spec.server.base import ApiError, Client, ClientGoneError
from reason_spec.server.deadline import Deadline, while_connected
from reason_spec.server.metrics import Metrics
from reason_spec.server.streaming import merged
from reason_spec.settings import ServerSettings


def deadline(*, first: float = 100.0, whole: float = 100.0) -> Deadline:
    return Deadline(ServerSettings(first_token_timeout=first, request_timeout=whole))


class Work:
    """Says words, then nothing for ever. With ``lets_go`` it ends only once that is set, cancelled or not."""

    def __init__(self, *words: str, ends: bool = False, lets_go: asyncio.Event | None = None) -> None:
        self._words, self._ends, self._lets_go = words, ends, lets_go
        self.closed = False

    async def events(self) -> AsyncGenerator[ChatEvent]:
        try:
            for word in self._words:
                yield TextDelta("content", word)
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            if self._lets_go is not None:
                await self._lets_go.wait()
            self.closed = True

    async def answer(self) -> None:
        async for _ in self.events():
            pass


async def take(limits: Deadline, words: list[str], *work: Work, pause: float = 0.0) -> None:
    async with aclosing(merged([one.events() for one in work], limits)) as items:
        async for item in items:
            assert item is not None
            assert isinstance(item[1], TextDelta)
            words.append(item[1].text)
            await asyncio.sleep(pause)


async def said(limits: Deadline, work: Work) -> list[str]:
    words: list[str] = []
    with pytest.raises(ApiError) as caught:
        await take(limits, words, work)
    assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
    assert work.closed
    return words


async def test_what_comes_in_time_passes_and_ends_as_it_does() -> None:
    work, words = Work("a", "b", ends=True), list[str]()
    await take(deadline(), words, work)
    assert words == ["a", "b"]
    assert work.closed


async def test_a_stream_that_says_nothing_is_stopped_at_the_first_deadline() -> None:
    assert await said(deadline(first=0.01), Work()) == []


async def test_a_stream_that_began_has_all_of_its_time() -> None:
    assert await said(deadline(first=0.5, whole=1), Work("a")) == ["a"]


async def test_of_several_answers_each_has_to_begin_in_time() -> None:
    words: list[str] = []
    with pytest.raises(ApiError, match=r"no token came within 0\.5 seconds"):
        await take(deadline(first=0.5), words, Work("a"), Work())
    assert words == ["a"]


async def test_a_stream_that_never_pauses_is_stopped_too() -> None:
    async def endless() -> AsyncGenerator[ChatEvent]:
        while True:
            yield TextDelta("content", "a")

    async def read() -> None:
        async with aclosing(merged([endless()], deadline(whole=0.05))) as items:
            async for _ in items:
                pass

    with pytest.raises(ApiError, match="took longer"):
        await read()


async def test_a_slow_reader_is_not_interrupted_where_it_reads() -> None:
    words: list[str] = []
    await take(deadline(first=0.3, whole=100), words, Work("a", "b", ends=True), pause=0.4)
    assert words == ["a", "b"]


async def test_work_that_is_late_is_cancelled_and_its_own_timeouts_stay_its_own() -> None:
    async def times_out() -> None:
        raise TimeoutError

    work = Work()
    with pytest.raises(ApiError) as caught:
        await deadline(whole=0.01).whole(work.answer())
    assert work.closed
    assert caught.value.code == "deadline_exceeded"
    with pytest.raises(TimeoutError):
        await deadline().whole(times_out())


@pytest.mark.parametrize("streams", [True, False])
async def test_work_that_does_not_end_keeps_its_place_and_delays_nobody(streams: bool) -> None:
    lets_go = asyncio.Event()
    work = Work("a", lets_go=lets_go)
    admission = Admission(ServerSettings(max_running_requests=1), Metrics("small"))
    limits = deadline(whole=0.5)
    with pytest.raises(ApiError, match="took longer"):
        async with asyncio.timeout(10), admission.place(Client("ana"), deadline=limits):
            await (take(limits, [], work) if streams else limits.whole(work.answer()))
    assert (admission.num_running, work.closed) == (1, False)
    lets_go.set()
    async with asyncio.timeout(10), admission.place(Client("ana"), deadline=deadline()):
        assert work.closed
    assert admission.num_running == 0


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_client_that_goes_as_a_block_ends_cancels_the_block_or_nothing(num_turns: int) -> None:
    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.Event()
    with suppress(ClientGoneError):
        async with while_connected(receive):
            await asyncio.sleep(0)
            gone.set()
            for _ in range(num_turns):
                await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert task.cancelling() == 0
