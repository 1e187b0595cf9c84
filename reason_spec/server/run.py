"""The life of the server's process: listen, load, serve, drain at a signal."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import uvicorn

from reason_spec.errors import SettingsError
from reason_spec.server.connection import http_config
from reason_spec.server.logs import configure_logging
from reason_spec.server.service import Service, Start
from reason_spec.settings import Settings

_BACKLOG = 2048
_QUESTION = (
    "Gus owns 44 marbles. Nina has 16 marbles more than Gus does. Then Nina shares all these marbles equally "
    "among 6 cousins. Pia has 5 marbles fewer than each cousin does. How many marbles does Pia have?"
)

Say = Callable[[str], None]
"""Shows a line to the operator."""


class Server:
    """One server. Its address and keys are checked before anything is loaded.

    Args:
        start: starts the engines.
        say: shows a line to the operator.

    Raises:
        SettingsError: the address cannot be used, other machines can reach it and there is no key, or
            answers are to be learnt and cannot be, or a rule for tools has an unknown form.
        DataError: the keys, or the model that predicts calls, cannot be read.
    """

    def __init__(self, settings: Settings, *, start: Start, say: Say) -> None:
        self.settings = settings
        self._say = say
        self._service = Service(settings, start)
        self._socket = listen(settings.server.host, settings.server.port)
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

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
        listener = _Listener(http_config(self._service.guard, settings))
        serving = asyncio.create_task(listener.serve([self._socket]))
        try:
            with self._signals():
                if await self._unless_stopped(self._service.start()):
                    await self._serve()
        finally:
            listener.should_exit = True
            await serving
            await self._service.close()

    async def _serve(self) -> None:
        self._say(f"{self._service.name} is served at {self.url}; Ctrl-C stops. Try:\n  {self._example()}")
        while not self._stopped.is_set():
            try:
                await asyncio.wait_for(self._stopped.wait(), self.settings.server.save_seconds)
            except TimeoutError:
                # So that a kill loses little.
                await self._service.save()
        await self._drain()

    async def _drain(self) -> None:
        """Let running requests end. New ones get a 503 with the reason, unlike at a closed port."""
        seconds = self.settings.server.drain_seconds
        if number := self._service.guard.num_requests:
            requests = "1 request" if number == 1 else f"{number} requests"
            self._say(
                f"Stopping: {requests} running, {seconds:g} s to end; a second signal ends all at once."
            )
        await self._service.drain(seconds)

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
            if self._service.operation.phase == "starting":
                # Loading cannot always be interrupted.
                self._service.operation.phase = "draining"
                self._say("Stopping before the models are loaded; a second signal ends all at once.")
            self._stopped.set()

        def read_keys() -> None:
            reading = asyncio.create_task(self._service.read_keys_again())
            self._tasks.add(reading)
            reading.add_done_callback(self._tasks.discard)

        for number in ends:
            loop.add_signal_handler(number, stop)
        if self.settings.server.api_keys_file is not None:
            loop.add_signal_handler(signal.SIGHUP, read_keys)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    def _example(self) -> str:
        body = json.dumps({"model": self._service.name, "messages": [{"role": "user", "content": _QUESTION}]})
        key = "" if self._service.guard.keys.anyone is not None else "-H 'Authorization: Bearer KEY' "
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
