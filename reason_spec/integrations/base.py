"""What all wrappers share: the models on a thread of their own, and requests from what frameworks pass."""

from __future__ import annotations

import asyncio
import atexit
import json
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import asdict, fields
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import (
    ChatAnswer,
    ChatEnd,
    ChatEvent,
    ChatRequest,
    ChatSampling,
    Policy,
    SpeculationReport,
)
from reason_spec.chat.service import Chat
from reason_spec.errors import EngineError, MissingDependencyError, RequestError, did_you_mean
from reason_spec.settings import Settings
from reason_spec.sync import LoopThread
from reason_spec.types import Constraint

_T = TypeVar("_T")
_SAMPLING = frozenset(field.name for field in fields(ChatSampling))
_POLICY = frozenset(field.name for field in fields(Policy))
_REQUEST = frozenset({"chat_arguments", "continue_final", "parallel_tool_calls", "tenant"})
OPTIONS = _SAMPLING | _POLICY | _REQUEST
"""What wrappers take as arguments and for single calls: fields of ChatSampling, Policy and ChatRequest."""


class InProcess:
    """The accelerator for frameworks: its models start with the first call, on a thread of their own.

    Several wrappers may share one, from any thread and any event loop. Close it, or use it as a context
    manager; what is still open when the program ends is closed then.

    ::

        with InProcess(strategy__depth=4) as models:
            agent = CodeAgent(tools=[], model=ReasonSpecModel(models))
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        accelerator: Accelerator | None = None,
        strategies: Sequence[str] = (),
        on_end: Callable[[ChatEnd], None] | None = None,
        **flags: Any,
    ) -> None:
        """Args:
        settings, strategies, flags: as in `Accelerator.from_settings`.
        accelerator: one that is not started yet, in the place of settings.
        on_end: called with the end of every answer, in the models' thread: what speculation did, for
            frameworks that have no place to keep it.

        Raises:
            SettingsError: a name is unknown or a value is out of range.
        """
        if accelerator is not None and (settings is not None or flags):
            raise TypeError("give either an accelerator or settings, not both")
        if accelerator is None:
            accelerator = Accelerator.from_settings(settings, strategies=strategies, **flags)
        self.accelerator = accelerator
        self._chat = Chat(accelerator)
        self._on_end = on_end
        self._starting = threading.Lock()
        self._runner: LoopThread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def model_name(self) -> str:
        """The name of the target, as frameworks show it."""
        return self.accelerator.settings.target.model

    def start(self) -> None:
        """Load the models; nothing happens where they are loaded. Calls do it by themselves.

        Raises:
            EngineError: one of them could not start, or they were closed.
        """
        self._running_loop()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._closed:
                raise _closed()
            if self._runner is None:
                runner = LoopThread()
                runner.start()
                try:
                    _Work(runner.loop, self.accelerator.start(), self._tasks).wait()
                except BaseException:
                    runner.stop()
                    raise
                self._runner = runner
                atexit.register(self.close)
            return self._runner.loop

    def close(self) -> None:
        """End what is under way and free the models; may be called twice."""
        with self._starting:
            self._closed = True
            runner, self._runner = self._runner, None
        if runner is None:
            return
        atexit.unregister(self.close)
        try:
            runner.run(self._end())
        finally:
            runner.stop()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.accelerator.close()

    def _work(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> _Work[_T]:
        return _Work(loop, work, self._tasks)

    def chat(self, request: ChatRequest) -> ChatAnswer:
        """Return a whole answer.

        Raises:
            RequestError: the request asks for what cannot be done.
            EngineError: a model failed.
        """
        return self._work(self._running_loop(), self._answer(request)).wait()

    async def achat(self, request: ChatRequest) -> ChatAnswer:
        """Like `chat`, from any event loop; cancelling it frees the models."""
        loop = await asyncio.to_thread(self._running_loop)
        return await self._work(loop, self._answer(request)).wait_async()

    def stream(self, request: ChatRequest) -> Generator[ChatEvent]:
        """Yield the events of an answer; closing the generator abandons it. Raises what `chat` raises."""
        events: queue.SimpleQueue[ChatEvent | BaseException | None] = queue.SimpleQueue()
        work = self._work(self._running_loop(), self._pump(request, events.put))
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            work.abandon()

    async def astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        """Like `stream`, from any event loop."""
        events: asyncio.Queue[ChatEvent | BaseException | None] = asyncio.Queue()
        here = asyncio.get_running_loop()
        loop = await asyncio.to_thread(self._running_loop)

        def put(event: ChatEvent | BaseException | None) -> None:
            here.call_soon_threadsafe(events.put_nowait, event)

        work = self._work(loop, self._pump(request, put))
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            await work.abandon_async()

    async def _answer(self, request: ChatRequest) -> ChatAnswer:
        answer = await self._chat.answer(await self._chat.prepare(request))
        self._tell(answer.end)
        return answer

    def _tell(self, end: ChatEnd) -> None:
        if self._on_end is not None:
            self._on_end(end)

    async def _pump(
        self, request: ChatRequest, put: Callable[[ChatEvent | BaseException | None], None]
    ) -> None:
        try:
            prepared = await self._chat.prepare(request)
            async with aclosing(self._chat.stream(prepared)) as events:
                async for event in events:
                    if isinstance(event, ChatEnd):
                        self._tell(event)
                    put(event)
            put(None)
        except BaseException as error:
            # Whoever reads has gone where this was cancelled, and maybe its event loop too.
            with suppress(RuntimeError):
                put(_closed() if isinstance(error, asyncio.CancelledError) else error)
            raise


class _Work(Generic[_T]):
    """A coroutine on the models' event loop, for those who wait in other threads.

    The future of `asyncio.run_coroutine_threadsafe` counts as done the moment it is cancelled; ``over`` is
    done when the coroutine is. ``tasks`` holds the tasks of all that is under way.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T], tasks: set[asyncio.Task[Any]]
    ) -> None:
        self.over: Future[_T] = Future()
        self._loop = loop
        self._tasks = tasks
        self._task: asyncio.Task[_T] | None = None
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, _T]) -> None:
        self._task = self._loop.create_task(work)
        self._tasks.add(self._task)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[_T]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self.over.set_exception(_closed())
        elif (error := task.exception()) is not None:
            self.over.set_exception(error)
        else:
            self.over.set_result(task.result())

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def wait(self) -> _T:
        try:
            return self.over.result()
        except BaseException:
            self.abandon()
            raise

    async def wait_async(self) -> _T:
        try:
            return await asyncio.shield(asyncio.wrap_future(self.over))
        except BaseException:
            await self.abandon_async()
            raise

    def abandon(self) -> None:
        """Cancel what is not over, and wait until it is."""
        if not self.over.done():
            self._loop.call_soon_threadsafe(self._cancel)
            self.over.exception()

    async def abandon_async(self) -> None:
        if not self.over.done():
            self._loop.call_soon_threadsafe(self._cancel)
            await asyncio.wait([asyncio.wrap_future(self.over)])


