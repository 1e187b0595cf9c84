"""Grades answers: numbers in this process, expressions in a worker process with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import reason_spec
from reason_spec.errors import MissingDependencyError, SettingsError
from reason_spec.tasks.base import Task, get_task, reference_answer
from reason_spec.tasks.compare import AnswerComparison, compare_quickly

DEADLINE_SECONDS = 10.0
"""Time limit of one comparison, counted from its start in the worker."""

START_SECONDS = 120.0
"""Time limit for the worker to import sympy; a loaded machine needs long."""

MEMORY_BYTES = 2 << 30
"""Address space of the worker, on platforms that can limit it."""


class Grade(NamedTuple):
    """The extracted answer of a response and whether it is correct.

    ``correct`` is None if the comparison timed out, ran out of memory or crashed. ``reason`` says how the
    grade was decided.
    """

    prediction: str | None
    correct: bool | None
    reason: str


_NO_ANSWER = Grade(None, False, "no answer found in the response")


class Grader:
    """Grades responses; thread-safe; close it, or use it as a context manager.

    The worker process starts with the first comparison that needs algebra, so plain numbers need no
    worker. One comparison runs at a time. A worker that misses the deadline or dies is replaced, and only
    its current item stays ungraded.

    Args:
        deadline_seconds: time limit of one comparison.
        memory_bytes: address space of the worker, on platforms that can limit it.

    Raises:
        SettingsError: a limit is not positive.
    """

    def __init__(self, deadline_seconds: float = DEADLINE_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        if not 0 < deadline_seconds < float("inf"):
            raise SettingsError(f"deadline_seconds is {deadline_seconds}; give a number of seconds above 0.")
        if memory_bytes < 512 << 20:
            raise SettingsError(
                f"memory_bytes is {memory_bytes}; sympy needs at least {512 << 20} (512 MiB)."
            )
        self._deadline_seconds = deadline_seconds
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        # A separate lock: an event loop must not wait for ``_lock``, which is held for whole comparisons.
        self._executor_lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def grade(self, response: str, answer: str, task: str | Task = "auto") -> Grade:
        """Extract the final answer of ``response`` and compare it with the reference.

        Raises:
            SettingsError: there is no such task.
            MissingDependencyError: algebra is needed and math-verify is not installed.
        """
        resolved = get_task(task)
        prediction = resolved.extract(response)
        if prediction is None:
            return _NO_ANSWER
        return self.grade_prediction(prediction, answer, resolved)

    def grade_prediction(self, prediction: str, answer: str, task: str | Task = "auto") -> Grade:
        """Compare an answer that is already extracted with the reference; raises as ``grade``."""
        reference = reference_answer(answer)
        comparison = compare_quickly(reference, prediction, get_task(task).kind)
        if comparison is None:
            comparison = self._compare_in_worker(reference, prediction)
        return Grade(prediction, comparison.equal, comparison.reason)

    async def grade_async(self, response: str, answer: str, task: str | Task = "auto") -> Grade:
        """Grade without blocking the event loop; raises as ``grade``.

        Comparisons that need algebra run in a thread, one at a time.
        """
        resolved = get_task(task)
        prediction = resolved.extract(response)
        if prediction is None:
            return _NO_ANSWER
        reference = reference_answer(answer)
        comparison = compare_quickly(reference, prediction, resolved.kind)
        if comparison is None:
            loop = asyncio.get_running_loop()
            comparison = await loop.run_in_executor(
                self._threads(), self._compare_in_worker, reference, prediction
            )
        return Grade(prediction, comparison.equal, comparison.reason)

    def close(self) -> None:
        """End the worker; a later call starts a new one."""
        with self._executor_lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)
        with self._lock:
            self._discard_worker()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _threads(self) -> ThreadPoolExecutor:
        with self._executor_lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grader")
            return self._executor

    def _compare_in_worker(self, reference: str, prediction: str) -> AnswerComparison:
        with self._lock:
            try:
                if self._worker is None:
                    self._worker = _Worker(self._memory_bytes)
                comparison = self._worker.compare(reference, prediction, self._deadline_seconds)
            except _WorkerLostError as error:
                self._discard_worker()
                return AnswerComparison(None, str(error))
            except BaseException:
                # After an interrupt the pending reply would be taken for that of the next request.
                self._discard_worker()
                raise
            if self._worker.spent:
                self._discard_worker()
            return comparison

    def _discard_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


class _WorkerLostError(Exception):
    """The worker missed a deadline or died; the message becomes the reason of the grade."""


class _Worker:
    """The parent's side of one worker process.

    A thread reads the replies, because not all platforms can read a pipe with a deadline. The worker is
    a fresh interpreter: it shares no thread or lock with its parent and does not run the parent's
    ``__main__``.
    """

    def __init__(self, memory_bytes: int) -> None:
        # Math-Verify parses LaTeX with antlr4, which it installs only with its extra.
        if any(importlib.util.find_spec(module) is None for module in ("math_verify", "antlr4")):
            raise MissingDependencyError("math-verify[antlr4_13_2]", "Grading expressions")
        self.spent = False
        self._replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "reason_spec.tasks.worker", str(os.getpid()), str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_worker_environment(),
            text=True,
            encoding="utf-8",
        )
        threading.Thread(target=self._read_replies, name="grader-replies", daemon=True).start()
        try:
            self._next_reply(START_SECONDS, "the grading worker did not start")
        except BaseException:
            self.kill()
            raise

    def compare(self, reference: str, prediction: str, seconds: float) -> AnswerComparison:
        """Compare in the worker; raises `_WorkerLostError` after ``seconds`` or when the worker dies."""
        request = {"reference": reference, "prediction": prediction, "seconds": seconds}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise _WorkerLostError("the grading worker had died") from error
        self._next_reply(START_SECONDS, "the grading worker did not begin")
        reply = self._next_reply(seconds, f"timed out after {seconds:g} s")
        self.spent = bool(reply.get("spent"))
        return AnswerComparison(reply["equal"], reply["reason"])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()

    def _next_reply(self, seconds: float, otherwise: str) -> dict[str, Any]:
        try:
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            raise _WorkerLostError(otherwise) from None
        if reply is None:
            raise _WorkerLostError(f"the grading worker died (exit status {self._process.wait()})")
        return reply

    def _read_replies(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout:
                self._replies.put(json.loads(line))
        self._replies.put(None)


def _worker_environment() -> dict[str, str]:
    """Return an environment in which the worker finds the same packages as this process."""
    root = str(Path(reason_spec.__file__).resolve().parent.parent)
    paths = [root, *(path for path in sys.path if path and path != root)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
