"""Conversations over an accelerator: requests in; text, calls and an end out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from reason_spec.accelerator import Accelerator
from reason_spec.chat.answer_stream import AnswerStream
from reason_spec.chat.base import (
    ChatAnswer,
    ChatEnd,
    ChatEvent,
    ChatRequest,
    TextDelta,
    TextRequest,
    TokenLogprob,
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
        self._texts: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._logprobs: list[TokenLogprob] = []
        self._calls: list[ToolCall] = []
        self._end: ChatEnd | None = None

    def take(self, event: ChatEvent) -> None:
        match event:
            case TextDelta(channel, text, logprobs):
                self._texts[channel].append(text)
                if channel == "content":
                    self._logprobs += logprobs or ()
            case ToolCallDelta(index, arguments, id_, name):
                if index == len(self._calls):
                    assert id_ is not None, "a call begins with its id"
                    assert name is not None, "a call begins with its name"
                    self._calls.append(ToolCall(id_, name, ""))
                known = self._calls[index]
                self._calls[index] = replace(known, arguments=known.arguments + arguments)
            case ChatEnd():
                self._end = event

    def answer(self) -> ChatAnswer:
        assert self._end is not None, "an answer has an end"
        content = "".join(self._texts["content"])
        logprobs = self._logprobs
        text = b"".join(one.content for one in logprobs).decode(errors="replace")
        return ChatAnswer(
            content=None if self._calls and not content else content,
            reasoning="".join(self._texts["reasoning"]) or None,
            tool_calls=tuple(self._calls),
            # If a step is not the target's, its tokens are missing and the others are out of place. The empty
            # lines between messages of one answer have no tokens.
            logprobs=tuple(logprobs)
            if logprobs and _without_space(text).startswith(_without_space(content))
            else None,
            end=self._end,
        )


def _without_space(text: str) -> str:
    return "".join(text.split())
