"""Both layers on the real pair: real engines in their own processes, real weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reason_spec.pair
from reason_spec.accelerator import GenerationRequest, Solution
from reason_spec.settings import Settings, load_settings
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.sync import SyncAccelerator
from reason_spec.types import Plan

SAMPLE = Path(reason_spec.pair.__file__).parent / "sample.jsonl"
PROBLEMS = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
QUESTIONS = [problem["question"] for problem in PROBLEMS]
ANSWERS = [problem["answer"] for problem in PROBLEMS]


@pytest.fixture(scope="module")
def accelerator() -> Iterator[SyncAccelerator]:
    with SyncAccelerator.from_settings(
        load_settings(flags={"verifier.name": "exact"}), strategies=("autoregressive", "lookahead")
    ) as running:
        yield running


def answer(running: SyncAccelerator, question: str, strategy: str, sample: int = 0, **flags: Any) -> Solution:
    """Answer under other settings than the engines were started with; engines do not mind."""
    names = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load_settings(flags={"verifier.name": "exact", "strategy.planner": False, **names})
    generator = replace(running.accelerator.generator, settings=settings)
    return running.run(generator.answer(generator.request(question, strategy=strategy, sample=sample)))


def tokens_of(solution: Solution) -> list[int]:
    return [token for step in solution.steps for token in step.tokens]


def running_requests(running: SyncAccelerator) -> int:
    engines = (running.accelerator.target, running.accelerator.draft)
    return sum(running.run(engine.stats()).num_running for engine in engines if engine is not None)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    """Plain decoding, drafts of tokens alone, and steps ahead, whichever the planner chooses."""
    planner = accelerator.accelerator.planner
    assert planner is not None
    alone = answer(accelerator, QUESTIONS[0], "autoregressive", sampling__max_tokens=120)
    for plan in (Plan(0, 0), Plan(0, 8), Plan(2, 4), Plan(3, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "plan", lambda *_, plan=plan: plan)
            planned = answer(
                accelerator, QUESTIONS[0], "lookahead", sampling__max_tokens=120, strategy__planner=True
            )
        assert tokens_of(planned) == tokens_of(alone)
        usage = planned.recorder.target_usage
        assert (usage.num_drafted_tokens > 0) == (plan.num_draft_tokens > 0)
        assert bool(planned.recorder.verdicts) == (plan.depth > 0)
        assert planned.recorder.plan == plan


def test_the_token_level_alone_changes_nothing(accelerator: SyncAccelerator) -> None:
    for question in QUESTIONS[:4]:
        alone = answer(accelerator, question, "autoregressive", sampling__max_tokens=80)
        for strategy in ("prompt_lookup", "speculative"):
            drafted = answer(accelerator, question, strategy, sampling__max_tokens=80)
            assert tokens_of(drafted) == tokens_of(alone)
            assert drafted.recorder.target_usage.num_passes < alone.recorder.target_usage.num_passes


def test_without_hints_the_target_guesses_from_the_text(accelerator: SyncAccelerator) -> None:
    solution = answer(accelerator, QUESTIONS[0], "lookahead", strategy__use_hint=False)
    assert solution.recorder.target_usage.num_drafted_tokens > 0
    silent = answer(
        accelerator, QUESTIONS[0], "lookahead", strategy__use_hint=False, strategy__token_drafter="none"
    )
    assert silent.recorder.target_usage.num_drafted_tokens == 0


def test_both_layers_find_work_on_the_pair(accelerator: SyncAccelerator) -> None:
    solutions = [
        answer(accelerator, question, "lookahead", sampling__max_tokens=200) for question in QUESTIONS[:6]
    ]
    verdicts = [verdict for solution in solutions for verdict in solution.recorder.verdicts]
    assert any(verdict.accepted for verdict in verdicts)
    assert not all(verdict.accepted for verdict in verdicts)
    assert sum(solution.recorder.target_usage.num_accepted_draft_tokens for solution in solutions) > 0
    assert sum(solution.recorder.target_usage.num_passes for solution in solutions) > 0


def test_the_first_step_can_be_the_drafts(accelerator: SyncAccelerator) -> None:
    solutions = [
        answer(accelerator, question, "lookahead", sampling__max_tokens=60) for question in QUESTIONS[:12]
    ]
    assert any(solution.steps[0].origin == "draft" for solution in solutions)


def last_number(text: str) -> str:
    number: str = re.findall(r"\d+", text)[-1]
    return number


def test_the_semantic_verifier_never_accepts_another_result_than_the_targets() -> None:
    flags = {"verifier.name": "semantic", "sampling.max_tokens": 700, "strategy.planner": False}
    semantic = load_settings(flags=flags)
    num_accepted = 0
    with SyncAccelerator.from_settings(semantic) as running:
        for question in QUESTIONS[:6]:
            events = running.answer(question).recorder.events
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


@pytest.mark.parametrize("question", QUESTIONS[:6])
def test_where_only_greedy_steps_are_likely_enough_the_answer_is_the_targets(
    accelerator: SyncAccelerator, question: str
) -> None:
    """Steps judged alone, mended and compared: with the strictest threshold nothing else may stand."""
    alone = answer(accelerator, question, "autoregressive")
    strict: dict[str, Any] = {
        "verifier__name": "likelihood+exact",
        "verifier__thresholds": {"likelihood": 1.0},
    }
    written = answer(accelerator, question, "hybrid", **strict)
    assert tokens_of(written) == tokens_of(alone)
    assert any(step.origin == "draft" for step in written.steps)
    assert running_requests(accelerator) == 0


def test_the_target_writes_next_to_nothing_where_drafted_steps_are_likely(
    accelerator: SyncAccelerator,
) -> None:
    num_tokens = num_written = num_passes = 0
    for question in QUESTIONS[:6]:
        written = answer(accelerator, question, "hybrid", verifier__name="likelihood+semantic")
        num_tokens += len(tokens_of(written))
        num_written += written.recorder.target_usage.num_generated_tokens
        num_passes += written.recorder.target_usage.num_passes
        assert written.loss_class == "routed"
    assert num_written < 0.3 * num_tokens
    assert num_passes < 0.15 * num_tokens


def test_under_arbitrage_the_target_works_for_what_is_escalated_alone(accelerator: SyncAccelerator) -> None:
    question = QUESTIONS[0]
    drafted = answer(accelerator, question, "arbitrage", router__name="draft")
    assert drafted.recorder.target_usage.num_passes == 0
    assert {step.origin for step in drafted.steps} == {"draft"}
    written = answer(accelerator, question, "arbitrage", router__name="target")
    assert tokens_of(written) == tokens_of(answer(accelerator, question, "autoregressive"))
    doubted = answer(accelerator, question, "arbitrage", router__name="threshold", router__threshold=0.2)
    of_target = sum(len(step.tokens) for step in doubted.steps if step.origin == "target")
    assert doubted.recorder.target_usage.num_generated_tokens >= of_target
    assert running_requests(accelerator) == 0


def test_a_trained_router_escalates_the_doubtful_steps_by_itself(accelerator: SyncAccelerator) -> None:
    written = [answer(accelerator, question, "arbitrage") for question in QUESTIONS[:6]]
    verdicts = [verdict for solution in written for verdict in solution.recorder.verdicts]
    assert {verdict.decision for verdict in verdicts} == {"accept", "reject"}
    assert all(verdict.reason.startswith("learned: score") for verdict in verdicts)
    num_tokens = sum(len(tokens_of(solution)) for solution in written)
    num_written = sum(solution.recorder.target_usage.num_generated_tokens for solution in written)
    assert 0 < num_written < num_tokens
    assert running_requests(accelerator) == 0


def test_the_entropy_before_a_step_divides_the_work_between_the_models(accelerator: SyncAccelerator) -> None:
    question = QUESTIONS[1]

    def routed(threshold: float) -> Solution:
        return answer(accelerator, question, "arbitrage", router__name="glimp", router__threshold=threshold)

    drafted, written = routed(1.0), routed(0.0)
    doubts = sorted(1 - verdict.score for verdict in drafted.recorder.verdicts if verdict.score is not None)
    mixed = routed(doubts[len(doubts) // 2])
    assert {step.origin for step in drafted.steps} == {"draft"}
    assert tokens_of(written) == tokens_of(answer(accelerator, question, "autoregressive"))
    assert {step.origin for step in mixed.steps} == {"draft", "target"}
    for solution in (drafted, mixed, written):
        assert solution.recorder.target_usage.num_generated_tokens == written_by(solution, "target")
        assert all(verdict.decision != "unknown" for verdict in solution.recorder.verdicts)


def sampled(temperature: float) -> dict[str, Any]:
    if temperature == 0:
        return {}
    return {"sampling__temperature": temperature, "sampling__top_p": 0.95, "sampling__top_k": 20}


def written_by(solution: Solution, origin: str) -> int:
    return sum(len(step.tokens) for step in solution.steps if step.origin == origin)


@pytest.mark.parametrize("strategy", ["specreason", "hybrid", "arbitrage", "rsd"])
def test_steps_judged_alone_are_sampled_as_any_others(accelerator: SyncAccelerator, strategy: str) -> None:
    for sample in (0, 1):
        flags = {"verifier__name": "auto", **sampled(0.6)}
        solution = answer(accelerator, QUESTIONS[1], strategy, sample, **flags)
        assert solution.steps[-1].ends_text
        assert "The answer is" in solution.text
    assert running_requests(accelerator) == 0


def test_under_atts_the_target_writes_the_steps_that_surprise_it_most(accelerator: SyncAccelerator) -> None:
    flags = {"verifier__name": "auto", "verifier__threshold": 0.4, **sampled(0.6)}
    solutions = [
        answer(accelerator, question, "atts", sample, **flags)
        for question in QUESTIONS[:4]
        for sample in (0, 1)
    ]
    verdicts = [verdict for solution in solutions for verdict in solution.recorder.verdicts]
    decisions = [verdict.decision for verdict in verdicts]
    num_unknown = decisions.count("unknown")
    num_rejected, num_accepted = decisions.count("reject"), decisions.count("accept")
    assert num_unknown > 0
    assert 0 < num_rejected < num_accepted
    for solution in solutions:
        assert solution.steps[-1].ends_text
        by_target = [step for step in solution.steps if step.origin == "target"]
        assert all(step.verdict is None or not step.verdict.accepted for step in by_target)
        assert solution.recorder.target_usage.num_generated_tokens == written_by(solution, "target")
    assert running_requests(accelerator) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_under_ssr_one_of_several_directions_is_the_answer(
    accelerator: SyncAccelerator, temperature: float
) -> None:
    flags = {"verifier__name": "likelihood", "strategy__width": 2, **sampled(temperature)}
    for question in QUESTIONS[:2]:
        solution = answer(accelerator, question, "ssr", sampling__max_tokens=200, **flags)
        opening, *rest = solution.steps
        assert opening.origin == "inserted"
        assert opening.text.strip() in load_settings().strategy.directions
        assert {step.origin for step in rest} <= {"draft", "target"}
        usage = solution.recorder.target_usage
        # Tokens past the end of a step are discarded without having been counted as generated.
        least = usage.num_generated_tokens - usage.num_discarded_tokens
        assert least <= written_by(solution, "target") <= usage.num_generated_tokens
        assert running_requests(accelerator) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_under_scot_the_target_writes_the_end_of_what_it_picks(
    accelerator: SyncAccelerator, temperature: float
) -> None:
    num_picked = num_right = 0
    for question, reference in zip(QUESTIONS[:6], ANSWERS, strict=False):
        flags: dict[str, Any] = {
            "verifier__name": "likelihood",
            # At the default a chain is seldom picked.
            "verifier__thresholds": {"likelihood": 0.9},
            "sampling__max_tokens": 700,
            **sampled(temperature),
        }
        solution = answer(accelerator, question, "scot", **flags)
        usage = solution.recorder.target_usage
        assert usage.num_generated_tokens == written_by(solution, "target")
        assert solution.recorder.draft_usage.num_discarded_tokens > 0
        num_right += last_number(solution.text) == reference
        if solution.steps[0].origin == "draft":
            num_picked += 1
            assert {step.origin for step in solution.steps[:-1]} == {"draft"}
            assert solution.steps[-1].origin == "target"
            assert usage.num_generated_tokens < 0.2 * len(tokens_of(solution))
        assert running_requests(accelerator) == 0
    assert num_picked >= 2
    assert num_right >= 5


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_steps_with_a_cue_are_the_targets_and_no_others(
    accelerator: SyncAccelerator, temperature: float
) -> None:
    """The pair seldom turns back; the words of its written arithmetic stand for cues here."""
    cues = {"verification": ["carry", "borrow"], "window": 64}
    num_tokens = num_written = 0
    for question in QUESTIONS[:6]:
        flags: dict[str, Any] = {"strategy__cues": cues, "sampling__max_tokens": 700, **sampled(temperature)}
        solution = answer(accelerator, question, "speculative_thinking", **flags)
        drafted = [step.text for step in solution.steps if step.origin == "draft"]
        assert not any(re.search("carry|borrow", text) for text in drafted)
        num_tokens += len(tokens_of(solution))
        num_written += solution.recorder.target_usage.num_generated_tokens
        assert solution.loss_class == "routed"
        assert running_requests(accelerator) == 0
    assert 0 < num_written < 0.7 * num_tokens


def test_without_a_cue_the_answer_is_the_drafts(accelerator: SyncAccelerator) -> None:
    thought = answer(accelerator, QUESTIONS[0], "speculative_thinking")
    assert thought.recorder.target_usage.num_passes == 0
    assert tokens_of(thought) == tokens_of(
        answer(accelerator, QUESTIONS[0], "arbitrage", router__name="draft")
    )


def test_a_reminder_is_put_in_between_steps_and_counted_as_nobodys(accelerator: SyncAccelerator) -> None:
    cues = {"verification": ["carry", "borrow"], "window": 64, "remind_after": 1}
    solution = answer(accelerator, QUESTIONS[0], "speculative_thinking", strategy__cues=cues)
    origins = [step.origin for step in solution.steps]
    assert origins[origins.index("inserted") + 1] == "target"
    others = written_by(solution, "draft") + written_by(solution, "inserted")
    assert len(tokens_of(solution)) == written_by(solution, "target") + others
    # Abandoned behind the sentence: what was begun ahead without it.
    assert solution.recorder.target_usage.num_generated_tokens >= written_by(solution, "target")
    assert running_requests(accelerator) == 0


LIMITED = ("autoregressive", "prompt_lookup", "speculative", "lookahead", "specreason", "scot")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    if thinking.ended_by == "model":
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
