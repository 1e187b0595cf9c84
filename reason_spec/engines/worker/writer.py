"""Follows one generation token by token: says when it is over, and makes its deltas and its result."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from reason_spec.engines.base import Delta, EngineRequest, GenerationResult
from reason_spec.segment import StopScanner
from reason_spec.types import FinishReason, Usage


class Vocabulary(Protocol):
    """What following a text needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class TextWriter:
    """The text written so far, and why it ended.

    A stop beats a boundary that is completed by the same token, and both beat the length limit. Of a token
    that is a stop itself nothing is read, so that no stop string is found in it.
    """

    def __init__(self, request: EngineRequest, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = vocabulary.eos_ids
        self._stop_ids = request.stop_ids
        self._max_tokens = request.max_tokens
        self._num_tokens = 0
        self._scanner = request.boundary_scanner()
        self._stops = StopScanner(request.stops, request.stop_context)
        self._context_length = len(request.stop_context)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self._stop_start: int | None = None
        self.finish: FinishReason | None = None

    def feed(self, token: int) -> FinishReason | None:
        """Take a certain token; return the reason if it ends the generation."""
        self._num_tokens += 1
        if token in self._eos_ids:
            self.finish = "eos"
            return self.finish
        if token in self._stop_ids:
            self.finish = "stop"
            return self.finish
        token_bytes = self._vocabulary.token_bytes(token)
        text = self._decoder.decode(token_bytes)
        self._parts.append(text)
        if (hit := self._stops.feed(text)) is not None:
            self._stop_start = hit.start - self._context_length
            self.finish = "stop"
        elif self._scanner is not None and self._scanner.feed(token_bytes):
            self.finish = "boundary"
        elif self._num_tokens >= self._max_tokens:
            self.finish = "length"
        return self.finish

    def ends_behind(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the tokens that may follow end the generation, stop strings left out."""
        scanner = None if self._scanner is None else self._scanner.copy()
        for count, token in enumerate(tokens, start=1):
            if token in self._eos_ids or token in self._stop_ids:
                return count
            if scanner is not None and scanner.feed(self._vocabulary.token_bytes(token)):
                return count
        return None

    @property
    def text(self) -> str:
        """The text so far, cut where a stop begins; call it once, at the end."""
        text = "".join(self._parts) + self._decoder.decode(b"", final=True)
        return text if self._stop_start is None else text[: max(0, self._stop_start)]

    @property
    def num_stop_overlap(self) -> int:
        """Characters of the stop that lie before this generation."""
        return 0 if self._stop_start is None else max(0, -self._stop_start)


class WrittenTokens:
    """The certain tokens of a generation. ``room`` is how many the model's context has left for them."""

    def __init__(self, request: EngineRequest, vocabulary: Vocabulary, room: int) -> None:
        # Without any room the request is refused, and nothing is taken.
        self.max_tokens = max(1, min(request.max_tokens, room))
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.num_discarded = 0
        self.finish: FinishReason | None = None
        self._request = request
        self._writer = TextWriter(replace(request, max_tokens=self.max_tokens), vocabulary)
        self._num_delivered = 0

    def take(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Take tokens up to the end of the generation; those behind it are counted as discarded."""
        for index, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.finish = self._writer.feed(token)
            if self.finish is not None:
                self.num_discarded += len(tokens) - index - 1
                return

    def ends_behind(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the tokens that may follow end the generation, stop strings left out."""
        return self._writer.ends_behind(tokens)

    def take_delta(self) -> Delta | None:
        """Return what was not delivered yet; None while it is too little, or nothing is to be streamed."""
        new = len(self.tokens) - self._num_delivered
        waits = self.finish is None and new < self._request.delta_tokens
        if not self._request.stream or new == 0 or waits:
            return None
        start, self._num_delivered = self._num_delivered, len(self.tokens)
        return Delta(tuple(self.tokens[start:]), tuple(self.logprobs[start:]))

    def result(self, finish: FinishReason, usage: Usage, error: str | None = None) -> GenerationResult:
        """Return the result; call it once, at the end."""
        return GenerationResult(
            tokens=tuple(self.tokens),
            text=self._writer.text,
            logprobs=tuple(self.logprobs),
            finish=finish,
            usage=usage,
            num_stop_overlap=self._writer.num_stop_overlap,
            error=error,
        )
