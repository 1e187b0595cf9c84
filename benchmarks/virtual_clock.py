"""Lets `time.perf_counter` tell the time of the running loop: import it before anything of reason_spec.

The recorder keeps the function that it found when it was imported.
"""

from __future__ import annotations

import asyncio
import time


def _loop_time() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # outside a loop, as while modules are imported
        return 0.0


time.perf_counter = _loop_time
