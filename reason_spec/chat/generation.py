"""One generation of a chat answer as a stream of text, in order, as it becomes final."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from reason_spec.accelerator import Accelerator, GenerationRequest
from reason_spec.accelerator.requests import Prompts
from reason_spec.chat.base import TokenLogprob
from reason_spec.engines.base import Tokenizer
from reason_spec.events import Listener, Recorder
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.types import FinishReason, Step


class TextPiece(NamedTuple):
    """New text; ``logprobs`` come with the end of a step, which may bring no text.

    ``step_text`` is the whole text of the step that ends here, most of which earlier pieces have brought.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    step_text: str = ""


class _PlacedText(NamedTuple):
    start: int
    """Characters before it."""
    text: str


class TextOrder:
    """Puts pieces of one text in order; they may overlap, and leave gaps that are closed later."""

    def __init__(self) -> None:
        self._length = 0
        self._waiting: list[_PlacedText] = []

    def take(self, start: int, text: str) -> str:
        """Take a piece that begins at ``start``; return the text that is complete now."""
        self._waiting.append(_PlacedText(start, text))
        self._waiting.sort()
        new = ""
        while self._waiting and self._waiting[0].start <= self._length:
            placed = self._waiting.pop(0)
            part = placed.text[self._length - placed.start :]
            new += part
            self._length += len(part)
        return new


class GenerationStream:
    """Writes one generation request. ``steps`` and ``recorder`` are complete at its end."""

    def __init__(
        self,
        accelerator: Accelerator,
        request: GenerationRequest,
        prompts: Prompts,
        listener: Listener | None = None,
    ) -> None:
        self.request = request
        self.steps: list[Step] = []
        self.is_cut_short = False
        """Whether its reader uses no text from here on."""
        self._accelerator = accelerator
        self._prompts = prompts
        self._text = ""
        self._queue: asyncio.Queue[_PlacedText | Step | None] = asyncio.Queue()
        self.recorder = Recorder(listener, on_text=self._put_text)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The written text in tokens of the target."""
        target = self._accelerator.target
        if self.is_cut_short:
            # Its last step was never final.
            return target.tokenizer.encode(self._text)
        return tuple(token for step in self.steps for token in tokens_for(step, target))

    @property
    def finish(self) -> FinishReason:
        return self.steps[-1].finish if self.steps else "length"

    @property
    def stop_id(self) -> int | None:
        """The token of ``stop_ids`` that ended it; None where none did."""
        last = self.steps[-1] if self.steps else None
        if self.is_cut_short or last is None or not last.ends_text or not last.tokens:
            return None
        return last.tokens[-1] if last.tokens[-1] in self.request.stop_ids else None

    async def pieces(self) -> AsyncGenerator[TextPiece]:
        """Yield the text as it becomes final; closing it returns when the engines hold nothing of it.

        Raises:
            EngineError: an engine failed.
        """
        order = TextOrder()
        num_final = 0
        solving = asyncio.get_running_loop().create_task(self._solve())
        try:
            while (item := await self._queue.get()) is not None:
                step_text = ""
                if isinstance(item, Step):
                    step_text = item.text
                    text = order.take(num_final, item.text)
                    num_final += len(item.text)
                    self.steps.append(item)
                    logprobs = logprobs_of(item, self._accelerator.target.tokenizer)
                else:
                    text, logprobs = order.take(*item), None
                if not self.is_cut_short:
                    self._text += text
                if text or logprobs or step_text:
                    yield TextPiece(text, logprobs, step_text)
            await solving
        finally:
            solving.cancel()
            # Unlike gather it does not cancel a second time where this is cancelled: engines may be at work.
            await asyncio.wait([solving])
            if not solving.cancelled():
                solving.exception()

    def _put_text(self, start: int, text: str) -> None:
        self._queue.put_nowait(_PlacedText(start, text))

    async def _solve(self) -> None:
        solving = self._accelerator.solve(self.request, recorder=self.recorder, prompts=self._prompts)
        try:
            async with aclosing(solving) as steps:
                async for step in steps:
                    self._queue.put_nowait(step)
        finally:
            self._queue.put_nowait(None)


def logprobs_of(step: Step, tokenizer: Tokenizer) -> tuple[TokenLogprob, ...] | None:
    """Return the target's log-probabilities of a step; None where another model wrote it."""
    if step.origin != "target" or step.logprobs is None:
        return None
    return tuple(_token_logprobs(step.tokens, step.logprobs, tokenizer, len(step.text.encode())))


def _token_logprobs(
    tokens: Sequence[int], logprobs: Sequence[float], tokenizer: Tokenizer, num_bytes: int
) -> list[TokenLogprob]:
    found: list[TokenLogprob] = []
    for token, logprob in zip(tokens, logprobs, strict=True):
        content = tokenizer.token_bytes(token)
        # The tokens of a cut off stop, and the end of the text, are no part of the text.
        if num_bytes <= 0:
            break
        if content:
            found.append(TokenLogprob(token, content, logprob))
        num_bytes -= len(content)
    return found
