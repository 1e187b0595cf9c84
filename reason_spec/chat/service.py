"""Conversations on top of the accelerator: requests in, text, calls and an end out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from reason_spec.accelerator import Accelerator
from reason_spec.chat.answering import Answering
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
from reason_spec.chat.preparing import Preparation


class Chat:
    """Answers conversations, and goes on with texts.

    The accelerator is started and closed by its owner. One object serves any number of requests at once.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._preparation = Preparation(accelerator)

    async def check(self, request: ChatRequest | TextRequest) -> int:
        """Find out whether a request can be answered, before anything runs; return its prompt's tokens.

        Raises:
            RequestError: it cannot; ``param`` names the field at fault.
        """
        prepared = await self._preparation.prepare(request)
        return len(prepared.prompts.target)

    async def stream(
        self, request: ChatRequest | TextRequest, *, index: int = 0, speculate: bool = True
    ) -> AsyncGenerator[ChatEvent]:
        """Yield what is certain of the answer, and its end.

        Closing the generator (``aclosing``) cancels the work, and returns when the engines are free of it.

        Args:
            index: which of several choices this is; each has noise of its own.
            speculate: False leaves the target alone: there is no room for drafts.

        Raises:
            RequestError: the request cannot be answered; nothing was run.
            EngineError: an engine failed.
        """
        started = time.perf_counter()
        prepared = await self._preparation.prepare(request)
        answering = Answering(self.accelerator, prepared, index, speculate, started)
        async with aclosing(answering.events()) as events:
            async for event in events:
                yield event

    async def answer(
        self, request: ChatRequest | TextRequest, *, index: int = 0, speculate: bool = True
    ) -> ChatAnswer:
        """Return the whole answer; see ``stream``."""
        gathered = _Gathered()
        async with aclosing(self.stream(request, index=index, speculate=speculate)) as events:
            async for event in events:
                gathered.take(event)
        return gathered.answer()


class _Gathered:
    """Events put together to a whole answer."""

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
        rated = b"".join(one.content for one in logprobs).decode(errors="replace").lstrip()
        return ChatAnswer(
            content=None if self._calls and not content else content,
            reasoning="".join(self._texts["reasoning"]) or None,
            tool_calls=tuple(self._calls),
            # Where a step is not the target's, those of the others would be in the wrong places.
            logprobs=tuple(logprobs) if logprobs and rated.startswith(content.lstrip()) else None,
            end=self._end,
        )
