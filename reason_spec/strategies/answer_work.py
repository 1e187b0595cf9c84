"""The generations and tasks of one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from reason_spec.engines.base import Engine
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.events import Lane, Purpose, Recorder
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.draft_ahead import DraftAhead
from reason_spec.strategies.step_tokens import step_from_result
from reason_spec.types import Step

ModelLane: TypeAlias = Literal["draft", "target"]
T = TypeVar("T")


class TimelineRow(NamedTuple):
    """A row of the timeline: the index of a step, and which of the branches at that index."""

    step_index: int
    branch: int


@dataclass(eq=False, slots=True)
class TrackedGeneration:
    """One generation and its number in the timeline."""

    lane: ModelLane
    generation: Generation
    number: int
    row: TimelineRow
    kept: bool = False
    """Whether its tokens are part of the answer, or decided about it."""
    num_used_tokens: int | None = None
    """How many of a kept generation's tokens are part of the answer; None: all."""


class AnswerWork:
    """Starts, cancels and counts the generations and tasks of one answer.

    An exception of a task is raised by `wait_for`. ``close`` leaves nothing running.
    """

    def __init__(
        self,
        target: Engine,
        draft: Engine,
        settings: StrategySettings,
        request: SolveRequest,
        recorder: Recorder,
    ) -> None:
        self.target = target
        self.draft = draft
        self.settings = settings
        self.request = request
        self.recorder = recorder
        self.drafters: list[DraftAhead] = []
        """Token drafters to close at the end."""
        self._works: list[TrackedGeneration] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def submit(
        self, lane: ModelLane, row: TimelineRow, request: EngineRequest, purpose: Purpose = "step"
    ) -> TrackedGeneration:
        engine = self.target if lane == "target" else self.draft
        generation = engine.submit(request)
        work = TrackedGeneration(lane, generation, self.recorder.start(lane, *row, purpose), row)
        self._works.append(work)
        return work

    async def finished(self, work: TrackedGeneration) -> Step | None:
        """Wait for a generation and return its step; None where it was cancelled.

        Raises:
            EngineError: the engine failed.
        """
        result = await work.generation.result()
        if result.finish == "cancelled":
            return None
        step = step_from_result(result, work.lane, self.target if work.lane == "target" else self.draft)
        if len(step.tokens) < len(result.tokens):
            work.num_used_tokens = len(step.tokens)
        self.note_written(work.lane, work.row, work.number, step.text, len(step.tokens))
        return step

    def note_written(self, lane: Lane, row: TimelineRow, number: int, text: str, num_tokens: int) -> None:
        self.recorder.emit("written", lane, *row, text=text, num_tokens=num_tokens, work=number)

    def cancel(self, work: TrackedGeneration) -> None:
        """Cancel a generation that is still running, and record it."""
        if not work.generation.done and not work.generation.cancel_requested:
            work.generation.cancel()
            self.recorder.emit("cancelled", work.lane, *work.row, work=work.number)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of this answer."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    async def wait_for(self, future: asyncio.Future[T]) -> T:
        """Wait for a future, or raise the first exception of a task."""
        waiting: set[asyncio.Future[Any]] = {future, self._failure}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        return future.result()

    async def close(self) -> None:
        """Cancel running work, wait until the engines have freed it, and count all work."""
        for task in self._tasks:
            task.cancel()
        for work in self._works:
            work.generation.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closing = (drafter.close() for drafter in self.drafters)
        await asyncio.gather(*closing, return_exceptions=True)
        for work in self._works:
            usage = await work.generation.closed()
            if work.kept and work.num_used_tokens is not None:
                num_unused = usage.num_generated_tokens - work.num_used_tokens
                usage = replace(usage, num_discarded_tokens=usage.num_discarded_tokens + num_unused)
            self.recorder.add_work(work.lane, usage, kept=work.kept)
        if self._failure.done():
            self._failure.exception()

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)
