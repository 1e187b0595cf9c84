"""One choice of an answer as a stream of events: the thinking, the answer and its calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.thinking import Thinking
from reason_spec.chat.base import ChatEvent, TextDelta, ToolCallDelta
from reason_spec.chat.call_forms import CallParser, Found
from reason_spec.chat.channel_calls import ChannelParser
from reason_spec.chat.content_logprobs import ContentLogprobs
from reason_spec.chat.content_stops import ContentStops
from reason_spec.chat.drafted_calls import DraftedCalls
from reason_spec.chat.generation import GenerationStream, TextPiece
from reason_spec.chat.preparing import PreparedRequest
from reason_spec.chat.reporting import end_of
from reason_spec.chat.thinking import GAP, LeadingSpace
from reason_spec.chat.xml_calls import parser_for
from reason_spec.events import Listener
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import Constraint, Step

_NO_ROOM: Final = "load"


class AnswerStream:
    """Writes one choice of a prepared request.

    Args:
        index: the choice's number; each has noise of its own.
        speculate: False leaves the target alone.
        started: when the request came, by ``time.perf_counter``.
    """

    def __init__(
        self, accelerator: Accelerator, prepared: PreparedRequest, index: int, speculate: bool, started: float
    ) -> None:
        self._accelerator = accelerator
        self._tokenizer = accelerator.target.tokenizer
        self._prepared = prepared
        self._started = started
        self._strategies = prepared.strategies
        trouble = None if accelerator.draft is None else accelerator.draft.trouble
        if not speculate:
            self._strategies = self._strategies.without_drafts(accelerator, _NO_ROOM)
        elif trouble is not None and self._strategies.need_draft:
            self._strategies = self._strategies.without_drafts(accelerator, f"the draft {trouble}")
        self._sampling = prepared.sampling(index)
        self._num_left = prepared.max_tokens
        self._written: tuple[Step, ...] = ()
        self._thinking: GenerationStream | None = None
        self._begun = ""
        """The text of the answer in the tokens that end the thinking."""
        self._answer: list[GenerationStream] = []
        self._leading = LeadingSpace()
        self._parser: CallParser | None = None
        self._num_calls = 0
        self._stops: ContentStops | None = None
        """The stops of an answer whose headers are no part of its content."""
        self._logprobs: ContentLogprobs | None = None
        self._drafted: DraftedCalls | None = None
        if (tools := prepared.tools) is not None:
            self._parser = parser_for(tools.form, tools.tools, parallel=tools.parallel)
            if isinstance(self._parser, ChannelParser):
                self._stops = ContentStops(prepared.request.stops or ())
            self._logprobs = ContentLogprobs(self._parser.content_places, self._stops)
            if tools.on_drafted is not None:
                self._drafted = DraftedCalls(tools, tools.on_drafted)

    async def events(self) -> AsyncGenerator[ChatEvent]:
        """Yield final text and calls, and at last the end.

        Raises:
            EngineError: an engine failed.
        """
        if self._prepared.thinking is not None:
            async with aclosing(self._think(self._prepared.thinking)) as thinking:
                async for event in thinking:
                    yield event
        if self._has_room and (self._thinking is None or self._thinking.finish == "stop"):
            async with aclosing(self._write_answer()) as answer:
                async for event in answer:
                    yield event
        yield end_of(
            self._accelerator,
            self._prepared.num_prompt_tokens,
            self._strategies,
            thinking=self._thinking,
            answer=self._answer,
            num_calls=self._num_calls,
            stop=self._stops.hit if self._stops else None,
            started=self._started,
        )

    @property
    def _has_room(self) -> bool:
        """Whether a token of an answer fits; what is inserted takes room in the context alone."""
        num_written = sum(len(step.tokens) for step in self._written)
        room = self._accelerator.target.max_context - self._prepared.num_prompt_tokens - num_written
        return min(self._num_left, room) > 0

    async def _think(self, thinking: Thinking) -> AsyncGenerator[ChatEvent]:
        if thinking.opening:
            self._insert(thinking.opening)
        generation = self._thinking = self._generation(
            self._strategies.first, stops=(thinking.closer,), limit=self._prepared.limit
        )
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                if piece.text and isinstance(self._parser, ChannelParser):
                    self._parser.follows_thinking = True
                if piece.text or piece.logprobs:
                    yield TextDelta("reasoning", piece.text, piece.logprobs)
        self._continue_after(generation)
        if generation.finish == "stop":
            self._lead_to_answer(thinking)

    def _lead_to_answer(self, thinking: Thinking) -> None:
        """Insert what the model has not written between its thinking and the answer."""
        text = self._tokenizer.decode(self._thinking.tokens if self._thinking else ())
        if thinking.closer not in text:
            # The last step is another model's, without the tokens of the tag.
            self._insert(thinking.closer)
        begun = text.partition(thinking.closer)[2]
        if not begun.startswith(thinking.heading):
            self._insert(thinking.heading)
        self._begun = begun.removeprefix(thinking.heading)
        # A constrained answer may not begin with the gap that models write here.
        if self._prepared.constraint is not None and not thinking.heading:
            self._insert(GAP.removeprefix(begun))

    async def _write_answer(self) -> AsyncGenerator[ChatEvent]:
        self._leading.is_over = self._thinking is None
        for event in self._events_of(TextPiece(self._begun, step_text=self._begun)):
            yield event
        while True:
            generation = self._answer_generation()
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    for event in self._events_of(piece):
                        yield event
                    if self._is_over:
                        generation.is_cut_short = True
                        if not self._awaits_logprobs:
                            break
            if not self._stopped_in_leading_space(generation):
                break
        for event in self._last_events(generation):
            yield event

    @property
    def _is_over(self) -> bool:
        """Whether nothing more of the text is part of the answer."""
        is_stopped = self._stops is not None and self._stops.hit is not None
        return is_stopped or (self._parser is not None and self._parser.done)

    @property
    def _awaits_logprobs(self) -> bool:
        """Whether log-probabilities of the content are wanted and have not come yet."""
        return self._prepared.logprobs and self._logprobs is not None and self._logprobs.is_behind

    def _answer_generation(self) -> GenerationStream:
        strategy = self._strategies.answer if self._thinking is not None else self._strategies.first
        assert strategy is not None, "a strategy writes the answer after the thinking"
        request = self._prepared.request
        generation = self._generation(
            strategy,
            stops=() if self._stops else request.stops or (),
            stop_ids=request.stop_ids,
            constraint=self._prepared.constraint,
            limit=self._prepared.limit if self._thinking is None else None,
            listener=self._drafted,
        )
        self._answer.append(generation)
        return generation

    def _stopped_in_leading_space(self, generation: GenerationStream) -> bool:
        """Return whether a stop lies in the white space before the answer, which then continues."""
        if self._leading.is_over or generation.finish != "stop" or generation.is_cut_short:
            return False
        if generation.stop_id is not None:
            return False
        text = self._tokenizer.decode(generation.tokens)
        self._continue_after(generation)
        if self._parser is not None and self._logprobs is not None:
            self._logprobs.continue_at(self._parser.num_read)
        return not text.strip() and self._num_left > 0

    def _events_of(self, piece: TextPiece) -> Iterable[ChatEvent]:
        if self._parser is None or self._logprobs is None:
            text = self._leading.strip(piece.text)
            if text or piece.logprobs:
                yield TextDelta("content", text, piece.logprobs)
            return
        # Messages in channels have white space of their own at their beginning.
        text = piece.text if self._stops else self._leading.strip(piece.text)
        yield from self._found(self._parser.feed(text, len(piece.text) - len(text)))
        if piece.step_text:
            self._logprobs.take(piece.step_text, piece.logprobs)
        yield from self._released()

    def _last_events(self, generation: GenerationStream) -> Iterable[ChatEvent]:
        """Yield what was held back of an answer that is over."""
        if self._parser is None:
            return
        is_cut = generation.finish == "length" or generation.stop_id is not None
        yield from self._found(self._parser.close(is_cut=is_cut))
        if self._stops is not None:
            yield from (TextDelta("content", text) for text in self._stops.close())
        yield from self._released()

    def _released(self) -> Iterable[ChatEvent]:
        """Yield log-probabilities of content that was passed on."""
        if self._logprobs is not None and (found := self._logprobs.release()):
            yield TextDelta("content", "", found)

    def _found(self, found: Iterable[Found]) -> Iterable[ChatEvent]:
        for one in self._stops.feed(found) if self._stops else found:
            self._num_calls += isinstance(one, ToolCallDelta) and one.id is not None
            yield TextDelta("content", one) if isinstance(one, str) else one

    def _generation(
        self,
        strategy: Strategy,
        *,
        stops: tuple[str, ...],
        stop_ids: frozenset[int] = frozenset(),
        constraint: Constraint | None = None,
        limit: ThinkingLimit | None = None,
        listener: Listener | None = None,
    ) -> GenerationStream:
        request = replace(
            self._prepared.request,
            strategy=strategy,
            sampling=self._sampling,
            max_tokens=self._num_left,
            stops=stops,
            stop_ids=stop_ids,
            constraint=constraint,
            thinking=limit,
            written=self._written,
        )
        return GenerationStream(self._accelerator, request, self._prepared.prompts, listener)

    def _continue_after(self, generation: GenerationStream) -> None:
        """Let the next generation continue the text of this one."""
        tokens = generation.tokens
        self._num_left -= len(tokens)
        if tokens:
            self._written = (*self._written, self._step(tokens))

    def _insert(self, text: str) -> None:
        """Let the next generation continue after a text that is no part of the answer."""
        if text:
            self._written = (*self._written, self._step(self._tokenizer.encode(text)))

    def _step(self, tokens: tuple[int, ...]) -> Step:
        tokenizer = self._tokenizer
        text = tokenizer.decode(tokens)
        return Step(text, tokens, "target", "boundary", tokenizer_id=tokenizer.tokenizer_id)
