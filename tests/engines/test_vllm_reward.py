"""Reward models on real vLLM servers: the rewards are those of transformers' own forward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from reason_spec.engines.vllm.arguments import installed_version
from reason_spec.errors import EngineError
from reason_spec.settings import VerifierSettings
from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import VerificationContext, create_verifier
from tests.engines.serving import Serving, vllm_serve, wait_until_ready
from tests.verifiers.reward_folders import (
    STEP_TOKEN,
    outcome_reward,
    process_reward,
    save_process_reward_model,
    save_sequence_classifier,
    step_token_id,
)

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed; `make cpu` installs it"),
    pytest.mark.timeout(600),
]
QUESTION = "How many apples does Ana have?"
BEFORE = "Ana has 3.\n\n"
STEPS = ("Then 4 more.\n\n", "3 + 4 = 7 é.\n \n", "So 7.")


class Served(NamedTuple):
    outcome: Serving
    outcome_folder: Path
    process: Serving
    process_folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("reward")
    outcome, process = (
        save_sequence_classifier(folder / "outcome", 1),
        save_process_reward_model(folder / "process"),
    )
    pooler = json.dumps({"step_tag_id": step_token_id(process)})
    with ExitStack() as stack:
        started = [
            stack.enter_context(vllm_serve(folder / f"{name.name}.log", name, "--runner", "pooling", *more))
            for name, more in ((outcome, ()), (process, ("--pooler-config", pooler)))
        ]
        for serving, name in zip(started, ("outcome", "process"), strict=True):
            wait_until_ready(serving, folder / f"{name}.log")
        yield Served(started[0], outcome, started[1], process)


async def verdicts(settings: VerifierSettings) -> list[Verdict]:
    verifier = create_verifier("reward", settings)
    await verifier.start()
    try:
        context = VerificationContext(QUESTION, BEFORE)
        steps = [Step(text, (1,), "draft", "boundary") for text in STEPS]
        return list(await asyncio.gather(*(verifier.verify(context, step) for step in steps)))
    finally:
        await verifier.close()


async def test_a_served_sequence_classifier_rates_as_transformers_does(served: Served) -> None:
    told = await verdicts(VerifierSettings(reward_url=(served.outcome.url,), deadline=60))
    expected = [outcome_reward(served.outcome_folder, QUESTION, BEFORE + step) for step in STEPS]
    assert [verdict.score for verdict in told] == pytest.approx(expected, abs=1e-3)
    assert len({round(reward, 3) for reward in expected}) == len(STEPS)
    assert {verdict.decision for verdict in told} <= {"accept", "reject"}


async def test_a_served_process_reward_model_is_read_at_the_last_step_token(served: Served) -> None:
    told = await verdicts(
        VerifierSettings(reward_url=(served.process.url,), reward_step_token=STEP_TOKEN, deadline=60)
    )
    marked = [f"Ana has 3.{STEP_TOKEN}{step.strip()}{STEP_TOKEN}" for step in STEPS]
    expected = [process_reward(served.process_folder, QUESTION, answer) for answer in marked]
    assert [verdict.score for verdict in told] == pytest.approx(expected, abs=1e-3)
    assert len({round(reward, 3) for reward in expected}) == len(STEPS)


async def test_what_a_server_cannot_rate_is_said_at_the_start(served: Served) -> None:
    with pytest.raises(EngineError, match=r"answered 404.*pooling task classify"):
        await verdicts(VerifierSettings(reward_url=(served.process.url,)))
    with pytest.raises(EngineError, match=r"is no token of"):
        await verdicts(VerifierSettings(reward_url=(served.outcome.url,), reward_step_token="<nothing>"))
    with pytest.raises(EngineError, match=r"pooler-config.*pooling task token_classify"):
        await verdicts(VerifierSettings(reward_url=(served.outcome.url,), reward_step_token=STEP_TOKEN))
    with pytest.raises(EngineError, match=r"no model 'mine'; it has .*outcome"):
        await verdicts(VerifierSettings(reward_url=(served.outcome.url,), reward_model="mine"))


async def test_a_text_that_is_too_long_is_unknown_in_the_servers_words(served: Served) -> None:
    verifier = create_verifier("reward", VerifierSettings(reward_url=(served.outcome.url,), deadline=60))
    try:
        verdict = await verifier.verify(
            VerificationContext(QUESTION), Step("3 + 4. " * 200, (1,), "draft", "boundary")
        )
    finally:
        await verifier.close()
    assert verdict.decision == "unknown"
    assert "answered 400" in verdict.reason
    assert "512" in verdict.reason
