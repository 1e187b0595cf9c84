"""Without an event loop: the same steps, the same errors, and nothing left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import EngineError
from reason_spec.sync import LoopThread, SyncAccelerator
from tests.strategies.scripts import StoryScript
from tests.test_accelerator import BrokenEngine, make


def test_without_an_event_loop_steps_and_answers_are_the_same() -> None:
    with SyncAccelerator(make()) as accelerator:
        steps = list(accelerator.solve("question"))
        answer = accelerator.answer("question")
    assert "".join(step.text for step in steps) == answer.text


def test_abandoning_a_synchronous_solution_cancels_it() -> None:
    with SyncAccelerator(make()) as accelerator:
        for _ in accelerator.solve("question"):
            break
        target = accelerator.accelerator.target
        assert accelerator.run(target.stats()).num_running == 0


def test_an_error_reaches_the_synchronous_caller() -> None:
    failing = ScriptedEngine("target", StoryScript(1), fail_after=3)
    with (
        SyncAccelerator(make(target=failing)) as accelerator,
        pytest.raises(EngineError, match="scripted failure"),
    ):
        list(accelerator.solve("question"))


def test_the_thread_ends_with_its_accelerator_also_where_it_cannot_start() -> None:
    before = threading.active_count()
    with SyncAccelerator(make()) as accelerator:
        accelerator.answer("question")
    broken = SyncAccelerator(make(target=BrokenEngine("target", StoryScript(1))))
    with pytest.raises(EngineError, match="no such model"), broken:
        pass
    assert accelerator._thread.loop.is_closed()
    assert broken._thread.loop.is_closed()
    assert threading.active_count() <= before + 1, "but for what runs blocking calls"


def test_without_its_with_statement_an_accelerator_says_what_is_missing() -> None:
    accelerator = SyncAccelerator(make())
    with pytest.raises(EngineError, match="use SyncAccelerator in a 'with' statement"):
        accelerator.answer("question")
    with accelerator:
        accelerator.answer("question")
    with pytest.raises(EngineError, match="after it make a new one"):
        next(accelerator.solve("question"))


def test_an_iterator_that_is_closed_in_the_thread_of_its_work_does_not_block_it() -> None:
    ended = threading.Event()

    async def endless() -> AsyncGenerator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.set()

    thread = LoopThread()
    thread.start()
    items = thread.iterate(endless)
    assert next(items) == 1
    thread.loop.call_soon_threadsafe(items.close)
    assert ended.wait(20)
    thread.stop()
