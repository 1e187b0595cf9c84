"""Turns bodies of ``/v1/responses`` into requests of the chat, and its answers into response bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from reason_spec.chat.base import ChatEnd, ChatRequest, ChatSampling
from reason_spec.server.base import Client
from reason_spec.server.protocol import JsonObjectFormat
from reason_spec.server.protocol_responses import (
    CallItem,
    CallOutputItem,
    InputItem,
    MessageItem,
    NamedFunction,
    ReasoningItem,
    ResponsesBody,
    SchemaFormat,
    Texts,
)
from reason_spec.server.replies import ReplyStyle, speculation_of
from reason_spec.server.reply_bodies import SpeculationBody
from reason_spec.server.requests import ANY_OBJECT, policy_of
from reason_spec.types import Constraint

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseBody(TypedDict):
    """A response; ``output`` holds reasoning, message and function_call items."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: Literal["disabled"]
    usage: dict[str, Any] | None
    user: str | None
    reason_spec: NotRequired[SpeculationBody]


def response_request(
    body: ResponsesBody, client: Client, max_tokens: int | None, session: str
) -> ChatRequest:
    """Return the request of a body; ``max_tokens`` is the limit that the operator allows.

    Raises:
        ApiError: the client may not ask for it.
    """
    choice = body.tool_choice or "auto"
    return ChatRequest(
        messages=messages_of(body),
        tools=[
            _tool(tool.model_dump(exclude_none=True, exclude={"annotations"})) for tool in body.tools or ()
        ],
        tool_choice=choice.name if isinstance(choice, NamedFunction) else choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        constraint=_constraint(body),
        sampling=ChatSampling(
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=max_tokens,
            thinking_token_budget=body.thinking_token_budget,
            max_thinking_steps=body.max_thinking_steps,
        ),
        policy=policy_of(body.reason_spec, client),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        tenant=client.tenant,
        session=session,
    )


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    kind = given.pop("type")
    return {"type": kind, "function": given}


def _constraint(body: ResponsesBody) -> Constraint | None:
    match body.text.format if body.text else None:
        case JsonObjectFormat():
            return Constraint(json_schema=ANY_OBJECT)
        case SchemaFormat(schema_=schema):
            return Constraint(json_schema=json.dumps(schema))
    return None


def messages_of(body: ResponsesBody) -> list[dict[str, Any]]:
    """Return the turns of a conversation; adjacent items of the assistant are one turn."""
    turns: list[dict[str, Any]] = []
    if body.instructions is not None:
        turns.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*turns, {"role": "user", "content": body.input}]
    is_open = False
    for item in body.input:
        by_assistant = isinstance(item, CallItem | ReasoningItem) or (
            isinstance(item, MessageItem) and item.role == "assistant"
        )
        if not by_assistant:
            turns.append(_turn(item))
        else:
            if not is_open or _starts_anew(item, turns[-1]):
                turns.append({"role": "assistant", "content": None})
            _add(item, turns[-1])
        is_open = by_assistant
    return turns


def _turn(item: InputItem) -> dict[str, Any]:
    if isinstance(item, CallOutputItem):
        return {"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id}
    assert isinstance(item, MessageItem)
    return {"role": item.role, "content": _text(item.content)}


def _starts_anew(item: InputItem, turn: dict[str, Any]) -> bool:
    """Return whether an item of the assistant begins a turn of its own."""
    is_full = turn["content"] is not None or "tool_calls" in turn
    return isinstance(item, ReasoningItem | MessageItem) and is_full


def _add(item: InputItem, turn: dict[str, Any]) -> None:
    match item:
        case ReasoningItem(content=content, summary=summary):
            turn["reasoning"] = turn.get("reasoning", "") + _text(content or summary)
        case MessageItem(content=content):
            turn["content"] = _text(content)
        case CallItem():
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)


def _text(content: Texts) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def response_body(
    body: ResponsesBody,
    style: ReplyStyle,
    *,
    status: Status,
    output: Sequence[dict[str, Any]] = (),
    end: ChatEnd | None = None,
    error: dict[str, Any] | None = None,
) -> ResponseBody:
    """Return a response so far; without ``end`` it continues, or failed."""
    is_cut = status == "incomplete"
    given = body.model_dump(mode="json", exclude_none=True, by_alias=True)
    found: ResponseBody = {
        "id": style.id,
        "object": "response",
        "created_at": style.created,
        "status": status,
        "error": error,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": style.model,
        "output": list(output),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": {"format": given.get("text", {}).get("format", {"type": "text"})},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [{"parameters": None, "strict": None, **tool} for tool in given.get("tools", ())],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None if end is None else _usage(end, style),
        "user": body.user,
    }
    if end is not None and style.with_report:
        found["reason_spec"] = speculation_of(end.report)
    return found


def _usage(end: ChatEnd, style: ReplyStyle) -> dict[str, Any]:
    # Cached tokens may reveal prompts of other clients.
    cached = end.num_cached_tokens if style.with_report else 0
    return {
        "input_tokens": end.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": end.num_tokens,
        "output_tokens_details": {"reasoning_tokens": end.num_reasoning_tokens},
        "total_tokens": end.num_prompt_tokens + end.num_tokens,
    }
