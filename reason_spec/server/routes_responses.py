"""``POST /v1/responses``: enough of it for agents that begin with it, over the same chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from reason_spec.chat.base import ChatAnswer, ChatEnd, PredictedCall, TextDelta, ToolCallDelta
from reason_spec.server.api_request import ERRORS, ApiRequest
from reason_spec.server.base import ApiError, PredictedCallsEvent, StreamEvent
from reason_spec.server.protocol_responses import ResponsesBody
from reason_spec.server.replies import ReplyStyle, predicted_calls_of
from reason_spec.server.requests import read_only_marks
from reason_spec.server.responses import ResponseBody, Status, response_body, response_request
from reason_spec.server.streaming import STREAM_CONTENT, data_event

router = APIRouter(tags=["responses"])
ItemStatus = Literal["in_progress", "completed", "incomplete"]


@router.post(
    "/v1/responses",
    response_class=JSONResponse,
    responses={200: {"model": ResponseBody, "content": STREAM_CONTENT}, **ERRORS},
    summary="Answer items of a conversation",
)
async def responses(body: ResponsesBody, request: Request) -> Response:
    """Answer as a whole or, with ``stream``, as typed server-sent events. Nothing is stored."""
    api = ApiRequest(request)
    api.check_model(body.model)
    most = api.max_tokens(body.max_output_tokens, "max_output_tokens")
    asked = response_request(body, api.client, most, api.enter_session(body))
    style = api.style("resp_", body.model)
    events = ResponseEvents(style, body)
    prediction = api.prediction(asked, read_only_marks(body.tools or (), body.reason_spec))
    if body.stream:
        return await api.stream([asked], 1, events, prediction)
    (answer,) = await api.answers([asked], 1, prediction)
    return JSONResponse(events.whole(answer))


class _Open:
    """The item that is being written."""

    def __init__(self, kind: Literal["reasoning", "message", "function_call"], item: dict[str, Any]) -> None:
        self.kind = kind
        self.item = item
        self.text = ""


class ResponseEvents:
    """The events of one streamed response, and the items of a whole one."""

    def __init__(self, style: ReplyStyle, body: ResponsesBody) -> None:
        self._style = style
        self._body = body
        self._output: list[dict[str, Any]] = []
        self._open: _Open | None = None
        self._number = 0
        self._end: ChatEnd | None = None

    def whole(self, answer: ChatAnswer) -> ResponseBody:
        """Return the body for a whole answer: that of the last event of its stream."""
        for event in (*answer.parts, answer.end):
            list(self.event(0, event))
        list(self.end())
        return self._response(_ending(answer.end), answer.end)

    def event(self, index: int, event: StreamEvent) -> Iterable[bytes]:
        if isinstance(event, PredictedCallsEvent):
            yield from self._begin(event.calls)
            return
        yield from self._begin()
        match event:
            case TextDelta(text=""):
                # Log-probabilities of a step come without text: they begin no item.
                pass
            case TextDelta(channel="reasoning", text=text):
                yield from self._open_as("reasoning")
                yield from self._written("response.reasoning_text.delta", text, content_index=0)
            case TextDelta(text=text):
                yield from self._open_as("message")
                yield from self._written("response.output_text.delta", text, content_index=0, logprobs=[])
            case ToolCallDelta(arguments=arguments, id=call_id, name=called):
                if call_id is not None:
                    yield from self._close("completed")
                    yield from self._open_as("function_call", call_id, called or "")
                yield from self._written("response.function_call_arguments.delta", arguments)
            case ChatEnd():
                self._end = event

    def end(self) -> Iterable[bytes]:
        assert self._end is not None, "an answer has an end"
        status = _ending(self._end)
        if self._open is None and not self._output:
            yield from self._open_as("message")
        yield from self._close(status)
        yield self._event(f"response.{status}", response=self._response(status, self._end))

    def failure(self, error: ApiError) -> Iterable[bytes]:
        yield from self._begin()
        yield from self._close("incomplete")
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        detail = {"code": code, "message": error.message}
        yield self._event("response.failed", response=self._response("failed", error=detail))

    def _begin(self, predicted: Iterable[PredictedCall] = ()) -> Iterable[bytes]:
        """Open the response, unless it is open."""
        if self._number == 0:
            created: dict[str, Any] = {**self._response("in_progress")}
            if calls := predicted_calls_of(predicted):
                # In an event that all clients know: some refuse events of other types.
                created["reason_spec"] = {"predicted_tool_calls": calls}
            yield self._event("response.created", response=created)
            yield self._event("response.in_progress", response=self._response("in_progress"))

    def _open_as(
        self,
        kind: Literal["reasoning", "message", "function_call"],
        call_id: str = "",
        name: str = "",
    ) -> Iterable[bytes]:
        """Begin an item, unless one of its kind is open."""
        if self._open is not None and self._open.kind == kind:
            return
        yield from self._close("completed")
        match kind:
            case "reasoning":
                item = {"type": kind, "id": self._id("rs"), "summary": [], "content": []}
            case "message":
                item = {"type": kind, "id": self._id("msg"), "role": "assistant", "content": []}
            case "function_call":
                item = {"type": kind, "id": self._id("fc"), "call_id": call_id, "name": name, "arguments": ""}
        item["status"] = "in_progress"
        self._open = _Open(kind, item)
        yield self._event("response.output_item.added", output_index=len(self._output), item=item)
        if kind != "function_call":
            yield self._of_item("response.content_part.added", content_index=0, part=_part(kind, ""))

    def _written(self, name: str, text: str, **more: Any) -> Iterable[bytes]:
        if text and self._open is not None:
            self._open.text += text
            yield self._of_item(name, delta=text, **more)

    def _close(self, status: ItemStatus) -> Iterable[bytes]:
        """End the item that is open, if one is."""
        opened = self._open
        if opened is None:
            return
        text, item = opened.text, opened.item
        if opened.kind == "function_call":
            yield self._of_item("response.function_call_arguments.done", arguments=text)
            item = {**item, "arguments": text, "status": status}
        else:
            name = "response.reasoning_text.done"
            more: dict[str, Any] = {}
            if opened.kind == "message":
                name, more = "response.output_text.done", {"logprobs": []}
            yield self._of_item(name, content_index=0, text=text, **more)
            part = _part(opened.kind, text)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
            item = {**item, "content": [part], "status": status}
        self._open = None
        yield self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)

    def _of_item(self, name: str, **fields: Any) -> bytes:
        assert self._open is not None
        return self._event(name, item_id=self._open.item["id"], output_index=len(self._output), **fields)

    def _event(self, name: str, **fields: Any) -> bytes:
        body = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return data_event(body, name)

    def _response(
        self, status: Status, end: ChatEnd | None = None, error: dict[str, Any] | None = None
    ) -> ResponseBody:
        return response_body(
            self._body, self._style, status=status, output=self._output, end=end, error=error
        )

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._style.id.removeprefix('resp_')}_{len(self._output)}"


def _ending(end: ChatEnd) -> Literal["completed", "incomplete"]:
    return "incomplete" if end.finish == "length" else "completed"


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
