"""The process that runs Math-Verify: reads one JSON request a line, writes ``started`` and a result.

``Grader`` starts it as ``python -m reason_spec.tasks.worker PARENT_PID MEMORY_BYTES``. It ends with its input
or its parent. An alarm ends it if one comparison exceeds its time limit, so it never outlives a killed
parent.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from reason_spec.tasks.compare import compare_symbolically

_ALARM_GRACE_SECONDS = 5


def main(parent_pid: int, memory_bytes: int) -> None:
    """Serve requests from standard input until it ends."""
    replies = _take_stdout()
    _stay_below_parent(parent_pid)
    logging.disable(logging.WARNING)
    import math_verify  # noqa: F401  # imported before the memory limit and before the first deadline

    _limit_memory(memory_bytes)
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        _reply(replies, {"started": True})
        _arm_alarm(request["seconds"])
        reply = _compare(request["reference"], request["prediction"], memory_bytes)
        _disarm_alarm()
        _reply(replies, reply)


def _compare(reference: str, prediction: str, memory_bytes: int) -> dict[str, object]:
    try:
        comparison = compare_symbolically(reference, prediction)
    except (MemoryError, RecursionError) as error:
        return {"equal": None, "reason": f"not compared: too large ({type(error).__name__})"}
    except Exception as error:
        return {"equal": None, "reason": f"not compared ({type(error).__name__})"}
    # sympy sometimes catches MemoryError and then reports that the expressions differ.
    if not comparison.equal and _peak_memory_bytes() > memory_bytes // 4:
        return {"equal": None, "reason": "not compared: too large (memory)", "spent": True}
    return {"equal": comparison.equal, "reason": comparison.reason}


def _take_stdout() -> TextIO:
    """Return a private stream to the parent; discard what libraries print to standard output."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return replies


def _reply(replies: TextIO, message: dict[str, object]) -> None:
    try:
        replies.write(json.dumps(message) + "\n")
        replies.flush()
    except BrokenPipeError:
        os._exit(0)


def _stay_below_parent(parent_pid: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if os.name != "posix":
        return

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(1.0)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _limit_memory(memory_bytes: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    except (ImportError, ValueError, OSError):
        return  # not supported by this platform; the deadline remains


def _peak_memory_bytes() -> int:
    """Return the peak memory of this process."""
    try:
        # On Linux, the peak of getrusage includes the memory of the parent before the fork.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _arm_alarm(seconds: float) -> None:
    # The default action of SIGALRM ends the process even during a long C call that holds the interpreter's
    # lock, in which no thread of this process runs.
    if hasattr(signal, "alarm"):
        signal.alarm(int(seconds) + _ALARM_GRACE_SECONDS)


def _disarm_alarm() -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
