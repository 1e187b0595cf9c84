"""One answer under way: the thinking, the answer behind it, and the calls in that."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from reason_spec.accelerator import Accelerator
from reason_spec.ask import GenerationRequest
from reason_spec.chat.base import ChatEvent, TextDelta
from reason_spec.chat.policy import Writer
from reason_spec.chat.preparing import Prepared
from reason_spec.chat.reporting import end_of
from reason_spec.chat.thinking import BEHIND, CLOSER, LeadingSpace
from reason_spec.chat.tool_calls import Found, ToolCallParser
from reason_spec.chat.writing import Piece, Writing
from reason_spec.chat.xml_calls import XmlCallParser, parser_for
from reason_spec.types import Sampling, Step

_SHED: Final = "load"


class Answering:
    """Writes one choice of a request that was prepared.

    Args:
        speculate: False leaves the target alone.
        started: when the request came, by ``time.perf_counter``.
    """

    def __init__(
        self, accelerator: Accelerator, prepared: Prepared, index: int, speculate: bool, started: float
    ) -> None:
        self._accelerator = accelerator
        self._prepared = prepared
        self._started = started
        self._writers = prepared.writers
        trouble = None if accelerator.draft is None else accelerator.draft.trouble
        if not speculate:
            self._writers = self._writers.without_drafts(accelerator, _SHED)
        elif trouble is not None and self._writers.need_draft:
            self._writers = self._writers.without_drafts(accelerator, f"the draft {trouble}")
        self._sampling: Sampling = prepared.sampling(index)
        self._num_left = prepared.max_tokens
        self._written: tuple[Step, ...] = ()
        self._thinking: Writing | None = None
        self._answer: list[Writing] = []
        self._leading = LeadingSpace()
        self._parser: ToolCallParser | XmlCallParser | None = None
        if prepared.form is not None:
            self._parser = parser_for(prepared.form, prepared.tools, parallel=prepared.parallel)

    async def events(self) -> AsyncGenerator[ChatEvent]:
        """Yield what is certain, and the end.

        Raises:
            EngineError: an engine failed.
        """
        if self._prepared.thinking is not None:
            async with aclosing(self._think(self._prepared.thinking.opening)) as thinking:
                async for event in thinking:
                    yield event
        if self._may_answer:
            async with aclosing(self._write_answer()) as answer:
                async for event in answer:
                    yield event
        yield end_of(
            self._accelerator,
            self._prepared,
            self._writers,
            thinking=self._thinking,
            answer=self._answer,
            num_calls=self._parser.num_calls if self._parser else 0,
            started=self._started,
        )

    # --- thinking ----------------------------------------------------------------------------------

    async def _think(self, opening: str) -> AsyncGenerator[ChatEvent]:
        if opening:
            self._written = (self._step(self._accelerator.target.tokenizer.encode(opening)),)
        writing = self._thinking = self._write(self._writers.first, (CLOSER,))
        async with aclosing(writing.pieces()) as pieces:
            async for piece in pieces:
                yield TextDelta("reasoning", piece.text, piece.logprobs)
        self._add(writing)
        if self._prepared.constraint is not None and writing.finish == "stop":
            # What is bound may not begin with the blank line that models write here.
            blank = BEHIND.removeprefix(self._begun_with_thinking())
            self._written += (self._step(self._accelerator.target.tokenizer.encode(blank)),) if blank else ()

    @property
    def _may_answer(self) -> bool:
        ended = self._thinking is None or self._thinking.finish == "stop"
        return ended and self._num_left > 0

    # --- the answer --------------------------------------------------------------------------------

    async def _write_answer(self) -> AsyncGenerator[ChatEvent]:
        for event in self._events_of(Piece(self._begun_with_thinking())):
            yield event
        while True:
            async with aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    for event in self._events_of(piece):
                        yield event
                    if self._parser is not None and self._parser.done:
                        self._answer[-1].is_cut_short = True
                        break
            if not self._ended_by_leading_space():
                break
        if self._parser is not None:
            for event in _events(self._parser.close()):
                yield event

    def _pieces(self) -> AsyncGenerator[Piece]:
        writer = self._writers.answer if self._thinking is not None else self._writers.first
        assert writer is not None, "somebody writes the answer behind the thinking"
        writing = self._write(writer, self._prepared.ask.stops or ())
        stop_ids = self._prepared.ask.stop_ids
        writing.ask = replace(writing.ask, constraint=self._prepared.constraint, stop_ids=stop_ids)
        self._answer.append(writing)
        return writing.pieces()

    def _begun_with_thinking(self) -> str:
        """Return what of the answer stands in the token that completed the thinking's end."""
        if self._thinking is None:
            self._leading.is_over = True
            return ""
        return self._accelerator.target.tokenizer.decode(self._thinking.tokens).partition(CLOSER)[2]

    def _ended_by_leading_space(self) -> bool:
        """Tell whether a stop ended the answer in the white space before it; it goes on then."""
        writing = self._answer[-1]
        if self._leading.is_over or writing.finish != "stop" or writing.is_cut_short:
            return False
        if writing.stop_id is not None:
            return False
        text = self._accelerator.target.tokenizer.decode(writing.tokens)
        self._add(writing)
        return not text.strip() and self._num_left > 0

    def _events_of(self, piece: Piece) -> Iterable[ChatEvent]:
        text = self._leading.strip(piece.text)
        if self._parser is None:
            if text or piece.logprobs:
                yield TextDelta("content", text, piece.logprobs)
            return
        yield from _events(self._parser.feed(text))
        if piece.logprobs and not self._parser.num_calls:
            yield TextDelta("content", "", piece.logprobs)

    # --- what both have in common ------------------------------------------------------------------

    def _write(self, writer: Writer, stops: tuple[str, ...]) -> Writing:
        ask: GenerationRequest = replace(
            self._prepared.ask,
            strategy=writer.strategy,
            verifier=writer.verifier,
            sampling=self._sampling,
            max_tokens=self._num_left,
            stops=stops,
            stop_ids=frozenset(),
            written=self._written,
        )
        return Writing(self._accelerator, ask, self._prepared.prompts)

    def _add(self, writing: Writing) -> None:
        """Let what was written be what the next ask goes on from."""
        tokens = writing.tokens
        self._num_left -= len(tokens)
        if tokens:
            self._written = (*self._written, self._step(tokens))

    def _step(self, tokens: tuple[int, ...]) -> Step:
        tokenizer = self._accelerator.target.tokenizer
        text = tokenizer.decode(tokens)
        return Step(text, tokens, "target", "boundary", tokenizer_id=tokenizer.tokenizer_id)


def _events(found: Iterable[Found]) -> Iterable[ChatEvent]:
    for one in found:
        yield TextDelta("content", one) if isinstance(one, str) else one
