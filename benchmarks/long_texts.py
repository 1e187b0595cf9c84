"""The cost of a step beside the model's passes, by the length of the text before.

    python benchmarks/long_texts.py [--lengths 1000 4000 16000 64000] [--repeats 40] [--json]

A tiny random model with a context of 64k tokens and more serves the torch engine, so that a text can be long
and the model's own time short. At each length:

- ``step``: a request for a few tokens after the text, and the next one after those, as a stepwise
  strategy makes them;
- ``score``: a few tokens after the text, as a verifier asks for them;
- ``run``: the draft model writes ahead of an answer that is as long as the text (`DraftAhead`).

``pass`` is the model's time in the passes of one, ``host`` the rest of the time from asking to the answer. Of
a run ``host`` is the processor's time in this process: the model works on meanwhile. All are medians in
milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from reason_spec.engines.base import Engine
from reason_spec.engines.factory import create_engine
from reason_spec.engines.generation import EngineRequest, Generation, Hint
from reason_spec.events import Recorder
from reason_spec.pair import embedded_path
from reason_spec.settings import EngineSettings
from reason_spec.strategies.draft_ahead import DraftAhead
from reason_spec.types import Prefix

_STEP_TOKENS = 8
_ROOM = 8192


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the repeats, in milliseconds."""

    length: int
    kind: str
    pass_ms: float
    host_ms: float


def save_tiny_model(folder: Path, max_context: int) -> None:
    """Write a random Llama of one layer and one head with the demonstration pair's vocabulary."""
    import torch
    import transformers

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(embedded_path("target"))
    config = transformers.LlamaConfig(
        vocab_size=1062,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=max_context,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


async def timed(
    engine: Engine, length: int, kind: str, repeats: int, once: Callable[[], Awaitable[None]]
) -> Cost:
    """Return the medians of ``once``; it is called a few times before."""
    passes: list[float] = []
    hosts: list[float] = []
    # Of a run much is done while others are waited for, so nothing between two ends is left out.
    ended = time.process_time()
    for number in range(repeats + 3):
        busy = (await engine.stats()).busy_seconds
        started = time.perf_counter()
        await once()
        seconds = time.perf_counter() - started
        in_passes = (await engine.stats()).busy_seconds - busy
        processor_time, ended = time.process_time() - ended, time.process_time()
        if number >= 3:
            passes.append(in_passes)
            hosts.append(processor_time if kind == "run" else seconds - in_passes)
    return Cost(length, kind, 1e3 * statistics.median(passes), 1e3 * statistics.median(hosts))


async def steps_after(engine: Engine, text: Prefix, repeats: int) -> Cost:
    place = text

    async def step() -> None:
        nonlocal place
        result = await engine.submit(EngineRequest(place, _STEP_TOKENS, stream=False)).result()
        place = place.extend(result.tokens)

    return await timed(engine, len(text), "step", repeats, step)


async def scores_after(engine: Engine, text: Prefix, repeats: int) -> Cost:
    place = text

    async def score() -> None:
        nonlocal place
        tokens = tuple(range(100, 100 + _STEP_TOKENS))
        await engine.score(place, tokens)
        place = place.extend(tokens)

    return await timed(engine, len(text), "score", repeats, score)


async def runs_ahead(engine: Engine, text: Prefix, repeats: int) -> Cost:
    """Let the draft write ahead of an answer whose first tokens, all but one, are ``text``."""
    first, *answer = text.to_tuple()
    hints: asyncio.Queue[Hint] = asyncio.Queue()
    generation = Generation(
        EngineRequest(Prefix((first,)), 1), on_cancel=lambda: None, on_hint=hints.put_nowait
    )
    # Twice as many as may wait are one run, and so one hint.
    request = EngineRequest(Prefix((first,)), 1, delta_tokens=2 * _STEP_TOKENS)
    ahead = DraftAhead(engine, generation, request, Recorder(), max_ahead=_STEP_TOKENS, min_probability=0.0)
    ahead.confirm(answer)
    num_generated = len(answer)

    async def run() -> None:
        nonlocal num_generated
        hint = await hints.get()
        new = hint.tokens[num_generated - hint.start :]
        ahead.confirm(new)
        num_generated += len(new)

    cost = await timed(engine, len(text), "run", repeats, run)
    await ahead.close()
    return cost


async def measure(lengths: Sequence[int], repeats: int) -> list[Cost]:
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder), max(lengths) + _ROOM)
        settings = EngineSettings(
            model=folder, device="cpu", dtype="float32", cache_tokens=2 * (max(lengths) + _ROOM)
        )
        engine = create_engine("target", settings)
        await engine.start()
        try:
            costs: list[Cost] = []
            for length in lengths:
                tokens = np.random.default_rng(length).integers(100, 1000, length).tolist()
                await engine.reset_prefix_cache()
                text = Prefix(tuple(tokens))
                costs.append(await steps_after(engine, text, repeats))
                costs.append(await scores_after(engine, text, repeats))
                costs.append(await runs_ahead(engine, text, repeats))
            return costs
        finally:
            await engine.close()


def table(costs: Sequence[Cost]) -> str:
    kinds = list(dict.fromkeys(cost.kind for cost in costs))
    lines = [f"{'tokens':>8}" + "".join(f"{kind + ' pass':>12}{kind + ' host':>12}" for kind in kinds)]
    for length in dict.fromkeys(cost.length for cost in costs):
        row = [cost for cost in costs if cost.length == length]
        lines.append(f"{length:>8}" + "".join(f"{cost.pass_ms:12.2f}{cost.host_ms:12.2f}" for cost in row))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 4000, 16_000, 64_000])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    options = parser.parse_args()
    costs = asyncio.run(measure(options.lengths, options.repeats))
    output = json.dumps([asdict(cost) for cost in costs]) if options.json else table(costs)
    sys.stdout.write(f"{output}\n")


if __name__ == "__main__":
    main()
