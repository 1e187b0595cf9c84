"""Batches concurrent calls of a model in one thread, for models that are not engines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T, R]):
    item: T
    future: asyncio.Future[R]
    num_callers: int = 0


class Batcher(Generic[T, R]):
    """Gathers concurrent calls into batches, which ``work`` processes in one thread.

    The first call waits ``gather_seconds`` for others. Calls that arrive during a batch form the next one.
    Equal waiting items are processed once. Cancelling a caller does not cancel the batch; an item is left out
    if all its callers are cancelled before its batch begins. It may be used from one event loop after
    another, not from two at once.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], Sequence[R]],
        name: str,
        *,
        max_batch: int = 32,
        gather_seconds: float = 0.002,
        initializer: Callable[[], None] | None = None,
    ) -> None:
        self._work = work
        self._name = name
        self._max_batch = max_batch
        self._gather_seconds = gather_seconds
        self._initializer = initializer
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._pending: dict[T, _Waiting[T, R]] = {}
        self._drain: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def ask(self, item: T) -> R:
        """Return the result of ``work`` for ``item``; an exception is raised for the whole batch."""
        loop = asyncio.get_running_loop()
        waiting = self._pending.get(item)
        if waiting is None or waiting.future.get_loop() is not loop:
            waiting = self._pending[item] = _Waiting(item, loop.create_future())
            waiting.future.add_done_callback(_retrieve)
            self._waiting.append(waiting)
        if self._drain is None or self._drain.done() or self._drain.get_loop() is not loop:
            self._drain = loop.create_task(self._serve())
        waiting.num_callers += 1
        try:
            return await asyncio.shield(waiting.future)
        finally:
            waiting.num_callers -= 1

    async def run(self, function: Callable[[], V]) -> V:
        """Call ``function`` in the thread, such as one that loads a model."""
        return await asyncio.get_running_loop().run_in_executor(self._executor(), function)

    async def close(self) -> None:
        """Cancel all calls and end the thread after its batch; the next call starts another."""
        if self._drain is not None and not self._drain.done():
            self._drain.cancel()
        for waiting in self._waiting:
            waiting.future.cancel()
        self._waiting.clear()
        self._pending.clear()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, wait=True, cancel_futures=True)

    async def _serve(self) -> None:
        """Process batches until no call waits."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._gather_seconds)
        while batch := self._next_batch(loop):
            items = [waiting.item for waiting in batch]
            try:
                results = await loop.run_in_executor(self._executor(), self._work, items)
            except asyncio.CancelledError:
                for waiting in batch:
                    waiting.future.cancel()
                raise
            except Exception as error:
                for waiting in batch:
                    self._settle(waiting, error)
                continue
            for waiting, result in zip(batch, results, strict=True):
                self._settle(waiting, result)

    def _next_batch(self, loop: asyncio.AbstractEventLoop) -> list[_Waiting[T, R]]:
        """Take the next items that are still waited for."""
        batch: list[_Waiting[T, R]] = []
        while self._waiting and len(batch) < self._max_batch:
            waiting = self._waiting.popleft()
            if waiting.num_callers and waiting.future.get_loop() is loop:
                batch.append(waiting)
            elif self._pending.get(waiting.item) is waiting:
                del self._pending[waiting.item]
        return batch

    def _settle(self, waiting: _Waiting[T, R], outcome: R | Exception) -> None:
        if self._pending.get(waiting.item) is waiting:
            del self._pending[waiting.item]
        if waiting.future.done():
            return
        if isinstance(outcome, Exception):
            waiting.future.set_exception(outcome)
        else:
            waiting.future.set_result(outcome)

    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name, initializer=self._initializer)
        return self._thread


def use_one_core() -> None:
    """Tell torch to use one core in this thread: OpenMP holds that number for each calling thread."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing bars while it loads a model: the screen is ours."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _retrieve(future: asyncio.Future[R]) -> None:
    """Mark an exception as seen: every caller may have been cancelled before it came."""
    if not future.cancelled():
        future.exception()
