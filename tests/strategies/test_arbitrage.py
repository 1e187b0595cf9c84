"""The target writes what the router escalates, and does nothing for any other step."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import pytest

from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.routers.base import Router, StepRoute
from reason_spec.routers.features import StepFeatures
from reason_spec.settings import StrategySettings
from reason_spec.strategies.arbitrage import Arbitrage
from reason_spec.strategies.base import Strategy
from reason_spec.types import Sampling
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import PROMPT, autoregressive, solve


class Sees(Router):
    """Escalates the steps with these indexes, and keeps what it was told."""

    name = "sees"

    def __init__(self, *escalated: int) -> None:
        super().__init__(0.5)
        self.escalated = escalated
        self.seen: list[StepFeatures] = []

    def score(self, features: StepFeatures) -> float:
        self.seen.append(features)
        return float(features.step_index in self.escalated)


def arbitrage(router: Router) -> Callable[[ScriptedEngine, ScriptedEngine], Strategy]:
    return lambda target, draft: Arbitrage(StrategySettings(), target, draft, None, router=router)


def test_the_target_does_nothing_for_a_step_that_stands() -> None:
    scripts = StoryScript(5), StoryScript(5, 0.5)
    outcome = solve(arbitrage(Sees()), *scripts)
    assert outcome.text == solve(autoregressive, scripts[1], scripts[1]).text
    usage = outcome.recorder.target_usage
    assert (usage.num_passes, usage.num_generated_tokens, usage.num_scored_tokens) == (0, 0, 0)


def test_where_everything_is_escalated_the_answer_is_the_targets() -> None:
    scripts = StoryScript(5), StoryScript(5, 0.5)
    outcome = solve(arbitrage(Sees(*range(50))), *scripts)
    assert outcome.tokens == solve(autoregressive, *scripts).tokens
    assert {step.origin for step in outcome.steps} == {"target"}
    assert outcome.left_running == 0


def test_only_what_is_escalated_is_the_targets() -> None:
    outcome = solve(arbitrage(Sees(1, 3)), StoryScript(7), StoryScript(7))
    assert [step.origin for step in outcome.steps[:5]] == ["draft", "target", "draft", "target", "draft"]
    written = sum(len(step.tokens) for step in outcome.steps if step.origin == "target")
    assert outcome.recorder.target_usage.num_generated_tokens == written


@pytest.mark.parametrize("other_tokens", [False, True])
def test_a_router_is_told_what_the_draft_knew(other_tokens: bool) -> None:
    router = Sees()
    tokenizer = ScriptedTokenizer(r"\n+|\w+|\s|.") if other_tokens else None
    outcome = solve(arbitrage(router), StoryScript(7), StoryScript(7), draft_tokenizer=tokenizer)
    first = router.seen[0]
    assert first.step_index == 0
    assert first.num_digits >= 1
    assert first.num_prefix_tokens > 0
    assert first.key.endswith(outcome.steps[0].text)
    assert [features.step_index for features in router.seen] == list(range(len(outcome.steps)))


@pytest.mark.parametrize("other_tokens", [False, True])
def test_a_router_sees_the_digits_of_the_step_that_states_the_answer(other_tokens: bool) -> None:
    def script(text: str, sampling: Sampling) -> str:
        return "So it is 42."[len(text.partition(PROMPT)[2]) :]

    router = Sees()
    tokenizer = ScriptedTokenizer(r"\n+|\w+|\s|.") if other_tokens else None
    solve(arbitrage(router), script, script, draft_tokenizer=tokenizer)
    assert router.seen[-1].ends_text
    assert router.seen[-1].num_digits >= 1


def test_a_router_that_breaks_leaves_the_step_to_the_target() -> None:
    class Breaks(Sees):
        def route(self, features: StepFeatures) -> StepRoute:
            raise ZeroDivisionError("a broken router")

    scripts = StoryScript(5), StoryScript(5, 0.5)
    outcome = solve(arbitrage(Breaks()), *scripts)
    assert outcome.tokens == solve(autoregressive, *scripts).tokens


class Unsure(Sees):
    """Finds no score."""

    def score(self, features: StepFeatures) -> float:
        return nan


def test_a_step_without_a_score_is_the_targets() -> None:
    outcome = solve(arbitrage(Unsure()), StoryScript(7), StoryScript(7))
    assert {step.origin for step in outcome.steps} == {"target"}
