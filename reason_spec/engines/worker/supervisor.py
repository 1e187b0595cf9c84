"""Starts the worker of one engine, kills it if it hangs, and restarts it if it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from reason_spec.engines.worker.messages import (
    Cancel,
    Died,
    FromWorker,
    Heartbeat,
    Ready,
    Shutdown,
    StartFailed,
    ToWorker,
)
from reason_spec.engines.worker.process import WorkerProcess
from reason_spec.engines.worker.pulse import TICK_SECONDS, Pulse
from reason_spec.errors import EngineError, UnsupportedModelError
from reason_spec.settings import EngineSettings

logger = logging.getLogger(__name__)
_CLOSE_SECONDS = 5.0
_MAX_RESTARTS = 5
_SETTLED_SECONDS = 300.0
"""After this time without a death the count of restarts is reset."""


class Supervisor:
    """The worker processes of one engine, one after the other.

    Args:
        launch: starts a process and returns it with the first message for it.
        handle: takes the worker's messages about requests.
        lost: called when a worker has ended, with the reason, None if it was closed. It must fail all pending
            requests.
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        *,
        launch: Callable[[], tuple[WorkerProcess, ToWorker]],
        handle: Callable[[FromWorker], None],
        lost: Callable[[str | None], None],
    ) -> None:
        self._name = name
        self._settings = settings
        self._launch = launch
        self._handle = handle
        self._lost = lost
        self._worker: WorkerProcess | None = None
        self._pulse = Pulse(settings.hang_timeout)
        self._ready: asyncio.Future[Ready] | None = None
        self._hung_up = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._returning: asyncio.Task[None] | None = None
        self._has_served = False
        self._is_kept_alive = False
        self._num_restarts = 0
        self.closing = False
        self.num_deaths = 0
        self.last_output = ""
        self.failure: str | None = None
        """Why requests fail now; None while the worker runs."""

    @property
    def pid(self) -> int | None:
        """The worker's process id; None without a worker."""
        return None if self._worker is None else self._worker.pid

    @property
    def was_opened(self) -> bool:
        return self._ready is not None

    @property
    def trouble(self) -> str | None:
        """Why the worker is unhealthy now; None if it works."""
        if self.closing:
            return None
        if self._is_returning:
            return "died and is being started again"
        if self.failure is not None:
            return "died"
        silence = self._pulse.silence
        return None if silence is None else f"has given no sign of life for {silence:.0f} seconds"

    # --- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start a worker, which loads the model."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._hung_up.clear()
        self._ending = None
        self.last_output = ""
        self._pulse = Pulse(self._settings.hang_timeout)
        self._worker, first = self._launch()
        loop.add_reader(self._worker.fileno(), self._receive)
        loop.call_later(TICK_SECONDS, self._tick, self._worker)
        self.send(first)

    async def ready(self) -> Ready:
        """Wait until the model is loaded, and return its description.

        Raises:
            EngineError: it could not be loaded.
        """
        assert self._ready is not None, "no worker was opened"
        ready = await asyncio.shield(self._ready)
        self._has_served = True
        return ready

    async def close(self) -> None:
        """End the worker. May be called twice."""
        self.closing = True
        is_loading = self._ready is not None and not self._ready.done()
        # A worker that loads its model reads no message.
        is_late = is_loading or self._is_returning or self._pulse.silence is not None
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait({self._returning})
        if self._worker is not None:
            self.failure = self.failure or f"engine {self._name!r} is closed"
            if is_late:
                self._worker.kill()
            self.send(Shutdown())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hung_up.wait(), _CLOSE_SECONDS)
            self._end_soon()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def keep_alive(self) -> None:
        """From now on restart a worker that died."""
        self._is_kept_alive = True

    async def recovered(self) -> None:
        """Wait until a worker that ended is cleaned up and started again; return at once if none ended.

        Raises:
            EngineError: it will not be restarted.
        """
        # A new worker may die as soon as it is ready, so one wait is not enough.
        while pending := {task for task in (self._ending, self._returning) if task and not task.done()}:
            await asyncio.wait(pending)
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        if self.failure is not None:
            raise EngineError(self.failure)

    @property
    def _is_returning(self) -> bool:
        return self._returning is not None and not self._returning.done()

    async def _return(self) -> None:
        """Restart the worker, with exponential back-off; give up after `_MAX_RESTARTS` tries."""
        while self._num_restarts < _MAX_RESTARTS:
            await asyncio.sleep(2**self._num_restarts - 1)
            self._num_restarts += 1
            try:
                self.open()
                async with asyncio.timeout(self._settings.start_timeout):
                    await self.ready()
            except (EngineError, OSError) as error:
                reason = str(error) or f"it was not loaded within {self._settings.start_timeout:g} seconds"
                logger.warning("engine %s could not be started again: %s", self._name, reason)
                if self._worker is not None:
                    self._worker.kill()
                self._end_soon()
                assert self._ending is not None
                await asyncio.shield(self._ending)
            else:
                self.failure = None
                logger.warning("engine %s was started again", self._name)
                return
        self.failure = (
            f"engine {self._name!r} (model {self._settings.model!r}) died, and "
            f"{self._num_restarts} restarts failed; the log has the reasons. Restart this process"
        )
        logger.error("%s", self.failure)

    # --- the pipe ----------------------------------------------------------------------------------

    def send(self, message: ToWorker) -> None:
        """Send a message; ignored without a worker."""
        if self._worker is not None and not self._hung_up.is_set():
            self._worker.send(message)

    def cancel(self, number: int) -> None:
        """Ask the worker to stop a request; `Pulse` kills a worker that does not confirm it."""
        self._pulse.cancelled(number)
        self.send(Cancel(number))

    def confirmed(self, number: int) -> None:
        """Note that a request has ended in the worker."""
        self._pulse.confirmed(number)

    def _receive(self) -> None:
        assert self._worker is not None
        messages = self._worker.receive()
        if messages is None:
            self._end_soon()
            return
        self._pulse.beat()
        for message in messages:
            self._take(message)

    def _take(self, message: FromWorker) -> None:
        assert self._ready is not None
        match message:
            case Heartbeat():
                pass  # counted on arrival
            case Ready() | StartFailed() if self._ready.done():
                pass  # the start was given up
            case Ready():
                self._ready.set_result(message)
            case StartFailed(text, unsupported):
                kind = UnsupportedModelError if unsupported else EngineError
                self._fail_start(kind(f"engine {self._name!r}: {text}"))
            case Died(text):
                self.last_output = text
            case _:
                self._handle(message)

    def _fail_start(self, error: EngineError) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            # Retrieved here, so that asyncio does not warn about it.
            self._ready.exception()

    def _tick(self, worker: WorkerProcess) -> None:
        """Kill a worker that hangs. While it loads, only ``start_timeout`` applies."""
        if worker is not self._worker or self._hung_up.is_set():
            return
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick, worker)
        if not worker.running:
            # A child of the worker may hold the pipe open.
            self._receive()
            self._end_soon()
            return
        assert self._ready is not None
        if not self._ready.done() or self.closing:
            return
        reason = self._pulse.tick()
        if self._pulse.lived > _SETTLED_SECONDS:
            self._num_restarts = 0
        if reason is not None:
            self.last_output = reason
            worker.kill()

    def _end_soon(self) -> None:
        self._hung_up.set()
        self._ending = self._ending or asyncio.create_task(self._end())

    async def _end(self) -> None:
        """Stop the worker and fail its pending requests."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.detach()
        died = self.last_output
        ending = await asyncio.to_thread(worker.end)
        self.last_output = self.last_output or ending.last_line
        comes_back = self._is_kept_alive and self._has_served and not self.closing
        if self.failure is None or not self.closing:
            remedy = "it is being started again" if comes_back else "start the engine again"
            self.failure = (
                f"engine {self._name!r} (model {self._settings.model!r}) died: "
                f"{died or ending.describe()}. Its work is lost; {remedy}"
            )
        self._fail_start(EngineError(self.failure))
        if self._has_served and not self.closing and not self._is_returning:
            self.num_deaths += 1
            logger.error("%s", self.failure)
            if comes_back:
                self._returning = asyncio.create_task(self._return())
        self._lost(None if self.closing else self.failure)
