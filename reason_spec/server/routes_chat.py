"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from reason_spec.chat.base import ChatEnd, ChatEvent, TextDelta, ToolCallDelta
from reason_spec.server.base import ApiError
from reason_spec.server.protocol import ChatBody
from reason_spec.server.replies import (
    ChatCompletion,
    ReplyStyle,
    chat_completion,
    chat_logprobs,
    speculation_of,
    usage_of,
)
from reason_spec.server.requests import chat_request
from reason_spec.server.service import ERRORS, Call
from reason_spec.server.streaming import DONE, STREAM_CONTENT, data_event

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions",
    response_class=JSONResponse,
    responses={200: {"model": ChatCompletion, "content": STREAM_CONTENT}, **ERRORS},
    summary="Answer a conversation",
)
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer as a whole or, with ``stream``, as server-sent events that end with ``data: [DONE]``."""
    call = Call(request)
    call.check_model(body.model)
    call.check_choices(body.num_choices)
    asked = chat_request(body, call.client, call.max_tokens(body.most_tokens))
    style = call.style(
        "chatcmpl-",
        body.model,
        with_reasoning=body.include_reasoning is not False,
        with_logprobs=bool(body.logprobs),
    )
    if body.stream:
        return await call.stream([asked], body.num_choices, ChatChunks(style, body))
    answers = await call.answers([asked], body.num_choices)
    return JSONResponse(chat_completion(answers, style))


class ChatChunks:
    """The chunks of one streamed response."""

    def __init__(self, style: ReplyStyle, body: ChatBody) -> None:
        self._style = style
        self._includes_usage = body.includes_usage
        self._num_choices = body.num_choices
        self._begun: set[int] = set()
        self._ends: list[ChatEnd] = []

    def event(self, index: int, event: ChatEvent) -> Iterable[bytes]:
        if index not in self._begun:
            self._begun.add(index)
            yield self._chunk([_choice(index, {"role": "assistant", "content": ""})])
        match event:
            case TextDelta(channel="reasoning"):
                if fields := self._style.reasoning(event.text):
                    yield self._chunk([_choice(index, fields)])
            case TextDelta():
                choice = _choice(index, {"content": event.text})
                if self._style.with_logprobs:
                    choice["logprobs"] = chat_logprobs(event.logprobs)
                yield self._chunk([choice])
            case ToolCallDelta():
                yield self._chunk([_choice(index, {"tool_calls": [_call_delta(event)]})])
            case ChatEnd():
                self._ends.append(event)
                yield self._last(index, event)

    def end(self) -> Iterable[bytes]:
        if self._includes_usage:
            more: dict[str, Any] = {"usage": usage_of(self._ends, self._style)}
            if self._style.tells and self._num_choices == 1:
                more["reason_spec"] = speculation_of(self._ends[0].report)
            yield self._chunk([], more)
        yield DONE

    def failure(self, error: ApiError) -> Iterable[bytes]:
        yield data_event(error.body())

    def _last(self, index: int, end: ChatEnd) -> bytes:
        choice = _choice(index, {})
        choice["finish_reason"] = end.finish
        choice["stop_reason"] = end.stop
        more = {}
        if self._style.tells:
            choice["reason_spec"] = speculation_of(end.report)
            if self._num_choices == 1 and not self._includes_usage:
                more["reason_spec"] = choice["reason_spec"]
        return self._chunk([choice], more)

    def _chunk(self, choices: list[dict[str, Any]], more: Mapping[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": self._style.id,
            "object": "chat.completion.chunk",
            "created": self._style.created,
            "model": self._style.model,
            "choices": choices,
            "system_fingerprint": self._style.fingerprint,
        }
        if self._includes_usage:
            body["usage"] = None
        return data_event({**body, **(more or {})})


def _choice(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    """Return a piece of a call; what it is called comes once, with its first piece."""
    function = {"arguments": event.arguments}
    if event.id is None:
        return {"index": event.index, "function": function}
    named = {"name": event.name, **function}
    return {"index": event.index, "id": event.id, "type": "function", "function": named}
