"""The server's life: listen, load, serve, drain, keep what was learnt."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

from reason_spec.accelerator import Accelerator
from reason_spec.chat.service import Chat
from reason_spec.errors import ReasonSpecError, SettingsError
from reason_spec.server.admission import Admission
from reason_spec.server.api_request import target_name
from reason_spec.server.app import create_app
from reason_spec.server.base import ApiError
from reason_spec.server.connection import http_config
from reason_spec.server.guard import App, Guard, Receive, Scope, Send
from reason_spec.server.keys import load_keys
from reason_spec.server.logs import configure_logging
from reason_spec.server.metrics import Metrics
from reason_spec.server.ops import Operation, ops_router
from reason_spec.settings import Settings

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_RETRY_SECONDS = 5.0
_QUESTION = (
    "Gus owns 44 marbles. Nina has 16 marbles more than Gus does. Then Nina shares all these marbles equally "
    "among 6 cousins. Pia has 5 marbles fewer than each cousin does. How many marbles does Pia have?"
)

Start = Callable[[Accelerator], Awaitable[None]]
"""Starts an accelerator, and may show how that goes."""
Say = Callable[[str], None]


class Server:
    """One server: made before anything is loaded, so that what is wrong with it is said at once.

    Args:
        start: starts the engines.
        say: shows a line to whoever started the server.

    Raises:
        SettingsError: the address cannot be listened on, or others could reach it and there is no key.
        DataError: the keys cannot be read.
    """

    def __init__(self, settings: Settings, *, start: Start, say: Say) -> None:
        self.settings = settings
        self._start_engines = start
        self._say = say
        self._keys = load_keys(settings.server, settings.suffix.tenant)
        self._accelerator = Accelerator.from_settings(settings)
        self._socket = listen(settings.server.host, settings.server.port)
        self._names = settings.server.served_models or (target_name(settings.target),)
        self._metrics = Metrics(self._names[0])
        self._operation = Operation(self._metrics)
        self._stopped = asyncio.Event()

    def _is_gated(self) -> bool:
        gate = self._accelerator.load_controller
        return gate is not None and gate.knows

    @property
    def url(self) -> str:
        """Where clients reach the server, as their ``base_url``."""
        host, port = self._socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    async def run(self) -> None:
        """Serve until a signal stops it.

        Raises:
            EngineError: a model could not be loaded.
        """
        settings = self.settings.server
        configure_logging(with_values=settings.log_prompts)
        self._admission = Admission(settings, self._metrics, is_gated=self._is_gated)
        self._metrics.watch(self._admission)
        self._metrics.watch_gate(lambda: self._accelerator.load_controller)
        self._guard = Guard(
            _not_yet(self._operation), self._keys, settings, on_response=self._metrics.responded
        )
        listener = _Listener(http_config(self._guard, settings))
        serving = asyncio.create_task(listener.serve([self._socket]))
        try:
            with self._signals():
                if await self._unless_stopped(self._start()):
                    await self._serve()
        finally:
            listener.should_exit = True
            await serving
            await self._accelerator.close()

    async def _start(self) -> None:
        await self._start_engines(self._accelerator)
        if self._accelerator.suffix_sessions is not None:
            await asyncio.to_thread(self._accelerator.suffix_sessions.load, self._keys.tenants)
        chat = Chat(self._accelerator)
        app = create_app(
            chat, self._accelerator, self.settings.server, admission=self._admission, metrics=self._metrics
        )
        app.include_router(ops_router(self._operation))
        engines = (self._accelerator.target, self._accelerator.draft)
        self._operation.engines = tuple(engine for engine in engines if engine is not None)
        for engine in self._operation.engines:
            engine.keep_alive()
        self._guard.app = app
        self._operation.phase = "ready"

    async def _serve(self) -> None:
        self._say(f"{self._names[0]} is served at {self.url}; Ctrl-C stops. Try:\n  {self._example()}")
        saving = asyncio.create_task(self._save_now_and_then())
        try:
            await self._stopped.wait()
        finally:
            saving.cancel()
            await asyncio.wait({saving})
        await self._drain()

    async def _drain(self) -> None:
        """Let requests under way end. New ones are refused, not left to a closed port: balancers see why."""
        self._operation.phase = "draining"
        self._admission.drain()
        seconds = self.settings.server.drain_seconds
        if number := self._guard.num_requests:
            requests = "1 request" if number == 1 else f"{number} requests"
            self._say(
                f"Stopping: {requests} under way, {seconds:g} s to end; a second signal ends all at once."
            )
        if late := await self._guard.drain(seconds):
            logger.warning("%d requests were not complete after %g seconds and were ended", late, seconds)
        # An engine that hangs confirms nothing; with its worker what waits for that ends.
        await self._accelerator.close()

    async def _save_now_and_then(self) -> None:
        """Keep what was learnt, so that a kill loses little."""
        while True:
            await asyncio.sleep(self.settings.server.save_seconds)
            if (sessions := self._accelerator.suffix_sessions) is not None:
                # Finished also where the server stops meanwhile: two must not write at once.
                await _whole(asyncio.to_thread(sessions.save))

    async def _unless_stopped(self, work: Awaitable[None]) -> bool:
        """Do something that a signal may cut short; return whether it was done."""
        working = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                return False
            working.result()
            return True
        finally:
            stopped.cancel()
            working.cancel()
            await asyncio.wait({working})

    @contextmanager
    def _signals(self) -> Generator[None]:
        """Stop at the first signal; the second ends the process, as the system does it."""
        loop = asyncio.get_running_loop()
        ends = (signal.SIGINT, signal.SIGTERM)

        def stop() -> None:
            for number in ends:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
            if self._operation.phase == "starting":
                # Loading cannot be cut short everywhere.
                self._operation.phase = "draining"
                self._say("Stopping before the models are loaded; a second signal ends all at once.")
            self._stopped.set()

        for number in ends:
            loop.add_signal_handler(number, stop)
        if self.settings.server.api_keys_file is not None:
            loop.add_signal_handler(signal.SIGHUP, self._read_keys_again)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    def _read_keys_again(self) -> None:
        try:
            self._guard.keys = load_keys(self.settings.server, self.settings.suffix.tenant)
        except ReasonSpecError as error:
            logger.warning("the keys stay as they were: %s", error)
        else:
            logger.info("the keys were read again")

    def _example(self) -> str:
        body = json.dumps({"model": self._names[0], "messages": [{"role": "user", "content": _QUESTION}]})
        key = "" if self._keys.anyone is not None else "-H 'Authorization: Bearer KEY' "
        return f"curl {self.url}/chat/completions -H 'Content-Type: application/json' {key}-d '{body}'"


class _Listener(uvicorn.Server):
    """Leaves signals to the server."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens: from now on the port is taken.

    Raises:
        SettingsError: it is in use, or not ours to take; the message says what to do.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise SettingsError(f"server.host = {host!r} is no address of this machine") from None
    # A name such as localhost may have addresses of both families; clients try the older one always.
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        raise SettingsError(_cannot_listen(host, port, error)) from None
    return taken


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; take another with --port, or any that is free with --port 0"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be used by this user; take one from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"server.host = {host!r} is no address of this machine"
    return f"cannot listen on port {port} of {host} ({error.strerror})"


def _not_yet(operation: Operation) -> App:
    """Return what answers while models load."""
    ops = FastAPI(openapi_url=None)
    ops.include_router(ops_router(operation))
    paths = {getattr(route, "path", None) for route in ops.routes}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in paths:
            text = "the models are being loaded; ask again in a moment"
            raise ApiError(503, text, kind="server_error", code="starting", retry_after=_RETRY_SECONDS)
        await ops(scope, receive, send)

    return answer


async def _whole(work: Awaitable[None]) -> None:
    """Wait for work to end, also when the wait is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    finally:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
