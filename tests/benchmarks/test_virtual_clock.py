"""Work in virtual time costs no time, and leaves the process its own clock."""

from __future__ import annotations

import asyncio
import time

import pytest
from virtual_clock import run_in_virtual_time

from reason_spec.events import Recorder


async def waits() -> float:
    started = time.perf_counter()
    recorder = Recorder()
    await asyncio.sleep(3600)
    assert recorder.started == started
    return time.perf_counter() - started


def test_virtual_hours_pass_at_once_and_the_clock_of_the_process_returns() -> None:
    clock = time.perf_counter
    assert run_in_virtual_time(waits()) == pytest.approx(3600)
    assert time.perf_counter is clock


def test_work_that_fails_returns_the_clock_too() -> None:
    async def fails() -> None:
        raise RuntimeError("of the work")

    clock = time.perf_counter
    with pytest.raises(RuntimeError, match="of the work"):
        run_in_virtual_time(fails())
    assert time.perf_counter is clock


def test_work_for_threads_takes_its_own_time_and_no_more() -> None:
    def work(fails: bool) -> str:
        time.sleep(0.05)
        if fails:
            raise RuntimeError("of the thread")
        return "done"

    async def works() -> float:
        started = time.perf_counter()
        writing = asyncio.create_task(asyncio.sleep(60))
        assert await asyncio.to_thread(work, False) == "done"
        passed = time.perf_counter() - started
        assert not writing.done()
        with pytest.raises(RuntimeError, match="of the thread"):
            await asyncio.to_thread(work, True)
        await writing
        return passed

    assert 0.05 <= run_in_virtual_time(works()) < 30
