"""The accelerator for programs without an event loop, and the thread that runs one for them."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeAlias, TypeVar, Unpack

from reason_spec.accelerator import Accelerator, GenerationRequest, Solution
from reason_spec.accelerator.requests import RequestOptions
from reason_spec.engines.chat_template import Message
from reason_spec.errors import EngineError
from reason_spec.events import Listener
from reason_spec.settings import Settings
from reason_spec.types import Step

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[_T]):
    value: _T


_Put: TypeAlias = Callable[[_Item[_T] | BaseException | None], None]
"""Takes the items of an iteration, then None, or the exception that ended it."""


class LoopThread:
    """An event loop on a daemon thread, for callers in other threads and event loops."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.tasks: set[asyncio.Task[Any]] = set()
        """The unfinished work."""
        self._thread = threading.Thread(target=self.loop.run_forever, name="reason-spec", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until its loop takes work."""
        running = threading.Event()
        self.loop.call_soon_threadsafe(running.set)
        self._thread.start()
        running.wait()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the thread; unfinished work is left as it is."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def cancel_others(self) -> None:
        """Cancel all work but the present, and wait for its end. Runs in this thread."""
        others = self.tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run work in the loop and return its result. An interrupted caller cancels it.

        Raises:
            EngineError: the loop does not run, or the work was cancelled, because the models were closed.
        """
        running = _Work(self, work)
        try:
            return running.over.result()
        except BaseException:
            running.abandon()
            raise

    async def run_async(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Like `run`, from any event loop."""
        running = _Work(self, work)
        over = asyncio.wrap_future(running.over)
        # If this caller is cancelled, the exception of the work is not read, and asyncio would log that.
        over.add_done_callback(_read_exception)
        try:
            return await asyncio.shield(over)
        except BaseException:
            await running.abandon_async()
            raise

    def iterate(self, make: Callable[[], AsyncGenerator[_T]]) -> Generator[_T]:
        """Yield what an asynchronous generator yields in the loop; closing this one closes it."""
        items: queue.SimpleQueue[_Item[_T] | BaseException | None] = queue.SimpleQueue()
        running = _Work(self, _pump(make, items.put))
        try:
            while (item := items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item.value
        finally:
            running.abandon()

    async def iterate_async(self, make: Callable[[], AsyncGenerator[_T]]) -> AsyncGenerator[_T]:
        """Like `iterate`, from any event loop."""
        items: asyncio.Queue[_Item[_T] | BaseException | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def put(item: _Item[_T] | BaseException | None) -> None:
            # The reader's event loop may have been closed meanwhile.
            with suppress(RuntimeError):
                here.call_soon_threadsafe(items.put_nowait, item)

        running = _Work(self, _pump(make, put))
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item.value
        finally:
            await running.abandon_async()


async def _pump(make: Callable[[], AsyncGenerator[_T]], put: _Put[_T]) -> None:
    try:
        async with aclosing(make()) as items:
            async for item in items:
                put(_Item(item))
        put(None)
    except BaseException as error:
        put(closed_error() if isinstance(error, asyncio.CancelledError) else error)
        raise


class _Work(Generic[_T]):
    """A coroutine in the loop of a thread, for a caller elsewhere.

    ``over`` is done when the coroutine has ended. The future of `asyncio.run_coroutine_threadsafe` counts as
    done as soon as it is cancelled, while engines may still work for it.
    """

    def __init__(self, thread: LoopThread, work: Coroutine[Any, Any, _T]) -> None:
        if not thread.loop.is_running():
            work.close()
            raise EngineError(
                "the models do not run: use SyncAccelerator in a 'with' statement; after it make a new one"
            )
        self.over: Future[_T] = Future()
        self._thread = thread
        self._task: asyncio.Task[_T] | None = None
        thread.loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, _T]) -> None:
        self._task = self._thread.loop.create_task(work)
        self._thread.tasks.add(self._task)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[_T]) -> None:
        self._thread.tasks.discard(task)
        if task.cancelled():
            self.over.set_exception(closed_error())
        elif (error := task.exception()) is not None:
            self.over.set_exception(error)
        else:
            self.over.set_result(task.result())

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def abandon(self) -> None:
        """Cancel unfinished work, and wait for its end.

        In the thread of the work it is not waited for: a forgotten iterator may be collected there.
        """
        if not self.over.done():
            self._thread.loop.call_soon_threadsafe(self._cancel)
            if not self._thread.is_current:
                self.over.exception()

    async def abandon_async(self) -> None:
        if not self.over.done():
            self._thread.loop.call_soon_threadsafe(self._cancel)
            over = asyncio.wrap_future(self.over)
            over.add_done_callback(_read_exception)
            await asyncio.wait([over])


def _read_exception(done: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an exception that is not wanted."""
    if not done.cancelled():
        done.exception()


def closed_error() -> EngineError:
    return EngineError("the models were closed; make a new InProcess or SyncAccelerator")


class SyncAccelerator:
    """The accelerator for programs without an event loop: a context manager with plain methods.

    ::

        with SyncAccelerator.from_settings() as accelerator:
            print(accelerator.answer("Ana has 3 apples ...").text)
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._thread = LoopThread()

    @classmethod
    def from_settings(
        cls, settings: Settings | None = None, *, strategies: Sequence[str] = (), **flags: Any
    ) -> Self:
        """Like `Accelerator.from_settings`."""
        return cls(Accelerator.from_settings(settings, strategies=strategies, **flags))

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.accelerator.start())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.accelerator.close())
        finally:
            self._thread.stop()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the event loop of the accelerator and return its result."""
        return self._thread.run(work)

    def answer(
        self,
        prompt: str | Sequence[Message] | GenerationRequest,
        *,
        listener: Listener | None = None,
        **options: Unpack[RequestOptions],
    ) -> Solution:
        """Like `Accelerator.answer`; the listener is called in the thread of the event loop."""
        return self.run(self.accelerator.answer(prompt, listener=listener, **options))

    def solve(
        self,
        prompt: str | Sequence[Message] | GenerationRequest,
        *,
        listener: Listener | None = None,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Step]:
        """Like `Accelerator.solve`; closing the iterator abandons the solution."""
        return self._thread.iterate(lambda: self.accelerator.solve(prompt, listener=listener, **options))
