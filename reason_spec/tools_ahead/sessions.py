"""Tools that run ahead of the model, in process: for loops of your own and for agent frameworks."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Self, TypeAlias

from reason_spec.errors import ReasonSpecError, SettingsError, did_you_mean
from reason_spec.suffix.traces import TraceMessage
from reason_spec.tools_ahead.calls import Call, Called, Event, ReadOnlyTools, events_of, read_messages
from reason_spec.tools_ahead.features import Streamed
from reason_spec.tools_ahead.held import AheadBudget, AheadLimits, AheadReport, HeldResults, Used
from reason_spec.tools_ahead.model import CallModel, load_model
from reason_spec.tools_ahead.predictor import CallPredictor, Knowledge, Prediction, starts_turn
from reason_spec.tools_ahead.streaming import complete_arguments
from reason_spec.tools_ahead.tenants import Tenant, Tenants

logger = logging.getLogger(__name__)
Tool: TypeAlias = Callable[..., Any]
"""Takes the arguments by name, and returns the result or awaits it."""


class SpeculativeTools:
    """A set of tools whose read-only calls are run before the model has written them.

    Learns from the conversations that it is given, and from those of its sessions, by tenant. What a tenant's
    sessions teach, and all results, stay with that tenant.

    ::

        tools = SpeculativeTools({"search": search, "book": book}, read_only=["search"], past=conversations)
        with tools.session("ann") as session:
            while ...:
                session.follow(messages)          # before each call of the model
                reply = model(messages)
                result = session.call("search", {"query": "..."})
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        read_only: Iterable[str],
        past: Iterable[Sequence[Event]] = (),
        model: CallModel | None = None,
        limits: AheadLimits | None = None,
        max_workers: int = 4,
        max_learned: int = 200,
        max_tenants: int = 100,
    ) -> None:
        """Args:
        tools: by name.
        read_only: rules ``NAME`` or ``NAME(ARGUMENT=VALUE)`` for calls that change nothing, and may therefore
            be made in vain.
        past: earlier conversations as events (`reason_spec.tools_ahead.calls.events_of`). All tenants
            learn from them.
        model: gives the chances; None: the one that ships.
        limits: of the open sessions of a tenant together, or of one session without a tenant.
        max_workers: threads that run calls ahead, of all sessions together.
        max_learned: conversations of sessions that a tenant learns from; the oldest are forgotten.
        max_tenants: tenants that are remembered; those who began a session longest ago are forgotten.

        Raises:
            SettingsError: ``read_only`` names a tool that is not among ``tools``, or a number is too small.
        """
        self.tools = dict(tools)
        self.is_read_only = ReadOnlyTools(read_only)
        for name in self.is_read_only.names:
            if name not in self.tools:
                guess = did_you_mean(name, self.tools) or "."
                raise SettingsError(f"read_only names {name!r}, which is no tool of these{guess}")
        self.model = load_model() if model is None else model
        self.limits = AheadLimits() if limits is None else limits
        self.workers = ThreadPoolExecutor(max_workers, thread_name_prefix="tools-ahead")
        # Of its own, so that no prediction waits behind slow tools.
        self.predicting = ThreadPoolExecutor(1, thread_name_prefix="tools-ahead-prediction")
        self._free_workers = threading.BoundedSemaphore(max_workers)
        self._tenants = Tenants(Knowledge.of(past, self.is_read_only), max_learned, max_tenants, self.limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop running calls ahead; calls that run are waited for."""
        self.predicting.shutdown()
        self.workers.shutdown(cancel_futures=True)

    def session(self, tenant: str | None = None) -> ToolSession:
        """Start a conversation.

        Args:
            tenant: its open sessions share the limits. None: the session has limits of its own, and learns
                with the others that have no tenant.
        """
        known = self._tenants.get(tenant)
        return ToolSession(self, known, AheadBudget(self.limits) if tenant is None else known.budget)

    def run(self, call: Call) -> Future[Any] | None:
        """Start a call in a thread; None if all are busy: it would begin later than the model's own call."""
        if not self._free_workers.acquire(blocking=False):
            return None
        tool = self.tools[call.name]
        # In the caller's context: a tool may find its user there.
        future = self.workers.submit(copy_context().run, lambda: _blocking(tool(**call.arguments)))
        future.add_done_callback(lambda _: self._free_workers.release())
        return future

    def learn(self, tenant: str | None, events: Sequence[Event]) -> Future[None]:
        """Learn a conversation for a tenant; None: for the sessions without one.

        What a tenant knows is read and changed in one thread only, so open sessions may go on.
        """
        return self.predicting.submit(self._tenants.get(tenant).learn, events)


class ToolSession:
    """One conversation. Its methods may be called from any thread, but not at the same time, except `call`
    and `acall`."""

    def __init__(self, tools: SpeculativeTools, tenant: Tenant, budget: AheadBudget) -> None:
        self._tools = tools
        self.tenant = tenant
        self._held = HeldResults(budget)
        self._messages: list[TraceMessage] = []
        self._predictor = CallPredictor(tenant.knowledge, tools.model)
        self._events: list[Event] = []
        self._predicting: Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The agent's, which runs tools that are coroutines; None: it has none."""
        self._streamed: tuple[str, int] = ("", -1)
        self._expected: set[str] = set()
        self._made: set[str] = set()
        """The keys of this turn's calls."""
        self._counting = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def report(self) -> AheadReport:
        """What ran ahead so far."""
        return self._held.report()

    def follow(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Take the whole conversation in OpenAI's form, before the model writes, and start likely calls.

        Returns at once; the prediction runs in a thread of its own. A conversation that was changed in its
        past is read anew, and results are dropped. Parts of contents that are no text are left out.

        Raises:
            pydantic.ValidationError: a message has another form.
        """
        parsed = read_messages(messages)
        self.settle()
        if parsed[: len(self._messages)] != self._messages:
            self._held.drop_all()
            self._predictor = CallPredictor(self.tenant.knowledge, self._tools.model)
            self._events = []
        self._messages = parsed
        events = list(events_of(parsed))
        new, self._events = events[len(self._events) :], events
        self._streamed = ("", -1)
        with self._counting:
            self._expected.clear()
            self._made.clear()
        # A framework may have made such a call without the session.
        if any(isinstance(event, Called) and not self._tools.is_read_only(event.call) for event in new):
            self._held.drop_all()
        self._predict(new, None)

    def try_follow(self, read: Callable[[], Sequence[Mapping[str, Any]]], *errors: type[Exception]) -> None:
        """As `follow`, for the run of a framework, which goes on where its conversation cannot be read.

        Nothing runs ahead then, and no result from before is used: what has changed since is not known.

        Args:
            read: returns the messages.
            errors: what it raises for messages of an unknown form, beside ValueError and our own errors.
        """
        unreadable: tuple[type[Exception], ...] = (ValueError, ReasonSpecError, *errors)
        try:
            self.follow(read())
        except unreadable:
            logger.warning("nothing runs ahead: this conversation cannot be read", exc_info=True)
            self.settle()
            self._held.drop_all()

    def stream(self, name: str, arguments: str) -> None:
        """Take what the model has written of a call: its name, and the JSON of its arguments so far.

        May be called with every token; acts when an argument is complete.
        """
        complete = complete_arguments(arguments)
        if (name, len(complete)) == self._streamed:
            return
        self._streamed = (name, len(complete))
        self.settle()
        self._predict([], Streamed(name, complete))

    def expect(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Take a call of this turn that something faster than the model has written, such as its draft.

        The chance that it is made is measured, for each tenant; it runs ahead from the threshold on. May be
        called from any thread at any time, and returns at once.
        """
        call = self._read_only(name, arguments)
        if call is None:
            return
        with self._counting:
            if self._closed or call.key in self._expected | self._made:
                return
            self._expected.add(call.key)
            chance = self.tenant.count_expected()
        self._tools.predicting.submit(copy_context().run, self._start, [Prediction(call, chance)])

    def settle(self) -> None:
        """Wait until the last prediction has started its calls."""
        if self._predicting is not None:
            self._predicting.result()

    def call(self, name: str, arguments: Mapping[str, Any], own: Callable[[], Any] | None = None) -> Any:
        """Make a call of the model, or return the result of the same call that ran ahead.

        Args:
            own: makes the call where nothing ran ahead, as a framework does it; None: the tool itself. With
                it the tool may be one that `SpeculativeTools` does not know: such a call counts as one that
                may change something.

        Raises:
            KeyError: there is no such tool.
            Exception: what the tool raises.
        """
        make = own or partial(self._tools.tools[name], **arguments)
        call = self._read_only(name, arguments)
        if call is None:
            with self.writing():
                return _blocking(make())
        ahead = self._take(call)
        if ahead is not None and ahead.exception() is None:
            return ahead.result().result
        return _blocking(make())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Drop results, and run nothing ahead inside: for calls made elsewhere that may change something."""
        self._held.begin_write()
        try:
            yield
        finally:
            self._held.end_write()

    async def acall(
        self, name: str, arguments: Mapping[str, Any], own: Callable[[], Awaitable[Any]] | None = None
    ) -> Any:
        """As `call`, without blocking the event loop; a tool that is no coroutine runs in a thread."""
        make = own or partial(_awaited, self._tools.tools[name], arguments)
        call = self._read_only(name, arguments)
        if call is None:
            with self.writing():
                return await make()
        ahead = self._take(call)
        if ahead is not None:
            done = asyncio.wrap_future(ahead)
            await asyncio.wait([done])
            if done.exception() is None:
                return done.result().result
        return await make()

    def _read_only(self, name: str, arguments: Mapping[str, Any]) -> Call | None:
        """Return the call if it changes nothing, so that one that ran ahead may answer it."""
        if name not in self._tools.tools:
            return None
        try:
            call = Call.of(name, arguments)
        except (TypeError, RecursionError):
            # Arguments that are no JSON, or nested too deep, cannot be compared.
            return None
        return call if self._tools.is_read_only(call) else None

    def _take(self, call: Call) -> Future[Used] | None:
        """Return the future result of the same call that runs ahead; None if there is none."""
        with self._counting:
            if call.key in self._expected - self._made:
                self.tenant.count_made()
            self._made.add(call.key)
        return self._held.take(call)

    def close(self, *, learn: bool = True) -> AheadReport:
        """End the conversation; drop results.

        Args:
            learn: later sessions of the tenant learn from it.
        """
        self.settle()
        with self._counting:
            self._closed = True
        events, self._events = self._events, []
        if learn and events:
            self._tools.predicting.submit(self.tenant.learn, events)
        return self._held.close()

    def _predict(self, events: Sequence[Event], streamed: Streamed | None) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        predict = copy_context().run
        self._predicting = self._tools.predicting.submit(predict, self._start_likely, events, streamed)

    def _start_likely(self, events: Sequence[Event], streamed: Streamed | None) -> None:
        try:
            for event in events:
                self._predictor.add(event)
            if streamed is None and not (events and starts_turn(events[-1])):
                return
            self._start(self._predictor.predict(streamed))
        except Exception:
            # The conversation goes on without it.
            logger.exception("no call is predicted here")

    def _start(self, predictions: Iterable[Prediction]) -> None:
        threshold = self._tools.limits.threshold
        if threshold is None:
            threshold = self._tools.model.threshold
        known = [prediction for prediction in predictions if prediction.call.name in self._tools.tools]
        self._held.start(known, threshold, self._run)

    def _run(self, call: Call) -> Future[Any] | None:
        tool = self._tools.tools[call.name]
        if self._loop is None or not inspect.iscoroutinefunction(tool):
            return self._tools.run(call)
        # It makes the call in the loop, where wrong arguments are an error of this call alone.
        made = _awaited(tool, call.arguments)
        try:
            return asyncio.run_coroutine_threadsafe(made, self._loop)
        except RuntimeError:
            # The loop was closed.
            made.close()
            return None


def _blocking(result: Any) -> Any:
    """Return a result, that of a coroutine after running it in a loop of its own."""
    return asyncio.run(_wait_for(result)) if inspect.isawaitable(result) else result


async def _wait_for(result: Awaitable[Any]) -> Any:
    return await result


async def _awaited(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(tool):
        return await tool(**arguments)
    return await asyncio.to_thread(lambda: _blocking(tool(**arguments)))
