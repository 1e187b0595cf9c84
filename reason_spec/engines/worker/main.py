"""The worker process: it loads one model and runs its step loop until its pipe closes.

One thread reads the pipe, so that the worker ends as soon as the pipe closes, even during a pass: a killed
main process leaves no worker behind. Another thread sends heartbeats, so that a long pass is not taken for a
hang.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from reason_spec.engines.text_updates import BeginText, CloseText, EraseTexts, ExtendText, ForgetTexts
from reason_spec.engines.worker.loop import Loader
from reason_spec.engines.worker.messages import (
    Cancel,
    Died,
    EvictFirst,
    ForgetPrefixes,
    FromWorker,
    GetStats,
    Heartbeat,
    LoadLayers,
    OfferHint,
    Phase,
    Reply,
    Report,
    ResetPrefixCache,
    SetCores,
    SetPriority,
    Shutdown,
    Start,
    StartFailed,
    Submit,
    SubmitScore,
    ToWorker,
)
from reason_spec.engines.worker.prefixes import ReceivedPrefixes
from reason_spec.engines.worker.pulse import TICK_SECONDS
from reason_spec.errors import EngineError, ReasonSpecError, UnsupportedModelError

_PARENT_CHECK_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1


def main(connection: Connection, host: str) -> None:
    """Serve the engine at the other end of ``connection`` with the loop that module ``host`` loads."""
    # Ctrl-C reaches every process of the terminal; the main process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    outlet = _Outlet(connection)
    threading.Thread(target=_beat, args=(outlet,), daemon=True).start()
    inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    start = inbox.get()
    assert isinstance(start, Start)
    try:
        worker = _Worker(host, start, outlet, inbox)
    except ReasonSpecError as error:
        outlet.send(StartFailed(str(error), isinstance(error, UnsupportedModelError)))
        return
    try:
        worker.serve()
    except (BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        traceback.print_exc()
        outlet.send(Died(f"{type(error).__name__}: {error}"))
        sys.exit(1)


class _Outlet:
    """Sends messages from several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        with self._lock:
            self._connection.send(message)


def _beat(outlet: _Outlet) -> None:
    """Send heartbeats until the pipe closes."""
    while True:
        time.sleep(TICK_SECONDS)
        try:
            outlet.send(Heartbeat())
        except OSError:
            return


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    A stopped process does not notice that the pipe closes, and would keep its memory.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(connection: Connection, inbox: queue.SimpleQueue[ToWorker]) -> NoReturn:
    """Move messages into the inbox; end the process when the main process has ended."""
    parent = os.getppid()
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    while True:
        try:
            if readable.poll(1000 * _PARENT_CHECK_SECONDS):
                for message in connection.recv():
                    inbox.put(message)
            elif os.getppid() != parent:
                # A process that the parent forked may hold the pipe open.
                os._exit(0)
        except (EOFError, OSError):
            os._exit(0)


def _import_loader(host: str) -> Loader:
    """Import a host and return its ``load``.

    Its thousands of modules stay: to look for garbage among them takes a fifth of the time of a start.
    """
    gc.disable()
    try:
        load: Loader = importlib.import_module(host).load
    finally:
        gc.freeze()
        gc.enable()
    return load


class _Worker:
    def __init__(self, host: str, start: Start, outlet: _Outlet, inbox: queue.SimpleQueue[ToWorker]) -> None:
        # The host imports torch, whose threads inherit the cores.
        cores = _pin(start.cores)
        load = _import_loader(host)
        self._outlet = outlet
        loaded = load(start, len(cores), lambda text: self._send(Phase(text)))
        self._inbox = inbox
        self._prefixes = ReceivedPrefixes()
        self._open = True
        self._loop = loaded.loop
        self._loop.pass_times.num_threads = len(cores)
        self._update_text = loaded.update_text
        self._load_layers = loaded.load_layers
        self._send(loaded.ready)

    def serve(self) -> None:
        """Run the step loop; sleep while there is nothing to do."""
        while self._open:
            self._take_messages()
            if self._loop.has_work:
                step = self._loop.step()
                if step.results:
                    times = self._loop.pass_times
                    report = Report(tuple(step.deltas), tuple(step.results), times.means(), times.batches())
                    self._send(report)
                elif step.deltas:
                    self._send(Report(tuple(step.deltas), ()))

    def _take_messages(self) -> None:
        if not self._loop.has_work:
            self._handle(self._inbox.get())
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Submit(number, request, delta):
                self._loop.submit(number, replace(request, prefix=self._prefixes.decode(delta)))
            case SubmitScore(number, delta, continuation, alternatives):
                prefix = self._prefixes.decode(delta)
                self._loop.score(number, prefix, continuation, alternatives=alternatives)
            case ForgetPrefixes(numbers):
                self._prefixes.forget(numbers)
            case Cancel(number):
                self._loop.cancel(number)
            case OfferHint(number, hint):
                self._loop.offer_hint(number, hint)
            case SetPriority(number, priority):
                self._loop.set_priority(number, priority)
            case BeginText() | ExtendText() | CloseText() | ForgetTexts() | EraseTexts():
                if self._update_text is not None:
                    self._update_text(message)
            case GetStats(number):
                self._send(Reply(number, self._loop.stats()))
            case ResetPrefixCache(number):
                self._send(Reply(number, error=self._loop.reset_prefix_cache()))
            case EvictFirst(owner, tokens):
                self._loop.evict_first(owner, tokens)
            case SetCores(number, cores):
                self._send(Reply(number, error=self._set_cores(cores)))
            case LoadLayers(number, file):
                self._send(Reply(number, error=self._replace_layers(file)))
            case Shutdown():
                self._shut_down()
            case _:
                raise AssertionError(f"unexpected message {message!r}")

    def _set_cores(self, cores: tuple[int, ...] | None) -> str | None:
        """Return why the worker stays on its cores, or None."""
        try:
            num_threads = len(_pin(cores))
        except EngineError as error:
            return str(error)
        self._loop.set_num_threads(num_threads)
        self._loop.pass_times.num_threads = num_threads
        return None

    def _replace_layers(self, file: Path) -> str | None:
        """Return why the layers stay as they were, or None."""
        if self._load_layers is None:
            return "engines of this kind cannot replace the layers of a draft"
        try:
            self._load_layers(file)
        except EngineError as error:
            return str(error)
        return None

    def _shut_down(self) -> None:
        self._loop.cancel_all()
        step = self._loop.step()
        if step.results:
            self._send(Report((), tuple(step.results)))
        self._open = False

    def _send(self, message: FromWorker) -> None:
        self._outlet.send(message)


_all_cores: tuple[int, ...] | None = None


def _pin(cores: tuple[int, ...] | None) -> tuple[int, ...]:
    """Bind all threads of this process to cores, None for all it started with; return the cores.

    Platforms without affinity (macOS) use the number of cores only.

    Raises:
        EngineError: this process may not use one of the cores.
    """
    global _all_cores
    if not hasattr(os, "sched_setaffinity"):
        return cores or tuple(range(os.cpu_count() or 1))
    if _all_cores is None:
        _all_cores = tuple(sorted(os.sched_getaffinity(0)))
    chosen = cores or _all_cores
    if missing := sorted(set(chosen) - set(_all_cores)):
        raise EngineError(
            f"cores {missing} cannot be used: this process may use {list(_all_cores)}; set `cores` to some "
            "of those, or leave it out"
        )
    tasks = Path("/proc/self/task")
    threads = [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [0]
    for thread in threads:
        try:
            os.sched_setaffinity(thread, chosen)
        except ProcessLookupError:
            continue  # the thread has ended
    return chosen
