"""How fast lookahead is at each depth, in a time that costs nothing to wait for, against the formulas."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from typing import NamedTuple

import pytest

from reason_spec.control.formulas import asynchronous_speedup, windowed_speedup
from reason_spec.engines.script import Script
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.events import Recorder
from reason_spec.lab.virtual_time import VirtualTimeLoop
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.types import Prefix, Sampling
from reason_spec.verifiers.exact import ExactVerifier

NUM_STEPS = 120
DRAFT_COST = 0.2
STEP_TOKENS = 20
MOMENT = 0.001
"""A drafted step is there just before a pass begins, and takes part in it."""
AGREEMENT = 0.9


def agrees(place: int) -> bool:
    chance = int.from_bytes(hashlib.sha256(f"{place}".encode()).digest()[:4], "big") / 2**32
    return chance < AGREEMENT


def story(*, drafted: bool) -> Script:
    """Tell steps that are equally long; a draft goes wrong at some, and everywhere behind those."""

    def tell(text: str, sampling: Sampling) -> str:
        *told, begun = text.partition("\n")[2].split("\n\n")
        wrong = any("even" in step for step in told)
        words = ["even" if drafted and (wrong or not agrees(i)) else "odds" for i in range(NUM_STEPS)]
        tail = " on" * (STEP_TOKENS - 9)
        rest = "".join(f"step {i:03d} is {words[i]}{tail}.\n\n" for i in range(len(told), NUM_STEPS))
        return rest.removeprefix(begun)

    return tell


class Timed(NamedTuple):
    passes: float
    num_tokens: int


async def _lookahead(depth: int) -> Timed:
    target = ScriptedEngine("target", story(drafted=False), seconds_per_pass=1.0)
    draft = ScriptedEngine("draft", story(drafted=True), seconds_per_pass=DRAFT_COST - MOMENT)
    await target.start()
    await draft.start()
    prompt = Prefix(target.tokenizer.encode("q\n"))
    # Without hints a target step takes as long whatever its draft is, as the formulas assume.
    config = StrategySettings(depth=depth, use_hint=False, token_drafter="none")
    strategy = Lookahead(config, target, draft, ExactVerifier())
    begun, num_tokens = asyncio.get_running_loop().time(), 0
    async with aclosing(strategy.solve(SolveRequest("q", prompt, prompt, 10_000), Recorder())) as steps:
        async for step in steps:
            num_tokens += len(step.tokens)
    passes = asyncio.get_running_loop().time() - begun
    await target.close()
    await draft.close()
    return Timed(passes, num_tokens)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_lookahead_is_as_fast_as_the_formula_of_a_waiting_draft_says(depth: int) -> None:
    """The planner goes by that one; theorem 2 promises up to a seventh more."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        timed = runner.run(_lookahead(depth))
    speedup = timed.num_tokens / timed.passes
    rate = sum(map(agrees, range(NUM_STEPS))) / NUM_STEPS
    assert speedup == pytest.approx(windowed_speedup(rate, depth, DRAFT_COST), rel=0.04)
    assert speedup < 0.93 * asynchronous_speedup(rate, depth + 1, DRAFT_COST)
