"""The cost of a token of each model, end to end in the torch engine."""

from __future__ import annotations

import math
import os
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from reason_spec.engines.base import Engine, EngineRequest
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.errors import SettingsError
from reason_spec.pair.generator import problems
from reason_spec.pair.tokenizer import chat_prompt
from reason_spec.settings import EngineSettings
from reason_spec.types import Prefix

CONTEXT = 300
"""Length in tokens around which a token is timed."""
_TOKENS = 64
_REPEATS = 5


class PairCost(NamedTuple):
    """Milliseconds a token, one sequence at a time, each model alone on one core."""

    target_ms: float
    draft_ms: float

    @property
    def c(self) -> float:
        return self.draft_ms / self.target_ms


async def measure_cost(target_folder: Path, draft_folder: Path) -> PairCost:
    """Time both models alternately on one core, so that other load on the machine affects both.

    Raises:
        EngineError: a model cannot be loaded.
        SettingsError: a model's context is too small for the timing.
    """
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = None if core is None else (core,)
    engines = [
        TorchEngine(name, EngineSettings(model=str(folder), device="cpu", cores=cores))
        for name, folder in (("target", target_folder), ("draft", draft_folder))
    ]
    times: list[list[float]] = [[], []]
    try:
        for engine in engines:
            await engine.start()
        for repeat in range(_REPEATS):
            for engine, found in zip(engines, times, strict=True):
                found.append(await _time_tokens(engine, repeat))
    finally:
        for engine in engines:
            await engine.close()
    return PairCost(*(1000 * statistics.median(found) for found in times))


async def _time_tokens(engine: Engine, repeat: int) -> float:
    """Return the seconds of a token around ``CONTEXT``; each repeat has its own text.

    The difference of two requests of different length cancels the time of the prompt.
    """
    text = "".join(chat_prompt(p.question) for p in islice(problems("validation", repeat), 8))
    tokens = engine.tokenizer.encode(text)
    length = CONTEXT - _TOKENS // 2
    if len(tokens) < length or engine.max_context < CONTEXT + _TOKENS:
        raise SettingsError(f"{engine.name} cannot hold a context of {CONTEXT + _TOKENS} tokens")
    seconds: list[float] = []
    for count in (1, _TOKENS + 1):
        await engine.reset_prefix_cache()
        generation = engine.submit(EngineRequest(Prefix(tokens[:length]), max_tokens=count, stream=False))
        started = time.perf_counter()
        result = await generation.result()
        seconds.append(time.perf_counter() - started)
        if len(result.tokens) < count:
            return math.nan  # the model ended its text
    return (seconds[1] - seconds[0]) / _TOKENS
