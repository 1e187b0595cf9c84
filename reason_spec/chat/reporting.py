"""The end of an answer: why it ended, its tokens and the report about speculation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatEnd, ChatFinish, SpeculationReport
from reason_spec.chat.generation import GenerationStream
from reason_spec.chat.policy import AnswerStrategies
from reason_spec.segment import StopScanner
from reason_spec.strategies.step_tokens import step_for
from reason_spec.strategies.thinking import num_text_tokens
from reason_spec.types import Usage

_ALONE = 1.5
"""Mean tokens of a pass below which it counts as a pass of one token."""


def end_of(
    accelerator: Accelerator,
    num_prompt_tokens: int,
    strategies: AnswerStrategies,
    *,
    thinking: GenerationStream | None,
    answer: Sequence[GenerationStream],
    num_calls: int,
    stop: str | None,
    started: float,
) -> ChatEnd:
    """Return the end of an answer, from its thinking and the generations after it.

    Args:
        stop: the stop string that was found outside of the engines, None where none was.
    """
    generations = [*([thinking] if thinking else []), *answer]
    tokenizer = accelerator.target.tokenizer
    num_reasoning_tokens = (
        sum(num_text_tokens(step_for(step, accelerator.target), tokenizer) for step in thinking.steps)
        if thinking
        else 0
    )
    num_tokens = sum(len(generation.tokens) for generation in generations)
    finish = _finish(generations, stop, is_thinking=not answer, num_calls=num_calls)
    return ChatEnd(
        finish=finish,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_tokens,
        num_reasoning_tokens=num_reasoning_tokens,
        num_cached_tokens=_num_cached(generations[0], num_prompt_tokens),
        report=_report(accelerator, strategies, generations, num_tokens, started),
        stop=stop or (_stop(accelerator, answer[-1]) if answer else None),
    )


def _finish(
    generations: Sequence[GenerationStream], stop: str | None, *, is_thinking: bool, num_calls: int
) -> ChatFinish:
    last = generations[-1]
    # A stop without an answer ended the thinking, and no token was left for the answer.
    ends = last.finish == "eos" or (last.finish == "stop" and not is_thinking)
    if not (ends or last.is_cut_short or stop is not None):
        return "length"
    return "tool_calls" if num_calls else "stop"


def _stop(accelerator: Accelerator, generation: GenerationStream) -> str | int | None:
    """Return the stop string or the token that ended a text; None where none did."""
    if generation.stop_id is not None:
        return generation.stop_id
    stops = generation.request.stops or ()
    if generation.finish != "stop":
        return None
    hit = StopScanner(stops).feed(accelerator.target.tokenizer.decode(generation.tokens))
    if hit is not None:
        return hit.stop
    # The stop began before this text, or it was cut off from a step of another model.
    return stops[0] if len(stops) == 1 else None


def _num_cached(generation: GenerationStream, num_prompt_tokens: int) -> int:
    usage = generation.recorder.first_target_usage or Usage()
    return min(usage.num_cached_prompt_tokens, num_prompt_tokens)


def _report(
    accelerator: Accelerator,
    strategies: AnswerStrategies,
    generations: Sequence[GenerationStream],
    num_tokens: int,
    started: float,
) -> SpeculationReport:
    recorders = [generation.recorder for generation in generations]
    target_usage = sum((recorder.target_usage for recorder in recorders), Usage())
    verdicts = [verdict for recorder in recorders for verdict in recorder.verdicts]
    return SpeculationReport(
        strategy=strategies.first.name,
        loss_class=strategies.loss_class,
        exact_answer_by=strategies.answer.name if strategies.answer is not None else None,
        reason=strategies.reason,
        steps_by_origin=dict(Counter(step.origin for generation in generations for step in generation.steps)),
        alpha_step=sum(verdict.accepted for verdict in verdicts) / len(verdicts) if verdicts else None,
        alpha_token=target_usage.alpha_token,
        target_usage=target_usage,
        draft_usage=sum((recorder.draft_usage for recorder in recorders), Usage()),
        seconds=time.perf_counter() - started,
        target_alone_seconds=_alone_seconds(accelerator, num_tokens),
        verdicts=dict(Counter(verdict.decision for verdict in verdicts)),
        num_late_drafts=sum(recorder.num_late_drafts for recorder in recorders),
        step_loss_class=strategies.first.loss_class,
        exit_rule=strategies.exit.rule if strategies.exit.is_on else None,
        early_exit=next((one.early_exit for one in recorders if one.early_exit is not None), None),
        num_probes=sum(recorder.num_probes for recorder in recorders),
        num_probe_tokens=sum(recorder.num_probe_tokens for recorder in recorders),
        thinking_ended_by=next((one.thinking.ended_by for one in recorders if one.thinking), None),
    )


def _alone_seconds(accelerator: Accelerator, num_tokens: int) -> float | None:
    smallest = next(iter(accelerator.target.pass_times), None)
    if smallest is None or smallest.num_tokens >= _ALONE:
        return None
    return num_tokens * smallest.seconds
