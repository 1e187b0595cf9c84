"""Response bodies in OpenAI's form, and how they are made of what the chat says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from reason_spec.chat.base import ChatAnswer, ChatEnd, SpeculationReport, TokenLogprob, ToolCall
from reason_spec.types import Usage

ReasoningField = Literal["reasoning", "reasoning_content", "both"]
_LEAST_LOGPROB = -9999.0
"""JSON has no infinity; vLLM writes this."""


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """What every refusal and failure looks like."""

    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class UsageBody(TypedDict):
    """Tokens of the target. ``prompt_tokens_details`` is null for clients that are not trusted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None
    completion_tokens_details: CompletionTokensDetails


class EngineWork(TypedDict):
    """Tokens that one engine wrote, drafted or confirmed."""

    generated: int
    discarded: int
    drafted: int
    accepted: int
    passes: int


class Work(TypedDict):
    target: EngineWork
    draft: EngineWork


class SpeculationBody(TypedDict):
    """What speculation did for one answer; only trusted clients are told."""

    strategy: str
    loss_class: Literal["exact", "verified", "routed"]
    exact_answer_by: str | None
    reason: str | None
    steps: dict[str, int]
    alpha_step: float | None
    alpha_step_of_all: float | None
    alpha_token: float | None
    tokens: Work
    seconds: float
    seconds_saved: float | None


