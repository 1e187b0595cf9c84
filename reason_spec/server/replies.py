"""Makes response bodies in OpenAI's form from the answers of a chat."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from reason_spec.chat.base import (
    ChatAnswer,
    ChatEnd,
    PredictedCall,
    SpeculationReport,
    TokenLogprob,
    ToolCall,
)
from reason_spec.server.reply_bodies import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChoiceBody,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    EarlyExitBody,
    EngineWork,
    FunctionBody,
    LogprobBody,
    MessageBody,
    MetricsBody,
    PredictedCallBody,
    ReplyBody,
    SpeculationBody,
    ToolCallBody,
    UsageBody,
)
from reason_spec.types import Usage

ReasoningField = Literal["reasoning", "reasoning_content", "both"]
_LEAST_LOGPROB = -9999.0
"""JSON has no infinity; vLLM writes this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyStyle:
    """The common fields of the answers to one request.

    ``with_report``: the client gets the report about speculation. ``num_draft_tokens`` bounds the
    drafts of a pass.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    reasoning_field: ReasoningField
    with_reasoning: bool = True
    with_logprobs: bool = False
    with_report: bool = False
    num_draft_tokens: int = 0

    def reasoning(self, text: str) -> dict[str, str]:
        """Return thinking under its name or names."""
        if not self.with_reasoning:
            return {}
        both = ("reasoning", "reasoning_content")
        names = both if self.reasoning_field == "both" else (self.reasoning_field,)
        return dict.fromkeys(names, text)


def chat_completion(answers: Sequence[ChatAnswer], style: ReplyStyle) -> ChatCompletion:
    """Return the body for whole answers to one conversation."""
    return {
        **_reply(answers, style, len(answers)),
        "object": "chat.completion",
        "choices": [_chat_choice(index, answer, style) for index, answer in enumerate(answers)],
        "service_tier": None,
    }


def completion(answers: Sequence[ChatAnswer], style: ReplyStyle, *, choices_of_a_prompt: int) -> Completion:
    """Return the body for whole answers to one or more prompts, those of one prompt side by side."""
    return {
        **_reply(answers, style, choices_of_a_prompt),
        "object": "text_completion",
        "choices": [_completion_choice(index, answer, style) for index, answer in enumerate(answers)],
    }


def _reply(answers: Sequence[ChatAnswer], style: ReplyStyle, choices_of_a_prompt: int) -> ReplyBody:
    body: ReplyBody = {
        "id": style.id,
        "created": style.created,
        "model": style.model,
        "usage": usage_of([answer.end for answer in answers], style, choices_of_a_prompt),
        "system_fingerprint": style.fingerprint,
    }
    if style.with_report and len(answers) == 1:
        body["reason_spec"] = speculation_of(answers[0].end.report)
        body["metrics"] = metrics_of(answers[0].end.report, style)
    return body


def _choice(index: int, answer: ChatAnswer, style: ReplyStyle) -> ChoiceBody:
    choice: ChoiceBody = {"index": index, "stop_reason": answer.end.stop}
    if style.with_report:
        choice["reason_spec"] = speculation_of(answer.end.report)
    return choice


def _chat_choice(index: int, answer: ChatAnswer, style: ReplyStyle) -> ChatChoice:
    message: MessageBody = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning:
        for name, text in style.reasoning(answer.reasoning).items():
            message[name] = text  # type: ignore[literal-required]
    if answer.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in answer.tool_calls]
    return {
        **_choice(index, answer, style),
        "message": message,
        "logprobs": chat_logprobs(answer.logprobs) if style.with_logprobs else None,
        "finish_reason": answer.end.finish,
    }


def _completion_choice(index: int, answer: ChatAnswer, style: ReplyStyle) -> CompletionChoice:
    return {
        **_choice(index, answer, style),
        "text": answer.content or "",
        "logprobs": completion_logprobs(answer.logprobs, TextOffsets()) if style.with_logprobs else None,
        "finish_reason": completion_finish(answer.end),
    }


def _tool_call(call: ToolCall) -> ToolCallBody:
    function: FunctionBody = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def completion_finish(end: ChatEnd) -> Literal["stop", "length"]:
    return "length" if end.finish == "length" else "stop"


def usage_of(ends: Sequence[ChatEnd], style: ReplyStyle, choices_of_a_prompt: int) -> UsageBody:
    """Return the tokens of answers together; a prompt counts once for all its answers.

    Args:
        ends: those of one prompt side by side.
    """
    prompts = ends[::choices_of_a_prompt]
    prompt = sum(end.num_prompt_tokens for end in prompts)
    written = sum(end.num_tokens for end in ends)
    cached = sum(end.num_cached_tokens for end in prompts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        # Cached tokens may reveal prompts of other clients.
        "prompt_tokens_details": {"cached_tokens": cached} if style.with_report else None,
        "completion_tokens_details": {"reasoning_tokens": sum(end.num_reasoning_tokens for end in ends)},
    }


def speculation_of(report: SpeculationReport) -> SpeculationBody:
    """Return the report about speculation, for trusted clients."""
    alone, predicted = report.target_alone_seconds, report.predicted_calls
    return {
        "strategy": report.strategy,
        "loss_class": report.loss_class,
        "step_loss_class": report.step_loss_class,
        "early_exit": _early_exit(report),
        "exact_answer_by": report.exact_answer_by,
        "reason": report.reason,
        "steps": dict(report.steps_by_origin),
        "alpha_step": report.alpha_step,
        "alpha_step_of_all": report.alpha_step_of_all,
        "alpha_token": report.alpha_token,
        "tokens": {"target": _work(report.target_usage), "draft": _work(report.draft_usage)},
        "seconds": report.seconds,
        "seconds_saved": None if alone is None else alone - report.seconds,
        "thinking_ended_by": report.thinking_ended_by,
        "predicted_tool_calls": None if predicted is None else predicted_calls_of(predicted),
    }


def predicted_calls_of(calls: Iterable[PredictedCall]) -> list[PredictedCallBody]:
    """Return predicted calls, for trusted clients."""
    found: list[PredictedCallBody] = []
    for call in calls:
        function: FunctionBody = {"name": call.name, "arguments": call.arguments}
        body: PredictedCallBody = {"type": "function", "function": function, "probability": call.chance}
        if call.is_made is not None:
            body["made"] = call.is_made
        found.append(body)
    return found


def _early_exit(report: SpeculationReport) -> EarlyExitBody | None:
    if report.exit_rule is None:
        return None
    found = report.early_exit
    return {
        "rule": report.exit_rule,
        "step": None if found is None else found.num_steps,
        "answer": None if found is None else found.answer,
        "chance": None if found is None else found.chance,
        "probes": report.num_probes,
        "probe_tokens": report.num_probe_tokens,
    }


def metrics_of(report: SpeculationReport, style: ReplyStyle) -> MetricsBody:
    """Return acceptance in vLLM's form, for clients that read it there."""
    usage, verdicts = report.target_usage, report.verdicts
    if not usage.num_drafted_tokens and not verdicts and not report.num_late_drafts:
        return {"speculative_decoding": None}
    num_accepted, num_spec_steps = usage.num_accepted_draft_tokens, sum(usage.acceptance_histogram)
    # Likely tokens may be drafted beyond the setting.
    num_spec_tokens = max(style.num_draft_tokens, len(usage.acceptance_histogram) - 1)
    histogram = [*usage.acceptance_histogram, *[0] * (num_spec_tokens + 1)][: num_spec_tokens + 1]
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + num_accepted / num_spec_steps if num_spec_steps else 1.0,
            "draft_acceptance_rate": usage.alpha_token or 0.0,
            "acceptance_histogram": histogram,
            "num_spec_steps": num_spec_steps,
            "num_accepted_draft_tokens": num_accepted,
            "num_draft_tokens": usage.num_drafted_tokens,
            "num_spec_tokens": num_spec_tokens,
            "num_proposed_steps": sum(verdicts.values()) + report.num_late_drafts,
            "num_accepted_steps": verdicts.get("accept", 0),
            "num_late_steps": report.num_late_drafts,
        }
    }


