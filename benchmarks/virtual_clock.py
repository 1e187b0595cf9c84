"""Runs a coroutine in virtual time, with ``time.perf_counter`` telling that time too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

from reason_spec.lab.virtual_time import VirtualTimeLoop

Result = TypeVar("Result")


def run_in_virtual_time(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` to its end. The process has its own clock again afterwards."""
    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        patch.object(time, "perf_counter", runner.get_loop().time),
    ):
        return runner.run(work)
