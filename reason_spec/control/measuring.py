"""Measures at the start what passes, draft tokens and batches cost on this machine.

Each model is measured while nothing else runs. While both work on the cores of one machine, passes take
longer; `Costs.remeasured` follows that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle

from reason_spec.control.costs import Costs, PassCost
from reason_spec.engines.base import Engine
from reason_spec.engines.generation import EngineRequest
from reason_spec.types import Prefix

PASS_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of tokens in a pass that are timed."""
_CONTEXT = 256
_REPEATS = 3
_DRAFT_TOKENS = 24
BATCH_SIZES = (1, 4, 16, 64)
"""Numbers of requests whose passes are timed together."""
_BATCH_TOKENS = 10
_BATCH_DRAFTS = (2, 7)
_BATCH_SECONDS = 1.5
"""After this time no larger batch is measured."""
_TEXT = (
    "How many apples are there in all, if we add three to the seven that Ana has, take two of them away "
    "again, give half to Ben and then share the rest equally among four friends? "
)


async def measure_costs(target: Engine, draft: Engine, *, verdict: float = 0.0) -> Costs:
    """Time passes of the target of several sizes, and a run of the draft; ``verdict`` is measured elsewhere.

    Takes a second or so with small models, and forgets all cached prefixes before and after. Each time
    is the least of a few, since whatever disturbs a measurement makes it longer.

    Raises:
        EngineError: an engine failed.
    """
    await _reset(draft)
    target_cost = await measure_pass_cost(target)
    draft_token = await _measure_tokens(draft)
    draft_passes = [time for time in draft.pass_times if time.num_tokens < 2]
    draft_cost = PassCost(((1, draft_passes[0].seconds),)) if draft_passes else None
    await _reset(target, draft)
    return Costs(target_cost, draft_token, draft_cost, verdict)


async def measure_pass_cost(engine: Engine) -> PassCost:
    """Time passes of several sizes; forgets all cached prefixes before and after.

    Raises:
        EngineError: the engine failed.
    """
    await _reset(engine)
    cost = await _measure_passes(engine, PASS_SIZES)
    await _reset(engine)
    return cost


async def measure_batches(engine: Engine, *, with_drafts: bool) -> None:
    """Let an engine write for one request and for many, so that it knows what such passes take.

    Larger batches are left out where smaller ones took long already. With ``with_drafts`` the same texts are
    written a second time, with their own tokens as hints: then passes hold several tokens of each request.

    Raises:
        EngineError: the engine failed.
    """
    if len(engine.tokenizer.encode(_TEXT)) < 2 or engine.max_context < 4 * _BATCH_TOKENS:
        return
    started = time.perf_counter()
    for size in BATCH_SIZES:
        prefixes = [_opening(engine, number) for number in range(size)]
        written = await _write_all(engine, prefixes, [()] * size, 0)
        if with_drafts:
            for num_drafts in _BATCH_DRAFTS:
                await _write_all(engine, prefixes, written, num_drafts)
        if time.perf_counter() - started > _BATCH_SECONDS:
            break


def _opening(engine: Engine, number: int) -> Prefix:
    """Return a short text that begins unlike those of other numbers: equal tokens may be computed once."""
    tokens = engine.tokenizer.encode(_TEXT)
    return Prefix((tokens[number // len(tokens)], tokens[number % len(tokens)], *tokens[:_BATCH_TOKENS]))


async def _write_all(
    engine: Engine, prefixes: Sequence[Prefix], hints: Sequence[tuple[int, ...]], num_drafts: int
) -> list[tuple[int, ...]]:
    writing = [
        engine.submit(
            EngineRequest(prefix, _BATCH_TOKENS, hint=hint, num_draft_tokens=num_drafts, stream=False)
        )
        for prefix, hint in zip(prefixes, hints, strict=True)
    ]
    return [(await one.result()).tokens for one in writing]


async def _reset(*engines: Engine) -> None:
    for engine in engines:
        await engine.reset_prefix_cache()


async def _measure_passes(engine: Engine, sizes: Sequence[int]) -> PassCost:
    # A text is one token of context, one to begin with, and the pass.
    sizes = [size for size in sizes if size + 2 <= engine.max_context]
    context = _context(engine, max(sizes) + 1)
    continuation = _filler(engine, max(sizes))
    await engine.score(context, continuation[:1])
    # A pass must not find its tokens computed: each begins with another token after the cached context.
    openings = cycle(dict.fromkeys(engine.tokenizer.encode(_TEXT)))
    points: list[tuple[int, float]] = []
    for size in sizes:
        seconds: list[float] = []
        for _ in range(_REPEATS):
            prefix = context.extend((next(openings),))
            started = time.perf_counter()
            await engine.score(prefix, continuation[:size])
            seconds.append(time.perf_counter() - started)
        # A larger pass that was faster by chance must not look cheaper.
        points.append((size, max(min(seconds), points[-1][1] if points else 0.0)))
    return PassCost(tuple(points))


async def _measure_tokens(engine: Engine) -> float:
    count = min(_DRAFT_TOKENS, engine.max_context - 2)
    context = _context(engine, count)
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        result = await engine.submit(EngineRequest(context, count, stream=False)).result()
        best = min(best, (time.perf_counter() - started) / max(1, len(result.tokens)))
    return best


def _context(engine: Engine, room: int) -> Prefix:
    return Prefix(_filler(engine, max(1, min(_CONTEXT, engine.max_context - room - 1))))


def _filler(engine: Engine, count: int) -> tuple[int, ...]:
    tokens = engine.tokenizer.encode(_TEXT)
    return (tokens * (count // len(tokens) + 1))[:count]