def _work(usage: Usage) -> EngineWork:
    return {
        "generated": usage.num_generated_tokens,
        "discarded": usage.num_discarded_tokens,
        "drafted": usage.num_drafted_tokens,
        "accepted": usage.num_accepted_draft_tokens,
        "passes": usage.num_passes,
    }


def chat_logprobs(found: Iterable[TokenLogprob] | None) -> ChatLogprobs | None:
    """Return log-probabilities in the form of chats; None where they are unknown."""
    if found is None:
        return None
    return {"content": [_logprob(item) for item in found], "refusal": None}


def _logprob(item: TokenLogprob) -> LogprobBody:
    return {
        "token": item.content.decode(errors="replace"),
        "logprob": finite(item.logprob),
        "bytes": list(item.content),
        "top_logprobs": [],
    }


class TextOffsets:
    """The places of the tokens of one text, in characters: those of one character have one place."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_characters = 0

    def next(self, content: bytes) -> int:
        """Return the place of the next token."""
        place = self._num_characters
        self._num_characters += len(self._decoder.decode(content))
        return place


def completion_logprobs(
    found: Iterable[TokenLogprob] | None, offsets: TextOffsets
) -> CompletionLogprobs | None:
    """Return log-probabilities in the form of completions; ``offsets`` has read the tokens before them."""
    if found is None:
        return None
    body: CompletionLogprobs = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": None}
    for item in found:
        body["text_offset"].append(offsets.next(item.content))
        body["token_logprobs"].append(finite(item.logprob))
        body["tokens"].append(item.content.decode(errors="replace"))
    return body


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB
