"""Strategies that judge or route steps, on the real pair: real engines in their own processes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reason_spec.accelerator import Solution
from reason_spec.settings import load_settings
from reason_spec.sync import SyncAccelerator
from tests.strategies.embedded import ANSWERS, QUESTIONS, answer, last_number, running_requests, tokens_of


@pytest.mark.parametrize("question", QUESTIONS[:4])
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
    for question in QUESTIONS[:3]:
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
    assert num_right >= 4


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_steps_with_a_cue_are_the_targets_and_no_others(
    accelerator: SyncAccelerator, temperature: float
) -> None:
    """The pair seldom turns back; the words of its written arithmetic stand for cues here."""
    cues = {"verification": ["carry", "borrow"], "window": 64}
    num_tokens = num_written = 0
    for question in QUESTIONS[:3]:
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
