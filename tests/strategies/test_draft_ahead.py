"""Runs ahead of a generation share what stands before them, and leave nothing when they are over."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from reason_spec.engines.generation import Delta, EngineRequest, Generation
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import StrategySettings
from reason_spec.strategies.autoregressive import DraftModelSpeculation
from reason_spec.strategies.draft_ahead import DRAFT_RUN_TOKENS
from reason_spec.types import Prefix, Sampling
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import PROMPT, autoregressive, solve

pytestmark = pytest.mark.usefixtures("quick_collections")


@pytest.mark.parametrize("agreement", [1.0, 0.5])
def test_what_runs_hold_grows_with_the_answer_and_not_with_its_square(agreement: float) -> None:
    num_new = 0
    nodes: weakref.WeakSet[Prefix] = weakref.WeakSet()
    generations: list[weakref.ref[Generation]] = []
    most_alive = 0

    class Draft(DraftModelSpeculation):
        def __init__(self, target: ScriptedEngine, draft: ScriptedEngine) -> None:
            super().__init__(StrategySettings(num_draft_tokens=8), target, draft, None)
            submit = draft.submit

            def noted(request: EngineRequest) -> Generation:
                nonlocal num_new, most_alive
                for node in request.prefix.nodes():
                    if node not in nodes:
                        num_new += len(node.tokens)
                        nodes.add(node)
                generation = submit(request)
                generations.append(weakref.ref(generation))
                gc.collect()
                most_alive = max(most_alive, sum(one() is not None for one in generations))
                return generation

            draft.submit = noted  # type: ignore[method-assign]

    scripts = StoryScript(3, num_steps=40), StoryScript(3, agreement, num_steps=40)
    plain = solve(autoregressive, *scripts)
    drafted = solve(Draft, *scripts, target_seconds=0.0005)
    assert drafted.tokens == plain.tokens
    assert len(generations) > 10
    # Each token stands in a node once as certain, and now and then as one that was expected.
    assert num_new < 4 * len(drafted.tokens)
    assert most_alive < 8


@pytest.mark.parametrize("cost", [0.3, 0.4, 0.5])
def test_a_run_whose_first_token_the_target_refuses_ends_before_its_first_piece_is_complete(
    cost: float,
) -> None:
    def drafting(target: ScriptedEngine, draft: ScriptedEngine) -> DraftModelSpeculation:
        return DraftModelSpeculation(StrategySettings(num_draft_tokens=8), target, draft, None)

    scripts = StoryScript(5, num_steps=20), StoryScript(5, 0.0, num_steps=20)
    drafted = solve(drafting, *scripts, target_seconds=0.01, draft_seconds=0.01 * cost, virtual_time=True)
    assert drafted.tokens == solve(autoregressive, *scripts).tokens
    starts = {event.work for event in drafted.recorder.events if event.purpose == "ahead"}
    runs = {event.work: event for event in drafted.recorder.events if event.kind in ("written", "cancelled")}
    refused = [runs[work] for work in starts if work in runs and runs[work].text.startswith(scripts[1].other)]
    assert len(refused) >= 10
    assert all(event.kind == "cancelled" for event in refused)
    assert max(event.num_tokens for event in refused) < DRAFT_RUN_TOKENS


def test_a_draft_that_doubts_its_end_goes_on_where_the_target_does() -> None:
    begun, whole = "One two", "One two" + " and one more" * 20

    def script(text: str, sampling: Sampling) -> str:
        return whole[len(text.partition(PROMPT)[2]) :]

    def ends_early(text: str, sampling: Sampling) -> str:
        written = text.partition(PROMPT)[2]
        return begun[len(written) :] or whole[len(written) :]

    class Draft(DraftModelSpeculation):
        def __init__(self, target: ScriptedEngine, draft: ScriptedEngine) -> None:
            super().__init__(StrategySettings(num_draft_tokens=8), target, draft, None)
            submit = draft.submit

            def doubting(request: EngineRequest) -> Generation:
                generation = submit(request)
                push = generation.push

                def push_doubted(delta: Delta) -> None:
                    logprobs = [-9.0 if token in draft.tokenizer.eos_ids else 0.0 for token in delta.tokens]
                    push(replace(delta, logprobs=tuple(logprobs)))

                generation.push = push_doubted  # type: ignore[method-assign]
                return generation

            draft.submit = doubting  # type: ignore[method-assign]

    drafted = solve(Draft, script, ends_early, target_seconds=0.01, draft_seconds=0.001, virtual_time=True)
    assert drafted.text == whole
    assert drafted.recorder.target_usage.num_accepted_draft_tokens > len(drafted.tokens) / 2
