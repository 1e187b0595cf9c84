"""A proxy between an MCP client and an MCP server over stdio that runs likely read-only calls ahead.

Messages are relayed as the lines that they are (JSON-RPC 2.0, one message a line). The proxy adds calls of
its own, whose ids only it knows, and answers a call of the client whose result it already has. The protocol
needs no package. A call may run ahead if the server's annotations say ``readOnlyHint`` and do not deny
``idempotentHint``: MCP's specification gives ``idempotentHint`` a meaning for tools that write, and a write
that the client did not ask for is wrong however often it may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from reason_spec.errors import ReasonSpecError
from reason_spec.tools_ahead.calls import (
    Call,
    Called,
    Event,
    ReadOnlyTools,
    Returned,
    annotated_tools,
    tool_events,
)
from reason_spec.tools_ahead.held import AheadBudget, AheadLimits, AheadReport, HeldResults, Used
from reason_spec.tools_ahead.mcp_messages import (
    Identity,
    Message,
    call_in,
    identity_of,
    line_of,
    params_of,
    parsed,
    result_text,
)
from reason_spec.tools_ahead.mcp_own_calls import OwnCalls
from reason_spec.tools_ahead.mcp_server import MAX_LINE, McpServer
from reason_spec.tools_ahead.model import CallModel
from reason_spec.tools_ahead.predictor import CallPredictor, Knowledge, Prediction

RAN_AHEAD: Final = "reason-spec/ran-ahead"
"""Key in a result's ``_meta`` with the age of a result that ran ahead, in seconds."""
SERVER_ENDED: Final = -32000
"""JSON-RPC's first code for errors of an implementation."""
_MAX_EVENTS: Final = 400
"""The last events of the session, which are added again where the past is learned anew, and where the
predictor has twice as many."""
_MAX_TEXT: Final = 1 << 18
"""Characters of a result that are kept; longer JSON is read as plain text."""


class _Waiting(NamedTuple):
    """A request of the client that the server works on."""

    method: str
    call: Call | None
    is_write: bool


class _SafePredictor:
    """Predicts calls from those of the session and of past ones; an error is logged and predicts nothing."""

    def __init__(
        self,
        model: CallModel,
        past: Iterable[Sequence[Event]],
        may_run_ahead: Callable[[Call], bool],
        log: Callable[[str], None],
    ) -> None:
        self._model = model
        self._past = [tool_events(events) for events in past]
        self._may_run_ahead = may_run_ahead
        self._log = log
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._learned_for: frozenset[str] | None = None
        """The annotated tools when the past was learned."""
        self._knowledge = Knowledge(may_run_ahead)
        self._predictor = CallPredictor(self._knowledge.copy(), model, learns=True)

    async def learn_past(self, annotated: Set[str]) -> None:
        """Learn from the past anew if other tools are annotated now: their calls in it change nothing.

        The newest annotations win.
        """
        if annotated == self._learned_for:
            return
        self._learned_for = learned_for = frozenset(annotated)
        with self.logged_errors():
            knowledge = await asyncio.to_thread(Knowledge.of, self._past, self._may_run_ahead)
            if self._learned_for is not learned_for:
                return
            self._knowledge = knowledge
            self._begin()
            self._log(f"learned {len(self._past)} past conversations")

    def observe(self, event: Event) -> None:
        self._events.append(event)
        with self.logged_errors():
            if len(self._predictor.history.entries) < 2 * _MAX_EVENTS:
                self._predictor.add(event)
            else:
                self._begin()

    def _begin(self) -> None:
        """Predict from the past and the last events alone: a long session must not fill memory."""
        self._predictor = CallPredictor(self._knowledge.copy(), self._model, learns=True)
        for event in self._events:
            self._predictor.add(event)

    def predict(self) -> list[Prediction]:
        found: list[Prediction] = []
        with self.logged_errors():
            found += self._predictor.predict()
        return found

    @contextmanager
    def logged_errors(self) -> Iterator[None]:
        """Log an error of what is inside: the relay does not depend on it."""
        try:
            yield
        except Exception as error:
            self._log(f"no call is predicted here ({type(error).__name__}: {error})")


