"""Engines that are started and closed together."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from reason_spec.accelerator.bundle import ModelBundle
from reason_spec.settings import Settings


class SlowEngine:
    """An engine of which only start and end are looked at."""

    has_costs = False

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self.holds_memory = False

    async def start(self) -> None:
        await asyncio.sleep(self.seconds)
        self.holds_memory = True

    async def close(self) -> None:
        self.holds_memory = False


async def test_a_start_that_is_cancelled_frees_what_has_started() -> None:
    target, draft = SlowEngine("target", 0.0), SlowEngine("draft", 60.0)
    bundle = ModelBundle(Settings(), cast("Any", target), cast("Any", draft))
    starting = asyncio.create_task(bundle.start())
    while not target.holds_memory:  # noqa: ASYNC110
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not target.holds_memory
