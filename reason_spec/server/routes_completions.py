"""``POST /v1/completions``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from reason_spec.chat.base import ChatEnd, TextDelta
from reason_spec.server.api_request import ERRORS, ApiRequest
from reason_spec.server.base import StreamEvent
from reason_spec.server.chunks import Chunks
from reason_spec.server.protocol import CompletionBody
from reason_spec.server.replies import (
    ReplyStyle,
    TextOffsets,
    completion,
    completion_finish,
    completion_logprobs,
)
from reason_spec.server.reply_bodies import Completion
from reason_spec.server.requests import text_requests
from reason_spec.server.streaming import STREAM_CONTENT

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    response_class=JSONResponse,
    responses={200: {"model": Completion, "content": STREAM_CONTENT}, **ERRORS},
    summary="Go on with a text",
)
async def completions(body: CompletionBody, request: Request) -> Response:
    """Go on with texts as they are, as a whole or, with ``stream``, as server-sent events."""
    api = ApiRequest(request)
    api.check_model(body.model)
    api.check_choices(body.num_choices)
    asked = text_requests(body, api.client, api.max_tokens(body.max_tokens), api.enter_session(body))
    api.check_choices(len(asked) * body.num_choices)
    style = api.style("cmpl-", body.model, with_logprobs=body.logprobs is not None)
    if body.stream:
        return await api.stream(asked, body.num_choices, CompletionChunks(style, body))
    answers = await api.answers(asked, body.num_choices)
    return JSONResponse(completion(answers, style, choices_of_a_prompt=body.num_choices))


class CompletionChunks(Chunks):
    """The chunks of one streamed response; answers to one prompt are interleaved."""

    kind = "text_completion"

    def __init__(self, style: ReplyStyle, body: CompletionBody) -> None:
        super().__init__(style, body, len(body.prompts))
        self._offsets: defaultdict[int, TextOffsets] = defaultdict(TextOffsets)
        """Of the tokens whose log-probabilities were sent, which come after their text."""

    def _choices(self, index: int, event: StreamEvent) -> Iterable[dict[str, Any]]:
        if isinstance(event, TextDelta):
            choice = _choice(index, event.text)
            if self._style.with_logprobs:
                choice["logprobs"] = completion_logprobs(event.logprobs, self._offsets[index])
            yield choice

    def _last_choice(self, index: int, end: ChatEnd) -> dict[str, Any]:
        return {**_choice(index, ""), "finish_reason": completion_finish(end)}


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
