"""CPU cores: how target and draft share them, and which of them the target uses now."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from reason_spec.engines.base import Engine
from reason_spec.engines.generation import EngineRequest
from reason_spec.errors import EngineError
from reason_spec.settings import Settings
from reason_spec.types import Prefix

_CALIBRATION_TOKENS = 48
_DRAFTED_TOKENS, _NUM_DRAFTED_PASSES = 8, 12
"""Tokens in a pass with drafts, as it is measured, and how many such passes are."""

Cores = tuple[int, ...]


def available_cores() -> Cores:
    """Return the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


class CoreShares(NamedTuple):
    """The cores of each engine while both work."""

    target: Cores
    draft: Cores


def share_out_cores(settings: Settings, cores: Cores, with_draft: bool) -> CoreShares:
    """Return the cores of each engine: the draft gets one, the target all others.

    A model that is served elsewhere needs none, so the other gets all. On a single core both engines run
    on it. Two workers with threads on the same cores wait for each other in every parallel region.
    """
    if "remote" in (settings.target.kind, settings.draft.kind):
        return CoreShares(settings.target.cores or cores, settings.draft.cores or cores)
    free = tuple(core for core in cores if core not in (settings.target.cores or ())) or cores
    draft = settings.draft.cores or free[-1:]
    rest = tuple(core for core in cores if not with_draft or core not in draft) or cores
    return CoreShares(settings.target.cores or rest, draft)


class _Seconds(NamedTuple):
    token: float
    """Of a token that is written alone."""
    drafted_pass: float


class CoreAllocator:
    """Moves the target between its cores.

    Args:
        beside_draft: the target's cores while a draft works.
        every: its cores while it works alone under load; the engine starts on them.
        is_fixed: whether the settings name the target's cores, so that there is nothing to measure.
    """

    def __init__(self, target: Engine, *, beside_draft: Cores, every: Cores, is_fixed: bool = False) -> None:
        self.beside_draft = beside_draft
        self.every = every
        self.alone = beside_draft
        """The target's cores for one answer without drafts; `calibrate` measures them."""
        self.drafting = beside_draft
        """Those for one answer with drafts but no draft model: its passes are of several tokens."""
        self._target = target
        self._is_fixed = is_fixed
        self._is_calibrated = False
        self._current = self._wanted = every
        self._moving: asyncio.Task[None] | None = None

    def under(self, *, needs_draft: bool, drafts: bool) -> Cores:
        """Return the target's cores under a strategy for one answer at a time.

        Args:
            needs_draft: a draft model works beside the target.
            drafts: there are drafts, whoever makes them.
        """
        if needs_draft:
            return self.beside_draft
        return self.drafting if drafts else self.alone

    async def use(self, cores: Cores) -> None:
        """Let the target run on these cores from its next pass on."""
        self._wanted = cores
        if self._moving is not None and asyncio.current_task() is not self._moving:
            await asyncio.wait([self._moving])
        if cores != self._current:
            await self._target.set_cores(cores)
            self._current = cores

    def follow_load(self, *, is_draft_idle: bool, is_lone: bool) -> None:
        """Begin to move the target to the cores that the load leaves it, without waiting.

        Args:
            is_draft_idle: the draft is idle, and the target is faster on all cores.
            is_lone: one answer is written, without drafts.
        """
        wanted = self.every if is_draft_idle else self.beside_draft
        if self._is_calibrated and is_lone:
            # Comparisons with the target alone use the cores that were measured for it.
            wanted = self.alone
        self._begin_move(wanted)

    def follow_plan(self, is_draft_idle: bool) -> None:
        """Begin to move the target to the cores that all plans leave it, without waiting."""
        self._begin_move(self.drafting if is_draft_idle else self.beside_draft)

    def _begin_move(self, wanted: Cores) -> None:
        self._wanted = wanted
        idle = self._moving is None or self._moving.done()
        if idle and self._wanted != self._current:
            self._moving = asyncio.get_running_loop().create_task(self._move())

    async def _move(self) -> None:
        # The wanted cores may change while the engine takes new ones.
        while self._current != self._wanted:
            try:
                await self.use(self._wanted)
            except EngineError:
                # The next generation of this engine reports the failure.
                return

    async def close(self) -> None:
        """Stop moving the target; a hanging engine never confirms its new cores."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait({self._moving})

    async def calibrate(self, others: Iterable[Cores] = ()) -> None:
        """Measure on which cores the target is fastest, with one token in a pass and with several.

        A baseline that kept to the cores that a draft leaves would be slower than necessary. More cores gain
        more where a pass has more tokens.

        Args:
            others: further sets of cores to try.
        """
        candidates = sorted({self.beside_draft, self.every, *others}, key=len, reverse=True)
        if self._is_fixed or len(candidates) < 2:
            return
        seconds = {cores: await self._measure(cores) for cores in candidates}
        self.alone = min(candidates, key=lambda cores: seconds[cores].token)
        self.drafting = min(candidates, key=lambda cores: seconds[cores].drafted_pass)
        self._is_calibrated = True
        await self.use(self.beside_draft)

    async def _measure(self, cores: Cores) -> _Seconds:
        """Return the least seconds of a token over three short generations, and of a pass with drafts."""
        await self.use(cores)
        prefix = Prefix(self._target.tokenizer.encode_chat([{"role": "user", "content": "How many?"}]))
        request = EngineRequest(prefix, _CALIBRATION_TOKENS, stream=False)
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            result = await self._target.submit(request).result()
            best = min(best, (time.perf_counter() - started) / len(result.tokens))
        drafted_pass = float("inf")
        for place in range(_NUM_DRAFTED_PASSES):
            # Other tokens each time: the engine need not compute again what it has cached.
            drafts = tuple(range(1 + place, 1 + place + _DRAFTED_TOKENS))
            started = time.perf_counter()
            await self._target.score(prefix, drafts)
            drafted_pass = min(drafted_pass, time.perf_counter() - started)
        return _Seconds(best, drafted_pass)
