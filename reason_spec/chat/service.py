"""Conversations over an accelerator: requests in; text, calls and an end out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import groupby

from reason_spec.accelerator import Accelerator
from reason_spec.chat.answer_stream import AnswerStream
from reason_spec.chat.base import (
    ChatAnswer,
    ChatEnd,
    ChatEvent,
    ChatRequest,
    TextDelta,
    TextRequest,
    ToolCall,
    ToolCallDelta,
)
from reason_spec.chat.preparing import Preparation, PreparedRequest


class Chat:
    """Answers conversations, and continues texts.

    ::

        prepared = await chat.prepare(ChatRequest(messages=[...]))
        answer = await chat.answer(prepared)

    The accelerator is started and closed by its owner. One object serves any number of requests at once.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._preparation = Preparation(accelerator)

    async def prepare(self, request: ChatRequest | TextRequest) -> PreparedRequest:
        """Check and encode a request; nothing is generated yet.

        Raises:
            RequestError: it cannot be answered; ``param`` names the field at fault.
        """
        return await self._preparation.prepare(request)

    async def stream(
        self, request: PreparedRequest, *, index: int = 0, speculate: bool = True
    ) -> AsyncGenerator[ChatEvent]:
        """Yield the answer as it becomes final, and its end.

        Closing the generator (``aclosing``) cancels the work, and returns when the engines are free of it.

        Args:
            index: which of several choices this is; each has noise of its own.
            speculate: False leaves the target alone: there is no room for drafts.

        Raises:
            EngineError: an engine failed.
        """
        stream = AnswerStream(self.accelerator, request, index, speculate, time.perf_counter())
        async with aclosing(stream.events()) as events:
            async for event in events:
                yield event

    async def answer(self, request: PreparedRequest, *, index: int = 0, speculate: bool = True) -> ChatAnswer:
        """Return the whole answer; see `stream`."""
        gathered = Gathered()
        async with aclosing(self.stream(request, index=index, speculate=speculate)) as events:
            async for event in events:
                gathered.take(event)
        return gathered.answer()


class Gathered:
    """Gathers the events of one answer."""

    def __init__(self) -> None:
        self._pieces: list[TextDelta | ToolCallDelta] = []
        self._end: ChatEnd | None = None

    def take(self, event: ChatEvent) -> None:
        if isinstance(event, ChatEnd):
            self._end = event
        else:
            self._pieces.append(event)

    def answer(self) -> ChatAnswer:
        assert self._end is not None, "an answer has an end"
        written = (piece for piece in self._pieces if isinstance(piece, ToolCallDelta) or piece.text)
        parts = tuple(_joined(list(pieces)) for _, pieces in groupby(written, _place))
        texts = {"content": "", "reasoning": ""}
        for part in parts:
            if isinstance(part, TextDelta):
                texts[part.channel] += part.text
        calls = tuple(
            ToolCall(part.id or "", part.name or "", part.arguments)
            for part in parts
            if isinstance(part, ToolCallDelta)
        )
        content = texts["content"]
        logprobs = [
            logprob
            for piece in self._pieces
            if isinstance(piece, TextDelta) and piece.channel == "content"
            for logprob in piece.logprobs or ()
        ]
        rated = b"".join(one.content for one in logprobs).decode(errors="replace")
        return ChatAnswer(
            parts=parts,
            content=None if calls and not content else content,
            reasoning=texts["reasoning"] or None,
            tool_calls=calls,
            # If a step is not the target's, its tokens are missing and the others are out of place. The empty
            # lines between messages of one answer have no tokens.
            logprobs=tuple(logprobs)
            if logprobs and _without_space(rated).startswith(_without_space(content))
            else None,
            end=self._end,
        )


def _place(piece: TextDelta | ToolCallDelta) -> str | int:
    """Return what pieces of one part have in common."""
    return piece.channel if isinstance(piece, TextDelta) else piece.index


def _joined(pieces: Sequence[TextDelta | ToolCallDelta]) -> TextDelta | ToolCallDelta:
    """Return one part of an answer from its pieces."""
    first = pieces[0]
    if isinstance(first, TextDelta):
        return TextDelta(first.channel, "".join(one.text for one in pieces if isinstance(one, TextDelta)))
    arguments = "".join(one.arguments for one in pieces if isinstance(one, ToolCallDelta))
    return replace(first, arguments=arguments)


def _without_space(text: str) -> str:
    return "".join(text.split())
