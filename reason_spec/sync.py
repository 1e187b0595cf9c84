"""The accelerator for programs without an event loop, and the thread that has the loop for them."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.engines.base import Message
from reason_spec.settings import Settings
from reason_spec.types import Step

_T = TypeVar("_T")


class LoopThread:
    """An event loop on a thread of its own, which ends with the program at the latest."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="reason-spec", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what comes of work in the loop; not to be called from there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        """End the thread; what is left in the loop goes no further."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class SyncAccelerator:
    """The accelerator for programs without an event loop: a context manager with plain methods.

    ::

        with SyncAccelerator.from_settings() as accelerator:
            print(accelerator.answer("Ana has 3 apples ...").text)
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._runner = LoopThread()

    @classmethod
    def from_settings(
        cls, settings: Settings | None = None, *, strategies: Sequence[str] = (), **flags: Any
    ) -> Self:
        """Like `Accelerator.from_settings`."""
        return cls(Accelerator.from_settings(settings, strategies=strategies, **flags))

    def __enter__(self) -> Self:
        self._runner.start()
        try:
            self._runner.run(self.accelerator.start())
        except BaseException:
            self._runner.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._runner.run(self.accelerator.close())
        finally:
            self._runner.stop()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the event loop of the accelerator and return its result."""
        return self._runner.run(work)

    def answer(self, prompt: str | Sequence[Message], **options: Any) -> Solution:
        """Like `Accelerator.answer`."""
        return self._runner.run(self.accelerator.answer(prompt, **options))

    def solve(self, prompt: str | Sequence[Message], **options: Any) -> Iterator[Step]:
        """Like `Accelerator.solve`; closing the iterator abandons the solution."""
        steps: queue.SimpleQueue[Step | BaseException | None] = queue.SimpleQueue()
        ended = threading.Event()

        async def pump() -> None:
            try:
                async with aclosing(self.accelerator.solve(prompt, **options)) as solving:
                    async for step in solving:
                        steps.put(step)
                steps.put(None)
            except BaseException as error:
                steps.put(error)
                raise
            finally:
                ended.set()

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._runner.loop)
        try:
            while (item := steps.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            pumping.cancel()
            ended.wait()