def _closed() -> EngineError:
    return EngineError("the models were closed; make a new InProcess")


def chat_request(
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: str | Mapping[str, Any] | None = None,
    response_format: Mapping[str, Any] | None = None,
) -> ChatRequest:
    """Return the request for what a framework passes, in OpenAI's forms.

    Args:
        options: by the names in OPTIONS; those that are None count as not given.
        tool_choice: a ToolChoice, a function's name, or an object that names one; None: ``auto``.
        response_format: of type text, json_object or json_schema.

    Raises:
        RequestError: an option has an unknown name, or a form is none of these.
    """
    given = {name: value for name, value in options.items() if value is not None}
    check_options(given)
    if isinstance(stop := given.get("stop"), str):
        given["stop"] = (stop,)
    for name in ("stop", "stop_token_ids"):
        if name in given:
            given[name] = tuple(given[name])
    return ChatRequest(
        messages=tuple(messages),
        tools=tuple(tools),
        tool_choice=_tool_choice(tool_choice),
        constraint=_constraint(response_format),
        sampling=ChatSampling(**{name: value for name, value in given.items() if name in _SAMPLING}),
        policy=Policy(**{name: value for name, value in given.items() if name in _POLICY}),
        **{name: value for name, value in given.items() if name in _REQUEST},
    )


def check_options(names: Iterable[str]) -> None:
    """Refuse names that are none of OPTIONS.

    Raises:
        RequestError: there is one.
    """
    for name in names:
        if name not in OPTIONS:
            guess = did_you_mean(name, OPTIONS) or "."
            raise RequestError(
                f"unknown option {name!r}{guess} Known: {', '.join(sorted(OPTIONS))}", param=name
            )


def _tool_choice(choice: str | Mapping[str, Any] | None) -> str:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        return choice
    try:
        name = choice["function"]["name"]
    except (KeyError, TypeError):
        name = None
    if not isinstance(name, str):
        raise RequestError(f"tool_choice is {choice!r}; name a function", param="tool_choice")
    return name


def _constraint(response_format: Mapping[str, Any] | None) -> Constraint | None:
    if response_format is None or response_format.get("type") == "text":
        return None
    if response_format.get("type") == "json_object":
        return Constraint(json_schema='{"type": "object"}')
    try:
        return Constraint(json_schema=json.dumps(response_format["json_schema"]["schema"]))
    except (KeyError, TypeError):
        raise RequestError(
            f"response_format is {dict(response_format)!r}; its type is text, json_object or json_schema",
            param="response_format",
        ) from None


def missing(error: ModuleNotFoundError, package: str, extra: str) -> Exception:
    """Return what to raise where an import failed: with the install line if it is the framework's."""
    if (error.name or "").partition(".")[0].replace("_", "-") not in (package, extra):
        return error
    return MissingDependencyError(package, f"the wrapper for {package}", extra)


def shown_report(report: SpeculationReport) -> dict[str, Any]:
    """Return a report as plain values, for what frameworks keep beside an answer."""
    return asdict(report)
