"""The life of the server: listen, load, serve, drain, and save the suffix cache."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import uvicorn

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.adaptation import draft_to_adapt, open_adaptation
from reason_spec.chat.service import Chat
from reason_spec.errors import ReasonSpecError, SettingsError
from reason_spec.server.admission import Admission
from reason_spec.server.api_request import target_name
from reason_spec.server.app import Operation, create_app, starting_app
from reason_spec.server.connection import http_config
from reason_spec.server.guard import Guard
from reason_spec.server.keys import load_keys
from reason_spec.server.logs import configure_logging
from reason_spec.server.metrics import Metrics
from reason_spec.settings import Settings

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_QUESTION = (
    "Gus owns 44 marbles. Nina has 16 marbles more than Gus does. Then Nina shares all these marbles equally "
    "among 6 cousins. Pia has 5 marbles fewer than each cousin does. How many marbles does Pia have?"
)

Start = Callable[[Accelerator], Awaitable[None]]
"""Starts an accelerator and may show the progress."""
Say = Callable[[str], None]


class Server:
    """One server. Its address and keys are checked before anything is loaded.

    Args:
        start: starts the engines.
        say: shows a line to the operator.

    Raises:
        SettingsError: the address cannot be used, other machines can reach it and there is no key, or
            answers are to be learnt and cannot be.
        DataError: the keys cannot be read.
    """

    def __init__(self, settings: Settings, *, start: Start, say: Say) -> None:
        self.settings = settings
        self._start_engines = start
        self._say = say
        self._keys = load_keys(settings.server, settings.suffix.tenant)
        self._accelerator = Accelerator.from_settings(settings)
        self._draft_to_adapt = None
        if settings.server.learn_folder is not None:
            self._draft_to_adapt = draft_to_adapt(settings, self._accelerator.generator.strategy())
        self._socket = listen(settings.server.host, settings.server.port)
        self._names = settings.server.served_models or (target_name(settings.target),)
        self._metrics = Metrics(self._names[0])
        self._operation = Operation(self._metrics)
        self._stopped = asyncio.Event()

    def _sheds(self) -> bool:
        """Shed speculation by the load alone while the load controller does not know what passes cost."""
        controller = self._accelerator.load_controller
        return self.settings.load_control.use == "on" and not (
            controller is not None and controller.knows_costs
        )

    @property
    def url(self) -> str:
        """The ``base_url`` for clients."""
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
        self._admission = Admission(settings, self._metrics, sheds=self._sheds)
        self._metrics.watch(self._admission)
        self._metrics.watch_controller(lambda: self._accelerator.load_controller)
        self._guard = Guard(
            starting_app(self._operation), self._keys, settings, on_response=self._metrics.responded
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
        if (draft := self._draft_to_adapt) is not None:
            bundle = self._accelerator.bundle
            bundle.adaptation = await open_adaptation(
                self.settings, draft, bundle.target, bundle.draft, self._metrics.draft_tried
            )
            self._metrics.watch_adaptation(bundle.adaptation)
        app = create_app(
            Chat(self._accelerator),
            self._accelerator,
            self.settings.server,
            admission=self._admission,
            metrics=self._metrics,
            operation=self._operation,
        )
        engines = (self._accelerator.target, self._accelerator.draft)
        self._operation.engines = tuple(engine for engine in engines if engine is not None)
        for engine in self._operation.engines:
            engine.keep_alive()
        self._guard.app = app
        self._operation.phase = "ready"

    async def _serve(self) -> None:
        self._say(f"{self._names[0]} is served at {self.url}; Ctrl-C stops. Try:\n  {self._example()}")
        while not self._stopped.is_set():
            try:
                await asyncio.wait_for(self._stopped.wait(), self.settings.server.save_seconds)
            except TimeoutError:
                # So that a kill loses little.
                if (sessions := self._accelerator.suffix_sessions) is not None:
                    await asyncio.to_thread(sessions.save)
        await self._drain()

    async def _drain(self) -> None:
        """Let running requests end. New ones get a 503 with the reason, unlike at a closed port."""
        self._operation.phase = "draining"
        self._admission.drain()
        seconds = self.settings.server.drain_seconds
        if number := self._guard.num_requests:
            requests = "1 request" if number == 1 else f"{number} requests"
            self._say(
                f"Stopping: {requests} running, {seconds:g} s to end; a second signal ends all at once."
            )
        if late := await self._guard.drain(seconds):
            logger.warning("%d requests were not complete after %g seconds and were cancelled", late, seconds)
        # Requests of a hanging engine end with its worker.
        await self._accelerator.close()

    async def _unless_stopped(self, work: Awaitable[None]) -> bool:
        """Do work that a signal may end early; return whether it was completed."""
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
        """Stop at the first signal; the second one ends the process."""
        loop = asyncio.get_running_loop()
        ends = (signal.SIGINT, signal.SIGTERM)

        def stop() -> None:
            for number in ends:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
            if self._operation.phase == "starting":
                # Loading cannot always be interrupted.
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
    """Leaves signals to `Server`."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        SettingsError: the port is in use or not permitted; the message has the remedy.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise SettingsError(f"server.host = {host!r} is not an address of this machine") from None
    # A name such as localhost may have addresses of both families; every client tries IPv4.
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    try:
        return socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(_cannot_listen(host, port, error)) from None


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; take another with --port, or any that is free with --port 0"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be used by this user; take one from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"server.host = {host!r} is not an address of this machine"
    return f"cannot listen on port {port} of {host} ({error.strerror})"
