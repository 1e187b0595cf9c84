"""The process that runs Math-Verify: one JSON request a line in, ``started`` and a result a line out.

Started as ``python -m reason_spec.tasks.worker PARENT_PID MEMORY_BYTES`` by ``Grader``. It ends when its
input ends or its parent is gone, and the operating system ends it when one item takes far too
long, so that it never outlives a parent that was killed.
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
    # sympy swallows MemoryError in places and then calls the expressions different.
    if not comparison.equal and _peak_memory_bytes() > memory_bytes // 4:
        return {"equal": None, "reason": "not compared: too large (memory)", "spent": True}
    return {"equal": comparison.equal, "reason": comparison.reason}


def _take_stdout() -> TextIO:
    """Return a private stream to the parent; what libraries print to standard output is dropped."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
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
        return  # not offered by this platform: the deadline still holds


def _peak_memory_bytes() -> int:
    """Return the most memory that this process has held at once."""
    try:
        # The peak of getrusage starts, on Linux, at that of the parent this process was forked from.
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
    # The default action of SIGALRM ends the process even inside one long C call, which holds the
    # interpreter lock and would keep the parent watch from running.
    if hasattr(signal, "alarm"):
        signal.alarm(int(seconds) + _ALARM_GRACE_SECONDS)


def _disarm_alarm() -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
