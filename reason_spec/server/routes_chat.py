"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from reason_spec.chat.base import ChatEnd, TextDelta, ToolCallDelta
from reason_spec.server.api_request import ERRORS, ApiRequest
from reason_spec.server.base import PredictedCallsEvent, StreamEvent
from reason_spec.server.chunks import Chunks
from reason_spec.server.protocol import ChatBody
from reason_spec.server.replies import ReplyStyle, chat_completion, chat_logprobs, predicted_calls_of
from reason_spec.server.reply_bodies import ChatCompletion
from reason_spec.server.requests import chat_request, read_only_marks
from reason_spec.server.streaming import STREAM_CONTENT

router = APIRouter(tags=["chat"])
_FIRST: Final = {"role": "assistant", "content": ""}


@router.post(
    "/v1/chat/completions",
    response_class=JSONResponse,
    responses={200: {"model": ChatCompletion, "content": STREAM_CONTENT}, **ERRORS},
    summary="Answer a conversation",
)
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer as a whole or, with ``stream``, as server-sent events that end with ``data: [DONE]``."""
    api = ApiRequest(request)
    api.check_model(body.model)
    api.check_choices(body.num_choices)
    asked = chat_request(body, api.client, api.max_tokens(body.most_tokens), api.enter_session(body))
    style = api.style(
        "chatcmpl-",
        body.model,
        with_reasoning=body.include_reasoning is not False,
        with_logprobs=bool(body.logprobs),
    )
    marks = read_only_marks((tool.function for tool in body.tools or ()), body.reason_spec)
    prediction = api.prediction(asked, marks)
    if body.stream:
        return await api.stream([asked], body.num_choices, ChatChunks(style, body), prediction)
    answers = await api.answers([asked], body.num_choices, prediction)
    return JSONResponse(chat_completion(answers, style))


class ChatChunks(Chunks):
    """The chunks of one streamed answer to a conversation, or of several side by side."""

    kind = "chat.completion.chunk"

    def __init__(self, style: ReplyStyle, body: ChatBody) -> None:
        super().__init__(style, body)
        self._begun: set[int] = set()

    def event(self, index: int, event: StreamEvent) -> Iterable[bytes]:
        if isinstance(event, PredictedCallsEvent):
            # Beside a role, because clients may not expect a chunk without choices here.
            self._begun.add(0)
            sent = {"reason_spec": {"predicted_tool_calls": predicted_calls_of(event.calls)}}
            yield self._chunk([_choice(0, _FIRST)], sent)
            return
        if index not in self._begun:
            self._begun.add(index)
            yield self._chunk([_choice(index, _FIRST)])
        yield from super().event(index, event)

    def _choices(self, index: int, event: StreamEvent) -> Iterable[dict[str, Any]]:
        match event:
            case TextDelta(channel="reasoning"):
                if fields := self._style.reasoning(event.text):
                    yield _choice(index, fields)
            case TextDelta():
                choice = _choice(index, {"content": event.text})
                if self._style.with_logprobs:
                    choice["logprobs"] = chat_logprobs(event.logprobs)
                yield choice
            case ToolCallDelta():
                yield _choice(index, {"tool_calls": [_call_delta(event)]})

    def _last_choice(self, index: int, end: ChatEnd) -> dict[str, Any]:
        return {**_choice(index, {}), "finish_reason": end.finish}


def _choice(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    """Return a piece of a call; the first piece has its name."""
    function = {"arguments": event.arguments}
    if event.id is None:
        return {"index": event.index, "function": function}
    named = {"name": event.name, **function}
    return {"index": event.index, "id": event.id, "type": "function", "function": named}
