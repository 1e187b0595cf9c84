"""One ask under way: its text in order, piece by piece as it becomes certain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from reason_spec.accelerator import Accelerator
from reason_spec.ask import GenerationRequest, Prompts
from reason_spec.chat.base import TokenLogprob
from reason_spec.engines.base import Tokenizer
from reason_spec.events import Recorder
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.types import FinishReason, Step


class Piece(NamedTuple):
    """What is new of a text; ``logprobs`` come with the end of a step, which may bring no text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


class _Told(NamedTuple):
    place: int
    text: str


class TextOrder:
    """Puts pieces of one text in order; they may overlap, and leave gaps that are closed later."""

    def __init__(self) -> None:
        self._length = 0
        self._waiting: list[_Told] = []

    def take(self, place: int, text: str) -> str:
        """Take a piece from a place on; return what can be handed on."""
        self._waiting.append(_Told(place, text))
        self._waiting.sort()
        new = ""
        while self._waiting and self._waiting[0].place <= self._length:
            told = self._waiting.pop(0)
            part = told.text[self._length - told.place :]
            new += part
            self._length += len(part)
        return new


class Writing:
    """An ask under way. ``steps`` and ``recorder`` hold what is final, and are complete at the end."""

    def __init__(self, accelerator: Accelerator, ask: GenerationRequest, prompts: Prompts) -> None:
        self.ask = ask
        self.steps: list[Step] = []
        self.is_cut_short = False
        """Whether its reader had all that was wanted before its end."""
        self._accelerator = accelerator
        self._prompts = prompts
        self._told: asyncio.Queue[_Told | Step | None] = asyncio.Queue()
        self.recorder = Recorder(on_text=self._tell)

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is written, in tokens of the target."""
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
        return last.tokens[-1] if last.tokens[-1] in self.ask.stop_ids else None

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yield the text as it becomes certain; closing it returns when the engines hold nothing of it.

        Raises:
            EngineError: an engine failed.
        """
        order = TextOrder()
        num_final = 0
        self._text = ""
        solving = asyncio.get_running_loop().create_task(self._solve())
        try:
            while (told := await self._told.get()) is not None:
                if isinstance(told, Step):
                    text = order.take(num_final, told.text)
                    self._text += text
                    num_final += len(told.text)
                    self.steps.append(told)
                    logprobs = logprobs_of(told, self._accelerator.target.tokenizer)
                    if text or logprobs:
                        yield Piece(text, logprobs)
                elif text := order.take(*told):
                    self._text += text
                    yield Piece(text)
            await solving
        finally:
            solving.cancel()
            # Unlike gather it does not cancel a second time where this is cancelled: engines may be at work.
            await asyncio.wait([solving])
            if not solving.cancelled():
                solving.exception()

    def _tell(self, place: int, text: str) -> None:
        self._told.put_nowait(_Told(place, text))

    async def _solve(self) -> None:
        solving = self._accelerator.solve(self.ask, recorder=self.recorder, prompts=self._prompts)
        try:
            async with aclosing(solving) as steps:
                async for step in steps:
                    self._told.put_nowait(step)
        finally:
            self._told.put_nowait(None)


def logprobs_of(step: Step, tokenizer: Tokenizer) -> tuple[TokenLogprob, ...] | None:
    """Return how the target rated the tokens of a step's text; None where it was another that wrote it."""
    if step.origin != "target" or step.logprobs is None:
        return None
    return tuple(_rated(step.tokens, step.logprobs, tokenizer, len(step.text.encode())))


def _rated(
    tokens: Sequence[int], logprobs: Sequence[float], tokenizer: Tokenizer, num_bytes: int
) -> list[TokenLogprob]:
    rated: list[TokenLogprob] = []
    for token, logprob in zip(tokens, logprobs, strict=True):
        content = tokenizer.token_bytes(token)
        # What a stop cut off is no part of the text, and neither is the end of it.
        if num_bytes <= 0:
            break
        if content:
            rated.append(TokenLogprob(token, content, logprob))
        num_bytes -= len(content)
    return rated
