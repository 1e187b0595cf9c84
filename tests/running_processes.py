"""Whether a process still runs; it may end while that is looked up."""

from __future__ import annotations

import psutil


def is_alive(process: psutil.Process | int) -> bool:
    """Return whether a process runs; a zombie has ended."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.is_running() and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