class McpProxy:
    """One client and one server; all methods run in one event loop."""

    def __init__(
        self,
        command: Sequence[str],
        model: CallModel,
        *,
        past: Iterable[Sequence[Event]] = (),
        read_only: Iterable[str] = (),
        limits: AheadLimits | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Args:
        command: starts the server.
        past: earlier conversations; of them only calls and results are learned, for a proxy sees no texts.
        read_only: rules for calls that may run ahead, beside the server's annotations.
        log: takes one line for each call that runs ahead, for what became of it, and for the server's end.

        Raises:
            SettingsError: a rule has an unknown form.
        """
        limits = AheadLimits() if limits is None else limits
        self._threshold = model.threshold if limits.threshold is None else limits.threshold
        self._rules = ReadOnlyTools(read_only)
        self._annotated: set[str] = set()
        self._log = log
        self.held = HeldResults(AheadBudget(limits))
        self._predictor = _SafePredictor(model, past, self.may_run_ahead, log)
        self._waiting: dict[Identity, _Waiting] = {}
        self.own_calls = OwnCalls(self._send)
        self._answering: set[Identity] = set()
        self._server = McpServer(command)
        self._failure: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._write_to_client: Callable[[bytes], None] = lambda _: None

    def may_run_ahead(self, call: Call) -> bool:
        """Whether a call changes nothing, by the server's annotations or by the rules."""
        return call.name in self._annotated or self._rules(call)

    async def run(
        self, client: asyncio.StreamReader, write_to_client: Callable[[bytes], None]
    ) -> AheadReport:
        """Relay until the client ends; return the report.

        A server that ends does not end the proxy: every open and every later request is answered with an
        error that names the command and its exit status.

        If the task is cancelled, the server has little time to end.

        Raises:
            ReasonSpecError: the server cannot be started, or the client's message is longer than `MAX_LINE`.
        """
        self._write_to_client = write_to_client
        await self._server.start()
        reading = asyncio.create_task(self._read_server())
        try:
            while line := await _read_line(client):
                await self._from_client(line)
        finally:
            await self._server.end(reading)
            for task in list(self._tasks):
                task.cancel()
        return self.held.close()

    # From the client ---------------------------------------------------------------------------

    async def _from_client(self, line: bytes) -> None:
        message = parsed(line)
        if message is None:
            if line.strip():
                # The server may read writes in it, and their end is not seen: nothing runs ahead any more.
                self.held.begin_write()
            await self._to_server(line)
            return
        method, identity = message.get("method"), identity_of(message.get("id"))
        if method == "notifications/cancelled":
            self._cancel(identity_of(params_of(message).get("requestId")))
        call = call_in(message) if method == "tools/call" else None
        is_write = method == "tools/call" and (call is None or not self.may_run_ahead(call))
        if method is None or identity is None:
            if is_write:
                # Its end is not seen either.
                self.held.begin_write()
            await self._to_server(line)
            return
        if self._failure is not None:
            self._answer(identity, error=self._failure)
            return
        # Newer versions of the protocol name version and client in every request. For another user
        # nothing has run yet.
        if call is not None and self.own_calls.set_meta(params_of(message).get("_meta")):
            self.held.drop_all()
        if call is not None and not is_write and (ahead := self.held.take(call)) is not None:
            self._predictor.observe(Called(call))
            self._answering.add(identity)
            self._spawn(self._answer_from(ahead, identity, call, line))
            return
        if is_write:
            self.held.begin_write()
        if call is not None:
            self._predictor.observe(Called(call))
        await self._forward(line, identity, _Waiting(str(method), call, is_write))

    def _cancel(self, identity: Identity | None) -> None:
        if identity is None:
            return
        if identity in self._answering:
            self._answering.remove(identity)
            return
        waiting = self._waiting.get(identity)
        # A write may go on in spite of it. Nothing runs ahead until the server has answered, if it ever does.
        if waiting is not None and not waiting.is_write:
            del self._waiting[identity]

    async def _forward(self, line: bytes, identity: Identity, waiting: _Waiting) -> None:
        self._waiting[identity] = waiting
        await self._to_server(line)

    async def _answer_from(self, ahead: Future[Used], identity: Identity, call: Call, line: bytes) -> None:
        """Answer a call with the result of the one that ran ahead; make it if that failed."""
        done = asyncio.wrap_future(ahead)
        await asyncio.wait([done])
        if identity not in self._answering:
            return
        self._answering.remove(identity)
        try:
            result, age = done.result()
            meta = {**(result.get("_meta") or {}), RAN_AHEAD: {"age_seconds": round(age, 3)}}
            self._answer(identity, result={**result, "_meta": meta})
        except Exception as error:
            # Whatever is wrong with the result, the client must get an answer: the server's own.
            self._log(f"not used: {call.key}: {error}")
            if self._failure is not None:
                self._answer(identity, error=self._failure)
            else:
                await self._forward(line, identity, _Waiting("tools/call", call, False))
            return
        self._log(f"used: {call.key}, {age:.2f} s after its start")
        self._returned(call, result)

    # From the server ---------------------------------------------------------------------------

    async def _read_server(self) -> None:
        reason = await self._server.read(self._from_server)
        if not self._server.is_ending:
            self._fail(reason)

    def _from_server(self, line: bytes) -> None:
        message = parsed(line)
        if message is not None and self.own_calls.take(message):
            return
        self._write_to_client(line)
        if message is not None:
            with self._predictor.logged_errors():
                self._note(message)

    def _note(self, message: Message) -> None:
        """Learn from a message of the server that went to the client."""
        if message.get("method") == "notifications/tools/list_changed":
            self._annotated.clear()
        if message.get("method") in ("notifications/resources/updated", "notifications/tools/list_changed"):
            self.held.drop_all()
        identity = None if "method" in message else identity_of(message.get("id"))
        waiting = None if identity is None else self._waiting.pop(identity, None)
        if waiting is None:
            return
        result = message.get("result")
        # A task goes on after this answer, which is its first.
        if waiting.is_write and not (isinstance(result, dict) and "task" in result):
            self.held.end_write()
        if waiting.method == "tools/list" and isinstance(result, dict):
            tools = [tool for tool in result.get("tools") or () if isinstance(tool, dict)]
            self._annotated.difference_update(str(tool.get("name")) for tool in tools)
            self._annotated.update(annotated_tools(tools))
            self._spawn(self._predictor.learn_past(self._annotated))
        if waiting.call is not None and isinstance(result, dict):
            self._returned(waiting.call, result)

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._log(reason)
        for identity, waiting in list(self._waiting.items()):
            if waiting.is_write:
                self.held.end_write()
            self._answer(identity, error=reason)
        self._waiting.clear()
        self.own_calls.fail(reason)

    # Running ahead -----------------------------------------------------------------------------

    def _returned(self, call: Call, result: Message) -> None:
        with self._predictor.logged_errors():
            self._predictor.observe(Returned(call, result_text(result)[:_MAX_TEXT]))
        if self._failure is None:
            for one in self.held.start(self._predictor.predict(), self._threshold, self.own_calls.start):
                self._log(f"runs ahead: {one.key}")

    # Lines -------------------------------------------------------------------------------------

    async def _to_server(self, line: bytes) -> None:
        if self._failure is None:
            await self._server.write(line)

    def _send(self, message: Message) -> None:
        if not self._server.is_ending:
            self._spawn(self._to_server(line_of(message)))

    def _answer(self, identity: Identity, *, result: Message | None = None, error: str | None = None) -> None:
        message: Message = {"jsonrpc": "2.0", "id": identity}
        if error is None:
            message["result"] = result
        else:
            message["error"] = {"code": SERVER_ENDED, "message": error}
        self._write_to_client(line_of(message))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _read_line(client: asyncio.StreamReader) -> bytes:
    try:
        return await client.readline()
    except ValueError:
        raise ReasonSpecError(f"the client sent a message of more than {MAX_LINE} bytes") from None


async def run_on_stdio(proxy: McpProxy) -> AheadReport:
    """Run a proxy between this process's standard streams and its server; SIGTERM cancels it.

    Raises:
        ReasonSpecError: see `McpProxy.run`.
    """
    reader = asyncio.StreamReader(limit=MAX_LINE)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)

    def feed() -> None:
        # A thread reads pipes, files and terminals alike; the event loop takes pipes alone. `sys.stdin` must
        # not be locked by a thread that still reads when the interpreter ends.
        with open(sys.stdin.fileno(), "rb", closefd=False) as lines, contextlib.suppress(RuntimeError):
            for line in lines:
                loop.call_soon_threadsafe(reader.feed_data, line)
            loop.call_soon_threadsafe(reader.feed_eof)

    threading.Thread(target=feed, daemon=True).start()

    def write(line: bytes) -> None:
        # A client that has gone away also ends the input, which ends the proxy.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    return await proxy.run(reader, write)


def report_line(report: AheadReport) -> str:
    """Return the report as JSON, for a log."""
    return json.dumps(report._asdict())
