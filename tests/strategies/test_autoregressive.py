"""Whole answers with draft tokens: exact at the strict end of a rule, of loss class relaxed beyond it."""

from __future__ import annotations

import pytest

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.errors import SettingsError
from reason_spec.settings import load_settings

QUESTION = "Ana has 12 apples and buys 4 more. How many does she have?"


async def answer(**flags: object) -> Solution:
    settings = load_settings(flags={"sampling.max_tokens": 48, **flags})
    async with Accelerator.from_settings(settings) as accelerator:
        return await accelerator.answer(QUESTION)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_strict_end_of_a_rule_writes_the_targets_tokens(temperature: float) -> None:
    alone = await answer(**{"strategy.name": "autoregressive", "sampling.temperature": temperature})
    for rule, threshold in (("cascade", 0), ("lenient", 1)):
        strict = await answer(
            **{
                "strategy.name": "speculative",
                "strategy.acceptance": rule,
                "strategy.acceptance_threshold": threshold,
                "sampling.temperature": temperature,
            }
        )
        assert (strict.text, strict.loss_class) == (alone.text, "exact")


async def test_an_answer_by_a_relaxed_rule_says_so() -> None:
    relaxed = await answer(**{"strategy.name": "speculative", "strategy.acceptance": "cascade"})
    assert relaxed.loss_class == "relaxed"
    assert relaxed.recorder.target_usage.num_accepted_draft_tokens > 0
    alone = await answer(**{"strategy.name": "autoregressive", "strategy.acceptance": "cascade"})
    assert alone.loss_class == "exact"


def test_a_judge_that_is_not_there_is_named() -> None:
    settings = load_settings(flags={"strategy.name": "speculative", "strategy.acceptance": "judge"})
    with pytest.raises(SettingsError, match=r"verifier train --level token as target\.torch\.judge"):
        Accelerator.from_settings(settings)
