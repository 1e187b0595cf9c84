"""Who goes first where an engine cannot run all: steps near to the first undecided one of their answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import reason_spec.pair
from reason_spec.accelerator import Accelerator
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import StrategySettings, load_settings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import solve

SAMPLE = Path(reason_spec.pair.__file__).parent / "sample.jsonl"
QUESTIONS = [json.loads(line)["question"] for line in SAMPLE.read_text().splitlines()]
OLD = 10
NUM_LOADERS = 8
NUM_LOAD_ANSWERS = 40


class Watched(ScriptedEngine):
    """Keeps all it was asked for."""

    asked: list[Generation]

    def submit(self, request: EngineRequest) -> Generation:
        generation = super().submit(request)
        self.asked = [*getattr(self, "asked", []), generation]
        return generation


def test_steps_nearer_to_the_first_undecided_one_go_first_whatever_was_written_before() -> None:
    engines: list[Watched] = []

    def lookahead(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        assert isinstance(target, Watched)
        engines.append(target)
        return Lookahead(StrategySettings(depth=2, use_hint=False), target, draft, ExactVerifier())

    story = StoryScript(1, num_steps=8)
    solve(lookahead, story, story, target_kind=Watched, target_seconds=0.002)
    asked = engines[0].asked
    assert len(asked) > 5
    assert {generation.request.priority for generation in asked} == {0, 1, 2}
    # What was begun ahead and became certain before it was over counts as certain from then on.
    assert any(generation.priority == 0 < generation.request.priority for generation in asked)


async def test_a_certain_step_of_an_old_answer_does_not_wait_for_new_answers_without_end() -> None:
    """Answers that keep arriving at a target with two places."""
    flags = {
        "target.max_running": 2,
        "verifier.name": "exact",
        "strategy.name": "lookahead",
        "strategy.depth": 3,
        "strategy.planner": False,
        "load_control.use": "off",
    }
    accelerator = Accelerator.from_settings(load_settings(flags=flags))
    num_answered, is_over = 0, asyncio.Event()

    async def answer_others() -> None:
        nonlocal num_answered
        while not is_over.is_set():
            question = QUESTIONS[num_answered % OLD]
            async with aclosing(accelerator.solve(question)) as steps:
                async for _ in steps:
                    if is_over.is_set():
                        return
            num_answered += 1
            if num_answered == NUM_LOAD_ANSWERS:
                is_over.set()

    async with accelerator:
        loaders: list[asyncio.Task[None]] = []
        async with aclosing(accelerator.solve(QUESTIONS[OLD])) as steps:
            num_steps = 0
            async for _ in steps:
                num_steps += 1
                if num_steps == 1:
                    loaders = [asyncio.create_task(answer_others()) for _ in range(NUM_LOADERS)]
        others_meanwhile = num_answered
        is_over.set()
        await asyncio.gather(*loaders)
    assert num_steps > 4
    assert others_meanwhile < NUM_LOAD_ANSWERS
