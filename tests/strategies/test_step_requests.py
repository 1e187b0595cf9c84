"""A drafted step that continues a corrected one is a whole step, and ends where its stop begins."""

from __future__ import annotations

import asyncio

import pytest

from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import StrategySettings
from reason_spec.strategies.answer_work import TimelineRow
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.branch import Branch
from reason_spec.strategies.step_requests import StepRequests
from reason_spec.strategies.step_tokens import step_from_result
from reason_spec.types import Prefix, Sampling, Step
from tests.strategies.solving import PROMPT

BEFORE, STEP = "Well.\n\n", "Go on now: 3"


@pytest.mark.parametrize("num_corrected", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("stop", "left", "num_in_steps_before"),
    [(" on now:", "Go", 0), ("now:", "Go on ", 0), ("l.\n\nGo on now:", "", 4), ("never", STEP, 0)],
)
async def test_a_stop_that_begins_in_the_corrected_part_is_cut_off(
    num_corrected: int, stop: str, left: str, num_in_steps_before: int
) -> None:
    def script(text: str, sampling: Sampling) -> str:
        return f"{BEFORE}{STEP}"[len(text.partition(PROMPT)[2]) :]

    engine = ScriptedEngine("draft", script)
    await engine.start()
    try:
        prompt = Prefix(engine.tokenizer.encode(f"{PROMPT}{BEFORE}"))
        request = SolveRequest("question", prompt, prompt, 99, stops=(stop,), text_before=BEFORE)
        decision: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        branch = Branch(TimelineRow(1, 0), request, None, decision, 0, False)
        requests = StepRequests(StrategySettings(), engine, engine, redrafts=True)
        step_prefix = engine.tokenizer.encode(STEP)[:num_corrected]
        asked = requests.request("draft", branch, Sampling(), step_prefix)
        result = await engine.submit(asked).result()
        step = requests.for_target(step_from_result(result, "draft", engine), step_prefix)
    finally:
        await engine.close()
    assert (step.text, step.num_stop_overlap) == (left, num_in_steps_before)
    assert engine.tokenizer.decode(step.tokens) == (STEP if left == STEP else "Go on now:")
