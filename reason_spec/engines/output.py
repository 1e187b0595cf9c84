"""Follows the tokens of one generation: text, stops, step boundary, deltas and the result.

All engines, and the text that streams before its step is final, use the same decoder.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from reason_spec.engines.generation import Delta, EngineRequest, GenerationResult
from reason_spec.segment import StopScanner
from reason_spec.types import FinishReason, Usage


class Vocabulary(Protocol):
    """The part of a tokenizer that decoding needs."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class IncrementalDecoder:
    """Decodes one token after the other, up to the first stop string or stop token of a request.

    A character may be spread over several tokens: it comes with the last of them. A stop token and the end
    of the text have no text, so no stop string is found in them.
    """

    def __init__(self, request: EngineRequest, vocabulary: Vocabulary) -> None:
        self._token_bytes = vocabulary.token_bytes
        self._eos_ids = vocabulary.eos_ids
        self._stop_ids = request.stop_ids
        self._stops = StopScanner(request.stops, request.stop_context)
        self._context_length = len(request.stop_context)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.stopped = False
        self.stop_start: int | None = None
        """Where the stop string begins, in characters; negative if it begins in ``stop_context``."""

    def feed(self, token: int) -> str:
        """Return the text that the token completes."""
        if token in self._stop_ids:
            self.stopped = True
            return ""
        if token in self._eos_ids:
            return ""
        text = self._decoder.decode(self._token_bytes(token))
        if (hit := self._stops.feed(text)) is not None:
            self.stopped = True
            self.stop_start = hit.start - self._context_length
        return text

    def flush(self) -> str:
        """Return the text of an incomplete character at the end; call it once."""
        return self._decoder.decode(b"", final=True)

    @property
    def num_held_back(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        return self._stops.held_back()


class OutputText:
    """The text of a generation, and the reason why it ended.

    Where one token completes several ends, a stop goes before a boundary, and both before the length limit.
    """

    def __init__(self, request: EngineRequest, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = vocabulary.eos_ids
        self._stop_ids = request.stop_ids
        self._max_tokens = request.max_tokens
        self._num_tokens = 0
        self._decoder = IncrementalDecoder(request, vocabulary)
        self._scanner = request.boundary_scanner()
        self._parts: list[str] = []
        self.finish: FinishReason | None = None

    def feed(self, token: int) -> FinishReason | None:
        """Take a generated token; return the reason if it ends the generation."""
        self._num_tokens += 1
        if token in self._eos_ids:
            self.finish = "eos"
            return self.finish
        self._parts.append(self._decoder.feed(token))
        if self._decoder.stopped:
            self.finish = "stop"
        elif self._scanner is not None and self._scanner.feed(self._vocabulary.token_bytes(token)):
            self.finish = "boundary"
        elif self._num_tokens >= self._max_tokens:
            self.finish = "length"
        return self.finish

    def length_to_end(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the next tokens there are up to an end; None if they hold none.

        Stop strings are not looked for.
        """
        scanner = None if self._scanner is None else self._scanner.copy()
        for count, token in enumerate(tokens, start=1):
            if token in self._eos_ids or token in self._stop_ids:
                return count
            if scanner is not None and scanner.feed(self._vocabulary.token_bytes(token)):
                return count
        return None

    @property
    def text(self) -> str:
        """The text without its stop string; call it once, at the end."""
        text = "".join(self._parts) + self._decoder.flush()
        start = self._decoder.stop_start
        return text if start is None else text[: max(0, start)]

    @property
    def num_stop_overlap(self) -> int:
        """Characters of the stop string that lie before this generation."""
        return max(0, -(self._decoder.stop_start or 0))


class RequestOutput:
    """The generated tokens of a request, their deltas and the result.

    Args:
        room: tokens that the model's context has left.
    """

    def __init__(self, request: EngineRequest, vocabulary: Vocabulary, room: int) -> None:
        # A request without room is refused, and gets no tokens.
        self.max_tokens = max(1, min(request.max_tokens, room))
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.num_discarded = 0
        self.finish: FinishReason | None = None
        self.first_entropy: float | None = None
        self._request = request
        self._text = OutputText(replace(request, max_tokens=self.max_tokens), vocabulary)
        self._num_delivered = 0

    def extend(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Take tokens up to the end of the generation; count those after it as discarded."""
        for index, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.finish = self._text.feed(token)
            if self.finish is not None:
                self.num_discarded += len(tokens) - index - 1
                return

    def length_to_end(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the next tokens there are up to an end; None if they hold none."""
        return self._text.length_to_end(tokens)

    def take_delta(self) -> Delta | None:
        """Return the tokens that were not delivered yet; None if it is too early, or without streaming."""
        new = len(self.tokens) - self._num_delivered
        least, first = self._request.delta_tokens, self._request.first_delta_tokens
        if first is not None and self._num_delivered <= first:
            least = first if self._num_delivered == 0 else least - first
        is_early = self.finish is None and new < least
        if not self._request.stream or new == 0 or is_early:
            return None
        start, self._num_delivered = self._num_delivered, len(self.tokens)
        return Delta(tuple(self.tokens[start:]), tuple(self.logprobs[start:]))

    def result(self, finish: FinishReason, usage: Usage, error: str | None = None) -> GenerationResult:
        """Return the result; call it once, at the end."""
        return GenerationResult(
            tokens=tuple(self.tokens),
            text=self._text.text,
            logprobs=tuple(self.logprobs),
            finish=finish,
            usage=usage,
            num_stop_overlap=self._text.num_stop_overlap,
            error=error,
            first_entropy=self.first_entropy,
        )
