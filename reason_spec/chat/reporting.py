"""What an answer took, and what speculation did for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatEnd, ChatFinish, SpeculationReport
from reason_spec.chat.preparing import Prepared
from reason_spec.chat.writing import Writing
from reason_spec.types import Usage

_ALONE = 1.5
"""Passes of fewer tokens than this count as passes of one: sizes are means over passes of about a size."""


def end_of(
    accelerator: Accelerator, prepared: Prepared, writings: Sequence[Writing], started: float
) -> ChatEnd:
    """Return the end of an answer that was written by one ask or several."""
    num_tokens = sum(len(writing.tokens) for writing in writings)
    num_prompt_tokens = len(prepared.prompts.target)
    last = writings[-1].steps[-1] if writings[-1].steps else None
    finish: ChatFinish = "stop" if last is not None and last.ends_text else "length"
    return ChatEnd(
        finish=finish,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_tokens,
        num_reasoning_tokens=0,
        num_cached_tokens=_num_cached(writings[0], num_prompt_tokens),
        report=_report(accelerator, prepared, writings, num_tokens, started),
    )


def _num_cached(writing: Writing, num_prompt_tokens: int) -> int:
    usage = writing.recorder.first_target_usage or Usage()
    return min(usage.num_cached_prompt_tokens, num_prompt_tokens)


def _report(
    accelerator: Accelerator,
    prepared: Prepared,
    writings: Sequence[Writing],
    num_tokens: int,
    started: float,
) -> SpeculationReport:
    recorders = [writing.recorder for writing in writings]
    target_usage = sum((recorder.target_usage for recorder in recorders), Usage())
    verdicts = [verdict for recorder in recorders for verdict in recorder.verdicts]
    return SpeculationReport(
        strategy=prepared.writer.name,
        loss_class=prepared.writer.loss_class,
        exact_answer_by=None,
        reason=prepared.reason,
        steps_by_origin=Counter(step.origin for writing in writings for step in writing.steps),
        alpha_step=sum(verdict.accepted for verdict in verdicts) / len(verdicts) if verdicts else None,
        alpha_token=target_usage.alpha_token,
        target_usage=target_usage,
        draft_usage=sum((recorder.draft_usage for recorder in recorders), Usage()),
        seconds=time.perf_counter() - started,
        target_alone_seconds=_alone_seconds(accelerator, num_tokens),
    )


def _alone_seconds(accelerator: Accelerator, num_tokens: int) -> float | None:
    smallest = next(iter(accelerator.target.pass_times), None)
    if smallest is None or smallest.num_tokens >= _ALONE:
        return None
    return num_tokens * smallest.seconds
