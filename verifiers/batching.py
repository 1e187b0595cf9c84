"""Batches concurrent calls of a model in one thread, for models that are not engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


class _Waiting(NamedTuple, Generic[T, R]):
    item: T
    future: asyncio.Future[R]


class Batcher(Generic[T, R]):
    """Gathers concurrent calls into batches, which ``work`` processes in one thread.

    The first call waits ``gather_seconds`` for others. Calls that arrive during a batch form the next one.
    Equal waiting items are processed once. Cancelling a caller does not cancel the batch. It may be used from
    one event loop after another, not from two at once.
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
        self._waiting: list[_Waiting[T, R]] = []
        self._pending: dict[T, asyncio.Future[R]] = {}
        self._drain: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def ask(self, item: T) -> R:
        """Return the result of ``work`` for ``item``; an exception is raised for the whole batch."""
        loop = asyncio.get_running_loop()
        future = self._pending.get(item)
        if future is None or future.get_loop() is not loop:
            future = loop.create_future()
            future.add_done_callback(_retrieve)
            self._pending[item] = future
            self._waiting.append(_Waiting(item, future))
        if self._drain is None or self._drain.done() or self._drain.get_loop() is not loop:
            self._drain = loop.create_task(self._serve())
        return await asyncio.shield(future)

    async def run(self, function: Callable[[], V]) -> V:
        """Call ``function`` in the thread, such as one that loads a model."""
        return await asyncio.get_running_loop().run_in_executor(self._executor(), function)

    async def close(self) -> None:
        """Cancel waiting calls and end the thread; the next call starts another."""
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
        while self._waiting:
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            batch = [waiting for waiting in batch if waiting.future.get_loop() is loop]
            items = [waiting.item for waiting in batch]
            try:
                results = await loop.run_in_executor(self._executor(), self._work, items)
            except Exception as error:
                for item, future in batch:
                    self._settle(item, future, error)
                continue
            for (item, future), result in zip(batch, results, strict=True):
                self._settle(item, future, result)

    def _settle(self, item: T, future: asyncio.Future[R], outcome: R | Exception) -> None:
        if self._pending.get(item) is future:
            del self._pending[item]
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

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
