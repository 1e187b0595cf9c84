"""Streams the text of a generation token by token, before its steps are final."""

from __future__ import annotations

from collections.abc import Sequence

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.output import IncrementalDecoder
from reason_spec.events import TextListener


class TextStream:
    """Passes the text of a generation on to a listener, up to where a stop string may still cut it.

    Args:
        start: characters of the answer before the generation.
    """

    def __init__(
        self, listener: TextListener, tokenizer: Tokenizer, request: EngineRequest, start: int
    ) -> None:
        self._listener = listener
        self._start = start
        self._decoder = IncrementalDecoder(request, tokenizer)
        self._unsent = ""
        self._num_sent = 0

    def feed(self, tokens: Sequence[int]) -> None:
        """Take new tokens of the generation."""
        for token in tokens:
            if self._decoder.stopped:
                return
            self._unsent += self._decoder.feed(token)

    def flush(self) -> None:
        """Pass the new text on; call it only while the generation's text is part of the answer."""
        end = len(self._unsent) - self._decoder.num_held_back
        # At a stop string the final step says how much of the text remains.
        if end > 0 and self._decoder.stop_start is None:
            self._listener(self._start + self._num_sent, self._unsent[:end])
            self._num_sent += end
            self._unsent = self._unsent[end:]
