"""What an answer took, and what speculation did for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatEnd, ChatFinish, SpeculationReport
from reason_spec.chat.policy import Writers
from reason_spec.chat.preparing import Prepared
from reason_spec.chat.writing import Writing
from reason_spec.segment import StopScanner
from reason_spec.types import Usage

_ALONE = 1.5
"""Passes of fewer tokens than this count as passes of one: sizes are means over passes of about a size."""


def end_of(
    accelerator: Accelerator,
    prepared: Prepared,
    writers: Writers,
    *,
    thinking: Writing | None,
    answer: Sequence[Writing],
    num_calls: int,
    started: float,
) -> ChatEnd:
    """Return the end of an answer: what was thought, and what was written behind it."""
    writings = [*([thinking] if thinking else []), *answer]
    num_prompt_tokens = len(prepared.prompts.target)
    num_reasoning_tokens = len(thinking.tokens) if thinking else 0
    num_tokens = sum(len(writing.tokens) for writing in writings)
    finish = _finish(writings, is_thinking=not answer, num_calls=num_calls)
    return ChatEnd(
        finish=finish,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_tokens,
        num_reasoning_tokens=num_reasoning_tokens,
        num_cached_tokens=_num_cached(writings[0], num_prompt_tokens),
        report=_report(accelerator, writers, writings, num_tokens, started),
        stop=_stop(accelerator, answer[-1]) if answer else None,
    )


def _finish(writings: Sequence[Writing], *, is_thinking: bool, num_calls: int) -> ChatFinish:
    last = writings[-1]
    if last.is_cut_short:
        return "tool_calls"
    # Thinking that came to its end had no room left for the answer.
    ends = last.finish == "eos" or (last.finish == "stop" and not is_thinking)
    if not ends:
        return "length"
    return "tool_calls" if num_calls else "stop"


def _stop(accelerator: Accelerator, writing: Writing) -> str | int | None:
    """Return the stop string or the token that ended a text; None where none did."""
    if writing.stop_id is not None:
        return writing.stop_id
    stops = writing.ask.stops or ()
    if writing.finish != "stop":
        return None
    hit = StopScanner(stops).feed(accelerator.target.tokenizer.decode(writing.tokens))
    if hit is not None:
        return hit.stop
    # It began before this text, or the step is another model's, whose stop was cut off.
    return stops[0] if len(stops) == 1 else None


def _num_cached(writing: Writing, num_prompt_tokens: int) -> int:
    usage = writing.recorder.first_target_usage or Usage()
    return min(usage.num_cached_prompt_tokens, num_prompt_tokens)


def _report(
    accelerator: Accelerator,
    writers: Writers,
    writings: Sequence[Writing],
    num_tokens: int,
    started: float,
) -> SpeculationReport:
    recorders = [writing.recorder for writing in writings]
    target_usage = sum((recorder.target_usage for recorder in recorders), Usage())
    verdicts = [verdict for recorder in recorders for verdict in recorder.verdicts]
    return SpeculationReport(
        strategy=writers.first.name,
        loss_class=writers.first.loss_class,
        exact_answer_by=writers.answer.name if writers.answer is not None else None,
        reason=writers.reason,
        steps_by_origin=dict(Counter(step.origin for writing in writings for step in writing.steps)),
        alpha_step=sum(verdict.accepted for verdict in verdicts) / len(verdicts) if verdicts else None,
        alpha_token=target_usage.alpha_token,
        target_usage=target_usage,
        draft_usage=sum((recorder.draft_usage for recorder in recorders), Usage()),
        seconds=time.perf_counter() - started,
        target_alone_seconds=_alone_seconds(accelerator, num_tokens),
        verdicts=dict(Counter(verdict.decision for verdict in verdicts)),
        num_late_drafts=sum(recorder.num_late_drafts for recorder in recorders),
    )


def _alone_seconds(accelerator: Accelerator, num_tokens: int) -> float | None:
    smallest = next(iter(accelerator.target.pass_times), None)
    if smallest is None or smallest.num_tokens >= _ALONE:
        return None
    return num_tokens * smallest.seconds
