"""Early exit on the real pair: trials never change the target's text, and an answer is always there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import reason_spec.pair
from reason_spec.accelerator import Solution
from reason_spec.accelerator.thinking import ThinkingOptions
from reason_spec.settings import ExitSettings, load_settings
from reason_spec.sync import SyncAccelerator
from reason_spec.tasks.extract import find_answer

SAMPLE = Path(reason_spec.pair.__file__).parent / "sample.jsonl"
QUESTIONS = [json.loads(line)["question"] for line in SAMPLE.read_text().splitlines()[:3:2]]
STRATEGIES = ("autoregressive", "lookahead", "hybrid")


@pytest.fixture(scope="module")
def accelerator() -> Iterator[SyncAccelerator]:
    settings = load_settings(flags={"strategy.planner": False, "load_control.use": "off"})
    with SyncAccelerator.from_settings(settings, strategies=STRATEGIES) as running:
        yield running


def answer(running: SyncAccelerator, question: str, strategy: str, **values: Any) -> Solution:
    flags = {"strategy.planner": False}
    if strategy == "lookahead":
        flags["verifier.name"] = "exact"  # type: ignore[assignment]
    generator = replace(running.accelerator.generator, settings=load_settings(flags=flags))
    exits = ThinkingOptions(exit=ExitSettings.model_validate(values)) if values else ThinkingOptions()
    return running.run(generator.answer(generator.request(question, strategy=strategy, thinking=exits)))


def tokens_of(solution: Solution) -> list[int]:
    return [token for step in solution.steps for token in step.tokens]


@pytest.fixture(scope="module")
def alone(accelerator: SyncAccelerator) -> list[int]:
    """The tokens of the target's own answer to the first question."""
    return tokens_of(answer(accelerator, QUESTIONS[0], "autoregressive"))


def num_running(running: SyncAccelerator) -> int:
    engines = (running.accelerator.target, running.accelerator.draft)
    return sum(running.run(engine.stats()).num_running for engine in engines if engine is not None)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_answer_that_ends_early_has_an_answer_to_grade(
    accelerator: SyncAccelerator, strategy: str
) -> None:
    for question in QUESTIONS:
        short = answer(accelerator, question, strategy, rule="policy", threshold=0.2)
        assert short.loss_class == "shortened"
        assert find_answer(short.text, "number") is not None
        assert short.steps[-1].finish == "eos"
        found = short.recorder.early_exit
        assert found is not None
        assert found.chance >= 0.2
        assert short.steps[found.num_steps].origin == "inserted"
    assert num_running(accelerator) == 0


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead"])
@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "probes", "threshold": 1.0, "least_chance": 0.1, "agreeing": 9},
        {"rule": "probes", "threshold": 1.0, "least_chance": 0.1, "probe_by": "draft_first", "agreeing": 9},
        {"rule": "dynasor", "probe_every": 8, "agreeing": 9, "probe_prompt": "The answer is"},
    ],
)
def test_trials_leave_the_targets_tokens_as_they_are(
    accelerator: SyncAccelerator, alone: list[int], strategy: str, rule: dict[str, Any]
) -> None:
    probed = answer(accelerator, QUESTIONS[0], strategy, **rule)
    assert tokens_of(probed) == alone
    assert probed.recorder.early_exit is None
    assert probed.recorder.num_probes > 0
    assert probed.recorder.num_probe_tokens > 0
    assert num_running(accelerator) == 0


def test_trials_of_the_target_itself_end_an_answer(accelerator: SyncAccelerator) -> None:
    rule = {"rule": "dynasor", "probe_every": 8, "agreeing": 1, "probe_prompt": "The answer is"}
    short = answer(accelerator, QUESTIONS[1], "autoregressive", **rule)
    whole = answer(accelerator, QUESTIONS[1], "autoregressive")
    found = short.recorder.early_exit
    assert found is not None
    assert 0 < found.chance <= 1
    assert short.num_tokens < whole.num_tokens
    assert find_answer(short.text, "number") is not None
