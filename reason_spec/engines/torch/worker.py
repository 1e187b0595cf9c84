"""The worker process: it loads one model and runs its step loop until its pipe closes.

A thread of its own reads the pipe. So the other side can always write without waiting for a pass to
end, and the worker ends as soon as the pipe closes, in the middle of a pass too: an accelerator that
was killed leaves nothing running.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from reason_spec.engines.torch.messages import (
    AskStats,
    Cancel,
    Died,
    FromWorker,
    OfferHint,
    Ready,
    Reply,
    Report,
    ResetPrefixCache,
    SetCores,
    Shutdown,
    Start,
    StartFailed,
    Submit,
    SubmitScore,
    ToWorker,
)
from reason_spec.errors import ReasonSpecError, UnsupportedModelError

_PARENT_CHECK_SECONDS = 2.0


def main(connection: Connection) -> None:
    """Serve the engine at the other end of ``connection``."""
    # Ctrl-C reaches every process of the terminal; the engine's side decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    start = inbox.get()
    assert isinstance(start, Start)
    try:
        worker = _Worker(start, connection, inbox)
    except ReasonSpecError as error:
        connection.send(StartFailed(str(error), isinstance(error, UnsupportedModelError)))
        return
    try:
        worker.serve()
    except (BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        traceback.print_exc()
        connection.send(Died(f"{type(error).__name__}: {error}"))
        sys.exit(1)


def _read(connection: Connection, inbox: queue.SimpleQueue[ToWorker]) -> NoReturn:
    """Move messages into the inbox; end the process when nobody is at the other end any more."""
    parent = os.getppid()
    while True:
        try:
            if connection.poll(_PARENT_CHECK_SECONDS):
                inbox.put(connection.recv())
            elif os.getppid() != parent:
                # A process that the parent forked may still hold the pipe open.
                os._exit(0)
        except (EOFError, OSError):
            os._exit(0)


class _Worker:
    def __init__(self, start: Start, connection: Connection, inbox: queue.SimpleQueue[ToWorker]) -> None:
        # torch is imported here, after the cores are set: its threads inherit them.
        cores = _pin(start.cores)
        import torch

        from reason_spec.engines.tokenizer import load_tokenizer
        from reason_spec.engines.torch.model import load_model, measure_single_token_pass
        from reason_spec.engines.torch.scheduler import Scheduler

        settings = start.settings
        torch.set_num_threads(len(cores))
        torch.set_num_interop_threads(1)
        tokenizer = load_tokenizer(settings.model, settings.revision)
        model = load_model(settings)
        self._connection = connection
        self._inbox = inbox
        self._open = True
        self._scheduler = Scheduler(
            model,
            tokenizer,
            num_slots=settings.cache_tokens,
            max_running=settings.max_running,
            prefill_chunk=settings.prefill_chunk,
        )
        self._send(
            Ready(
                vocab_size=model.vocab_size,
                max_context=model.max_context,
                tokenizer_id=tokenizer.tokenizer_id,
                device=str(model.device),
                dtype=str(model.dtype).removeprefix("torch."),
                num_threads=torch.get_num_threads(),
                seconds_per_token_pass=measure_single_token_pass(model),
            )
        )

    def serve(self) -> None:
        """Run the step loop; sleep while there is nothing to do."""
        while self._open:
            self._take_messages()
            if self._scheduler.has_work:
                step = self._scheduler.step()
                if step.deltas or step.results:
                    self._send(Report(tuple(step.deltas), tuple(step.results)))

    def _take_messages(self) -> None:
        if not self._scheduler.has_work:
            self._handle(self._inbox.get())
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Submit(number, request):
                self._scheduler.submit(number, request)
            case SubmitScore(number, prefix, continuation):
                self._scheduler.score(number, prefix, continuation)
            case Cancel(number):
                self._scheduler.cancel(number)
            case OfferHint(number, hint):
                self._scheduler.offer_hint(number, hint)
            case AskStats(number):
                self._send(Reply(number, self._scheduler.stats()))
            case ResetPrefixCache(number):
                self._scheduler.reset_prefix_cache()
                self._send(Reply(number))
            case SetCores(number, cores):
                self._set_cores(cores)
                self._send(Reply(number))
            case Shutdown():
                self._shut_down()
            case _:
                raise AssertionError(f"unexpected message {message!r}")

    def _set_cores(self, cores: tuple[int, ...] | None) -> None:
        import torch

        torch.set_num_threads(len(_pin(cores)))

    def _shut_down(self) -> None:
        self._scheduler.cancel_all()
        step = self._scheduler.step()
        if step.results:
            self._send(Report((), tuple(step.results)))
        self._open = False

    def _send(self, message: FromWorker) -> None:
        self._connection.send(message)


_all_cores: tuple[int, ...] | None = None


def _pin(cores: tuple[int, ...] | None) -> tuple[int, ...]:
    """Bind all threads of this process to cores, None to all it started with; return the cores.

    Where the platform has no affinity (macOS), only the number of threads follows from the result.
    """
    global _all_cores
    if not hasattr(os, "sched_setaffinity"):
        return cores or tuple(range(os.cpu_count() or 1))
    if _all_cores is None:
        _all_cores = tuple(sorted(os.sched_getaffinity(0)))
    chosen = cores or _all_cores
    tasks = Path("/proc/self/task")
    threads = [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [0]
    for thread in threads:
        try:
            os.sched_setaffinity(thread, chosen)
        except ProcessLookupError:
            continue  # the thread ended meanwhile
    return chosen