class SpeculativeDecoding(TypedDict):
    """Acceptance of one answer under vLLM's names, then the step level.

    A step of vLLM's is a pass of the target that checked drafts; ``acceptance_histogram`` counts them by how
    many drafts stood.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    num_proposed_steps: int
    num_accepted_steps: int
    num_late_steps: int


class MetricsBody(TypedDict):
    """``speculative_decoding`` is null where nothing was drafted, of tokens or of steps."""

    speculative_decoding: SpeculativeDecoding | None


class LogprobBody(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Any]


class ChatLogprobs(TypedDict):
    content: list[LogprobBody] | None
    refusal: None


class FunctionBody(TypedDict):
    name: str
    arguments: str


class ToolCallBody(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionBody


class MessageBody(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallBody]]


class ChatChoice(TypedDict):
    """One answer. ``stop_reason`` is the stop string or token id that ended it, as vLLM names it."""

    index: int
    message: MessageBody
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    reason_spec: NotRequired[SpeculationBody]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    service_tier: None
    reason_spec: NotRequired[SpeculationBody]
    metrics: NotRequired[MetricsBody]


class CompletionLogprobs(TypedDict):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: None


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    reason_spec: NotRequired[SpeculationBody]


class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    system_fingerprint: str
    reason_spec: NotRequired[SpeculationBody]
    metrics: NotRequired[MetricsBody]


class ModelBody(TypedDict):
    """A name that the target is served under."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelBody]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyStyle:
    """What the answers to one request have in common.

    ``tells`` says whether the client may know what speculation did. ``num_draft_tokens`` bounds the drafts
    of a pass.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    reasoning_field: ReasoningField
    with_reasoning: bool = True
    with_logprobs: bool = False
    tells: bool = False
    num_draft_tokens: int = 0

    def reasoning(self, text: str) -> dict[str, str]:
        """Return thinking under the name or names it goes by."""
        if not self.with_reasoning:
            return {}
        both = ("reasoning", "reasoning_content")
        names = both if self.reasoning_field == "both" else (self.reasoning_field,)
        return dict.fromkeys(names, text)


def chat_completion(answers: Sequence[ChatAnswer], style: ReplyStyle) -> ChatCompletion:
    """Return the body for whole answers to one conversation."""
    body: ChatCompletion = {
        "id": style.id,
        "object": "chat.completion",
        "created": style.created,
        "model": style.model,
        "choices": [_chat_choice(index, answer, style) for index, answer in enumerate(answers)],
        "usage": usage_of([answer.end for answer in answers], style),
        "system_fingerprint": style.fingerprint,
        "service_tier": None,
    }
    if style.tells and len(answers) == 1:
        body["reason_spec"] = speculation_of(answers[0].end.report)
        body["metrics"] = metrics_of(answers[0].end.report, style)
    return body


def _chat_choice(index: int, answer: ChatAnswer, style: ReplyStyle) -> ChatChoice:
    message: MessageBody = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning:
        for name, text in style.reasoning(answer.reasoning).items():
            message[name] = text  # type: ignore[literal-required]
    if answer.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in answer.tool_calls]
    choice: ChatChoice = {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(answer.logprobs) if style.with_logprobs else None,
        "finish_reason": answer.end.finish,
        "stop_reason": answer.end.stop,
    }
    if style.tells:
        choice["reason_spec"] = speculation_of(answer.end.report)
    return choice


def _tool_call(call: ToolCall) -> ToolCallBody:
    function: FunctionBody = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def completion(answers: Sequence[ChatAnswer], style: ReplyStyle, *, choices_of_a_prompt: int) -> Completion:
    """Return the body for whole answers to one or more prompts, those of one prompt side by side."""
    body: Completion = {
        "id": style.id,
        "object": "text_completion",
        "created": style.created,
        "model": style.model,
        "choices": [_completion_choice(index, answer, style) for index, answer in enumerate(answers)],
        "usage": usage_of([answer.end for answer in answers], style, choices_of_a_prompt),
        "system_fingerprint": style.fingerprint,
    }
    if style.tells and len(answers) == 1:
        body["reason_spec"] = speculation_of(answers[0].end.report)
        body["metrics"] = metrics_of(answers[0].end.report, style)
    return body


def _completion_choice(index: int, answer: ChatAnswer, style: ReplyStyle) -> CompletionChoice:
    choice: CompletionChoice = {
        "index": index,
        "text": answer.content or "",
        "logprobs": completion_logprobs(answer.logprobs, 0) if style.with_logprobs else None,
        "finish_reason": completion_finish(answer.end),
        "stop_reason": answer.end.stop,
    }
    if style.tells:
        choice["reason_spec"] = speculation_of(answer.end.report)
    return choice


def completion_finish(end: ChatEnd) -> Literal["stop", "length"]:
    return "length" if end.finish == "length" else "stop"


def usage_of(ends: Sequence[ChatEnd], style: ReplyStyle, choices_of_a_prompt: int | None = None) -> UsageBody:
    """Return what answers took together; a prompt counts once, however many answers it has.

    Args:
        ends: those of one prompt side by side.
        choices_of_a_prompt: how many there are of each; None: all are of one prompt.
    """
    prompts = ends[:: choices_of_a_prompt or len(ends)]
    prompt = sum(end.num_prompt_tokens for end in prompts)
    written = sum(end.num_tokens for end in ends)
    cached = sum(end.num_cached_tokens for end in prompts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        # What is cached may be there because of somebody else's prompt.
        "prompt_tokens_details": {"cached_tokens": cached} if style.tells else None,
        "completion_tokens_details": {"reasoning_tokens": sum(end.num_reasoning_tokens for end in ends)},
    }


def speculation_of(report: SpeculationReport) -> SpeculationBody:
    """Return what speculation did, as trusted clients are told."""
    alone = report.target_alone_seconds
    return {
        "strategy": report.strategy,
        "loss_class": report.loss_class,
        "exact_answer_by": report.exact_answer_by,
        "reason": report.reason,
        "steps": dict(report.steps_by_origin),
        "alpha_step": report.alpha_step,
        "alpha_step_of_all": report.alpha_step_of_all,
        "alpha_token": report.alpha_token,
        "tokens": {"target": _work(report.target_usage), "draft": _work(report.draft_usage)},
        "seconds": report.seconds,
        "seconds_saved": None if alone is None else alone - report.seconds,
    }


def metrics_of(report: SpeculationReport, style: ReplyStyle) -> MetricsBody:
    """Return acceptance in vLLM's form, for clients that read it there."""
    usage, verdicts = report.target_usage, report.verdicts
    if not usage.num_drafted_tokens and not verdicts and not report.num_late_drafts:
        return {"speculative_decoding": None}
    num_accepted, num_spec_steps = usage.num_accepted_draft_tokens, sum(usage.acceptance_histogram)
    # What is likely may be drafted beyond the setting.
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
    """Return log-probabilities as chats have them; None where the mode does not know them."""
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


def completion_logprobs(found: Iterable[TokenLogprob] | None, offset: int) -> CompletionLogprobs | None:
    """Return log-probabilities as completions have them; ``offset`` characters stand before the first."""
    if found is None:
        return None
    body: CompletionLogprobs = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": None}
    for item in found:
        text = item.content.decode(errors="replace")
        body["text_offset"].append(offset)
        body["token_logprobs"].append(finite(item.logprob))
        body["tokens"].append(text)
        offset += len(text)
    return body


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB
