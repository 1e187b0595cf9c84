"""Deadlines: work that is late is stopped, and its client is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from reason_spec.server.base import ApiError
from reason_spec.server.deadline import Deadline
from reason_spec.settings_server import ServerSettings


def deadline(*, first: float = 100.0, whole: float = 100.0) -> Deadline:
    return Deadline(ServerSettings(first_token_timeout=first, request_timeout=whole))


class Work:
    """Says words, then nothing for ever."""

    def __init__(self, *words: str, ends: bool = False) -> None:
        self._words, self._ends = words, ends
        self.closed = False

    async def __call__(self) -> AsyncGenerator[str]:
        try:
            for word in self._words:
                yield word
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def take(events: AsyncGenerator[str], words: list[str]) -> None:
    async with aclosing(events):
        async for word in events:
            words.append(word)  # noqa: PERF401 - what came before an error is looked at


async def said(limits: Deadline, work: Work) -> list[str]:
    words: list[str] = []
    with pytest.raises(ApiError) as caught:
        await take(limits.each(work()), words)
    assert caught.value.status == 504
    assert work.closed
    return words


async def test_what_comes_in_time_passes_and_ends_as_it_does() -> None:
    work = Work("a", "b", ends=True)
    assert [word async for word in deadline().each(work())] == ["a", "b"]
    assert work.closed


async def test_a_stream_that_says_nothing_is_stopped_at_the_first_deadline() -> None:
    assert await said(deadline(first=0.01), Work()) == []


async def test_a_stream_that_began_has_all_of_its_time() -> None:
    assert await said(deadline(first=0.01, whole=0.03), Work("a")) == ["a"]


async def test_a_stream_that_never_pauses_is_stopped_too() -> None:
    async def endless() -> AsyncGenerator[str]:
        while True:
            yield "a"

    with pytest.raises(ApiError):
        await take(deadline(whole=0.01).each(endless()), [])


async def test_a_slow_reader_is_not_interrupted_where_it_reads() -> None:
    limits = deadline(first=0.01, whole=100)
    async with aclosing(limits.each(Work("a", "b", ends=True)())) as events:
        words = []
        async for word in events:
            words.append(word)
            await asyncio.sleep(0.02)
    assert words == ["a", "b"]


async def test_work_that_is_late_is_cancelled_and_its_own_timeouts_stay_its_own() -> None:
    work = Work()
    with pytest.raises(ApiError) as caught:
        async with deadline(whole=0.01).whole():
            await take(work(), [])
    assert work.closed
    assert caught.value.code == "deadline_exceeded"
    with pytest.raises(TimeoutError):
        async with deadline().whole():
            raise TimeoutError
