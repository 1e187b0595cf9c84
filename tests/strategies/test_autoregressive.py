"""Whole answers with draft tokens: exact at the strict end of a rule, of loss class relaxed beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.errors import SettingsError
from reason_spec.settings import StrategySettings, load_settings
from reason_spec.strategies.autoregressive import (
    DraftModelSpeculation,
    PromptLookup,
    SelfSpeculation,
    TokenRecycling,
)
from reason_spec.sync import SyncAccelerator
from reason_spec.types import TokenDrafterName

QUESTION = "Ana has 12 apples and buys 4 more. How many does she have?"


@pytest.fixture(scope="module")
def accelerator() -> Iterator[SyncAccelerator]:
    with SyncAccelerator.from_settings(
        load_settings(flags={"strategy.planner": False, "load_control.use": "off"}),
        strategies=("autoregressive", "speculative"),
    ) as running:
        yield running


def answer(running: SyncAccelerator, strategy: str, tenant: str, **flags: object) -> Solution:
    """Answer under other settings; what other tenants were answered drafts nothing."""
    names = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load_settings(flags={"strategy.name": strategy, "sampling.max_tokens": 48, **names})
    generator = replace(running.accelerator.generator, settings=settings)
    return running.run(generator.answer(generator.request(QUESTION, tenant=tenant)))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (PromptLookup, "prompt_lookup"),
        (TokenRecycling, "recycling"),
        (DraftModelSpeculation, "recycling"),
        (SelfSpeculation, "prompt_lookup"),
    ],
)
def test_a_strategy_has_a_token_drafter_of_its_own_unless_one_is_named(
    accelerator: SyncAccelerator, kind: type[PromptLookup], default: TokenDrafterName
) -> None:
    target, draft = accelerator.accelerator.target, accelerator.accelerator.draft
    assert kind(StrategySettings(), target, draft, None).token_drafter == default
    assert kind(StrategySettings(token_drafter="stand"), target, draft, None).token_drafter == "stand"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_strict_end_of_a_rule_writes_the_targets_tokens(
    accelerator: SyncAccelerator, temperature: float
) -> None:
    drawn = {"sampling__temperature": temperature}
    alone = answer(accelerator, "autoregressive", f"alone at {temperature}", **drawn)
    for rule, threshold in (("cascade", 0), ("lenient", 1)):
        ruled = {"strategy__acceptance": rule, "strategy__acceptance_threshold": threshold}
        strict = answer(accelerator, "speculative", f"{rule} at {temperature}", **ruled, **drawn)
        assert (strict.text, strict.loss_class) == (alone.text, "exact")


def test_an_answer_by_a_relaxed_rule_says_so(accelerator: SyncAccelerator) -> None:
    relaxed = answer(accelerator, "speculative", "relaxed", strategy__acceptance="cascade")
    assert relaxed.loss_class == "relaxed"
    assert relaxed.recorder.target_usage.num_accepted_draft_tokens > 0
    alone = answer(accelerator, "autoregressive", "by itself", strategy__acceptance="cascade")
    assert alone.loss_class == "exact"


def test_a_judge_that_is_not_there_is_named() -> None:
    settings = load_settings(flags={"strategy.name": "speculative", "strategy.acceptance": "judge"})
    with pytest.raises(SettingsError, match=r"verifier train --level token as target\.torch\.judge"):
        Accelerator.from_settings(settings)
