"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from reason_spec.chat.base import ChatEnd, ChatEvent, TextDelta
from reason_spec.server.base import ApiError
from reason_spec.server.protocol import CompletionBody
from reason_spec.server.replies import (
    Completion,
    ReplyStyle,
    completion,
    completion_finish,
    completion_logprobs,
    speculation_of,
    usage_of,
)
from reason_spec.server.requests import text_requests
from reason_spec.server.service import ERRORS, Call
from reason_spec.server.streaming import DONE, STREAM_CONTENT, data_event

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    response_class=JSONResponse,
    responses={200: {"model": Completion, "content": STREAM_CONTENT}, **ERRORS},
    summary="Go on with a text",
)
async def completions(body: CompletionBody, request: Request) -> Response:
    """Go on with texts as they are, as a whole or, with ``stream``, as server-sent events."""
    call = Call(request)
    call.check_model(body.model)
    call.check_choices(body.num_choices)
    asked = text_requests(body, call.client, call.max_tokens(body.max_tokens))
    call.check_choices(len(asked) * body.num_choices)
    style = call.style("cmpl-", body.model, with_logprobs=body.logprobs is not None)
    if body.stream:
        return await call.stream(asked, body.num_choices, CompletionChunks(style, body))
    answers = await call.answers(asked, body.num_choices)
    return JSONResponse(completion(answers, style, choices_of_a_prompt=body.num_choices))


class CompletionChunks:
    """The chunks of one streamed response."""

    def __init__(self, style: ReplyStyle, body: CompletionBody) -> None:
        self._style = style
        self._includes_usage = body.includes_usage
        self._choices_of_a_prompt = body.num_choices
        self._written: dict[int, int] = {}
        self._ends: dict[int, ChatEnd] = {}
        self._is_lone = len(body.prompts) * body.num_choices == 1

    def event(self, index: int, event: ChatEvent) -> Iterable[bytes]:
        match event:
            case TextDelta():
                choice = _choice(index, event.text)
                if self._style.with_logprobs:
                    choice["logprobs"] = completion_logprobs(event.logprobs, self._written.get(index, 0))
                self._written[index] = self._written.get(index, 0) + len(event.text)
                yield self._chunk([choice])
            case ChatEnd():
                self._ends[index] = event
                yield self._last(index, event)

    def end(self) -> Iterable[bytes]:
        if self._includes_usage:
            ends = [self._ends[index] for index in sorted(self._ends)]
            more: dict[str, Any] = {"usage": usage_of(ends, self._style, self._choices_of_a_prompt)}
            if self._style.tells and self._is_lone:
                more["reason_spec"] = speculation_of(ends[0].report)
            yield self._chunk([], more)
        yield DONE

    def failure(self, error: ApiError) -> Iterable[bytes]:
        yield data_event(error.body())

    def _last(self, index: int, end: ChatEnd) -> bytes:
        choice = _choice(index, "")
        choice["finish_reason"] = completion_finish(end)
        choice["stop_reason"] = end.stop
        more = {}
        if self._style.tells:
            choice["reason_spec"] = speculation_of(end.report)
            if self._is_lone and not self._includes_usage:
                more["reason_spec"] = choice["reason_spec"]
        return self._chunk([choice], more)

    def _chunk(self, choices: list[dict[str, Any]], more: Mapping[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": self._style.id,
            "object": "text_completion",
            "created": self._style.created,
            "model": self._style.model,
            "choices": choices,
            "system_fingerprint": self._style.fingerprint,
        }
        if self._includes_usage:
            body["usage"] = None
        return data_event({**body, **(more or {})})


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
