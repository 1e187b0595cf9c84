"""Both layers on the real pair: real engines in their own processes, real weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, takewhile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reason_spec.accelerator import GenerationRequest, Solution
from reason_spec.settings import Settings, load_settings
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.sync import SyncAccelerator
from reason_spec.types import Plan
from tests.strategies.embedded import QUESTIONS, answer, last_number, running_requests, tokens_of


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.sampled_from(QUESTIONS),
    depth=st.integers(1, 6),
    width=st.integers(1, 3),
    budget=st.sampled_from([1, 2, 17, 60, 200]),
    step_max_tokens=st.sampled_from([5, 512]),
    temperature=st.sampled_from([0.0, 0.0, 0.7]),
    top_p=st.sampled_from([1.0, 0.9]),
    sample=st.integers(0, 3),
    drafter=st.sampled_from(["none", "prompt_lookup"]),
    planner=st.booleans(),
)
def test_exact_lookahead_equals_the_target_alone_token_for_token(
    accelerator: SyncAccelerator,
    question: str,
    depth: int,
    width: int,
    budget: int,
    step_max_tokens: int,
    temperature: float,
    top_p: float,
    sample: int,
    drafter: str,
    planner: bool,
) -> None:
    shared: dict[str, object] = {
        "sampling__max_tokens": budget,
        "sampling__temperature": temperature,
        "sampling__top_p": top_p,
    }
    alone = answer(accelerator, question, "autoregressive", sample, **shared)
    ahead = answer(
        accelerator,
        question,
        "lookahead",
        sample,
        strategy__depth=depth,
        strategy__width=width,
        strategy__step_max_tokens=step_max_tokens,
        strategy__token_drafter=drafter,
        strategy__planner=planner,
        **shared,
    )
    assert tokens_of(ahead) == tokens_of(alone)
    assert ahead.text == alone.text
    assert (ahead.recorder.plan is not None) == planner
    assert running_requests(accelerator) == 0


def test_every_plan_writes_the_targets_answer(accelerator: SyncAccelerator) -> None:
    """Drafts of no model, draft tokens alone, and steps ahead, whichever the planner chooses."""
    planner = accelerator.accelerator.planner
    assert planner is not None
    alone = answer(accelerator, QUESTIONS[0], "autoregressive", sampling__max_tokens=80)
    for plan in (Plan(0, 0), Plan(0, 8), Plan(2, 4), Plan(3, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "plan", lambda *_, plan=plan, **_options: plan)
            planned = answer(
                accelerator, QUESTIONS[0], "lookahead", sampling__max_tokens=80, strategy__planner=True
            )
        assert tokens_of(planned) == tokens_of(alone)
        usage = planned.recorder.target_usage
        # Without the draft model earlier passes and the text draft.
        assert (usage.num_drafted_tokens > 0) == (plan.num_draft_tokens > 0 or plan.depth == 0)
        num_proposed = len(planned.recorder.verdicts) + planned.recorder.num_late_drafts
        assert (num_proposed > 0) == (plan.depth > 0)
        assert planned.recorder.plan == plan


def test_the_token_level_alone_changes_nothing(accelerator: SyncAccelerator) -> None:
    for question in QUESTIONS[:2]:
        alone = answer(accelerator, question, "autoregressive", sampling__max_tokens=80)
        for strategy in ("prompt_lookup", "speculative"):
            drafted = answer(accelerator, question, strategy, sampling__max_tokens=80)
            assert tokens_of(drafted) == tokens_of(alone)
            assert drafted.recorder.target_usage.num_passes < alone.recorder.target_usage.num_passes


def test_without_hints_the_target_guesses_from_the_text(accelerator: SyncAccelerator) -> None:
    unhinted: dict[str, Any] = {"strategy__use_hint": False, "sampling__max_tokens": 80}
    solution = answer(accelerator, QUESTIONS[0], "lookahead", **unhinted)
    assert solution.recorder.target_usage.num_drafted_tokens > 0
    silent = answer(accelerator, QUESTIONS[0], "lookahead", strategy__token_drafter="none", **unhinted)
    assert silent.recorder.target_usage.num_drafted_tokens == 0


def test_both_layers_find_work_on_the_pair(accelerator: SyncAccelerator) -> None:
    solutions = [
        answer(accelerator, question, "lookahead", sampling__max_tokens=200) for question in QUESTIONS[:6]
    ]
    verdicts = [verdict for solution in solutions for verdict in solution.recorder.verdicts]
    assert any(verdict.accepted for verdict in verdicts)
    assert not all(verdict.accepted for verdict in verdicts)
    assert sum(solution.recorder.target_usage.num_accepted_draft_tokens for solution in solutions) > 0


def test_the_first_step_can_be_the_drafts(accelerator: SyncAccelerator) -> None:
    solutions = [
        answer(accelerator, question, "lookahead", sampling__max_tokens=60) for question in QUESTIONS[:12]
    ]
    assert any(solution.steps[0].origin == "draft" for solution in solutions)


def test_the_semantic_verifier_never_accepts_another_result_than_the_targets(
    accelerator: SyncAccelerator,
) -> None:
    num_accepted = 0
    for question in QUESTIONS[:6]:
        flags: dict[str, Any] = {"verifier__name": "semantic", "sampling__max_tokens": 700}
        events = answer(accelerator, question, "lookahead", **flags).recorder.events
        written = {e.branch: e.text for e in events if e.kind == "written" and e.lane == "target"}
        for event in events:
            if event.kind == "verified" and event.verdict is not None and event.verdict.accepted:
                num_accepted += 1
                assert last_number(event.text) == last_number(written[event.branch])
    assert num_accepted > 0


def test_leaving_a_solution_leaves_no_running_work(accelerator: SyncAccelerator) -> None:
    for question in QUESTIONS[:3]:
        assert len(list(islice(accelerator.solve(question), 1))) == 1
        assert running_requests(accelerator) == 0


def test_many_solutions_at_once_are_each_the_same_as_alone(accelerator: SyncAccelerator) -> None:
    import asyncio

    async def together(questions: list[str]) -> list[Solution]:
        requests = [generator.request(question, strategy="lookahead") for question in questions]
        return await asyncio.gather(*map(generator.answer, requests))

    settings = Settings.model_validate({"verifier": {"name": "exact"}, "sampling": {"max_tokens": 60}})
    generator = replace(accelerator.accelerator.generator, settings=settings)
    batched = accelerator.run(together(QUESTIONS[:6]))
    for question, solution in zip(QUESTIONS[:6], batched, strict=True):
        alone = answer(accelerator, question, "autoregressive", sampling__max_tokens=60)
        assert tokens_of(solution) == tokens_of(alone)


LIMITED = ("autoregressive", "prompt_lookup", "speculative", "lookahead", "specreason", "scot")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.sampled_from(QUESTIONS),
    strategy=st.sampled_from(LIMITED),
    budget=st.integers(0, 60) | st.none(),
    most_steps=st.integers(0, 4) | st.none(),
)
def test_a_limit_of_the_thinking_holds_in_the_real_engines_and_an_answer_follows(
    accelerator: SyncAccelerator, question: str, strategy: str, budget: int | None, most_steps: int | None
) -> None:
    # The pair writes no tags: all of its text is thinking, up to the limit.
    closing = "The answer is "
    limit = ThinkingLimit(max_tokens=budget, max_steps=most_steps, closer="", closing=closing)
    flags = {"verifier.name": "auto", "strategy.planner": False, "sampling.max_tokens": 120}
    generator = replace(accelerator.accelerator.generator, settings=load_settings(flags=flags))
    asked = GenerationRequest(messages=({"role": "user", "content": question},), thinking=limit)
    found = accelerator.run(generator.answer(replace(asked, strategy=strategy)))
    thinking = found.thinking
    assert thinking is not None
    assert found.num_tokens <= 120
    assert budget is None or thinking.num_tokens <= budget
    assert most_steps is None or thinking.num_steps <= most_steps
    assert thinking.num_tokens == sum(map(len, _tokens_before(found, "inserted")))
    inserted = [step.text for step in found.steps if step.origin == "inserted"]
    if thinking.ended_by == "model" or (budget is None and most_steps is None):
        assert inserted == []
    else:
        assert inserted == [closing]
        assert found.text.partition(closing)[2]
    assert running_requests(accelerator) == 0
    if strategy in ("prompt_lookup", "speculative"):
        alone = accelerator.run(generator.answer(replace(asked, strategy="autoregressive")))
        assert tokens_of(found) == tokens_of(alone)


def _tokens_before(solution: Solution, origin: str) -> list[tuple[int, ...]]:
    """The tokens of the steps before the first of an origin, without the end of the text."""
    steps = list(takewhile(lambda step: step.origin != origin, solution.steps))
    return [step.tokens[: len(step.tokens) - (step.finish == "eos")] for step in steps]
