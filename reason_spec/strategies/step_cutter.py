"""Cuts a stream of tokens into steps, at the boundaries that a stepwise strategy would see."""

from __future__ import annotations

from reason_spec.engines.base import Tokenizer
from reason_spec.segment import NOTHING_OPEN, Boundary, BoundaryScanner, OpenBlocks
from reason_spec.strategies.step_tokens import known_logprobs, num_whole, open_blocks_after
from reason_spec.types import FinishReason, Origin, Step


class StepCutter:
    """Takes a text token by token and gives its steps; make a new one for each text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        boundary: Boundary,
        step_max_tokens: int,
        origin: Origin,
        begins_in: OpenBlocks = NOTHING_OPEN,
    ) -> None:
        self._tokenizer = tokenizer
        self._step_max_tokens = step_max_tokens
        self._origin = origin
        self._boundary = boundary
        self._begins_in = begins_in
        self._scanner = BoundaryScanner(boundary, begins_in)
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._ready: FinishReason | None = None
        self._text_length = 0

    def feed(self, token: int, logprob: float) -> Step | None:
        """Take a token; return the step before it where that step is over."""
        step = self._cut(self._ready) if self._ready is not None else None
        self._take(token, logprob)
        return step

    def last(self, text: str, finish: FinishReason, num_stop_overlap: int) -> Step:
        """Return the rest; ``text`` is the whole text, whose end a stop may have cut.

        ``num_stop_overlap`` counts characters of the stop before the text.
        """
        overlap = max(0, self._text_length - len(text)) + num_stop_overlap
        return self._make(len(self._tokens), text[self._text_length :], finish, overlap)

    def _take(self, token: int, logprob: float) -> None:
        self._tokens.append(token)
        self._logprobs.append(logprob)
        if self._scanner.feed(self._tokenizer.token_bytes(token)):
            self._ready = "boundary"
        elif len(self._tokens) == self._step_max_tokens:
            self._ready = "length"

    def _cut(self, finish: FinishReason) -> Step:
        count = num_whole(self._tokens, self._tokenizer) if finish == "length" else len(self._tokens)
        step = self._make(count, self._tokenizer.decode(self._tokens[:count]), finish, 0)
        self._text_length += len(step.text)
        rest = zip(self._tokens[count:], self._logprobs[count:], strict=True)
        self._tokens, self._logprobs, self._ready = [], [], None
        self._begins_in = open_blocks_after(step, self._boundary, self._begins_in)
        self._scanner = BoundaryScanner(self._boundary, self._begins_in)
        # The beginning of a character that the length has cut.
        for token, logprob in rest:
            self._take(token, logprob)
        return step

    def _make(self, count: int, text: str, finish: FinishReason, num_stop_overlap: int) -> Step:
        return Step(
            text=text,
            tokens=tuple(self._tokens[:count]),
            origin=self._origin,
            finish=finish,
            tokenizer_id=self._tokenizer.tokenizer_id,
            logprobs=known_logprobs(self._logprobs[:count], text, finish),
            num_stop_overlap=num_stop_overlap,
        )
