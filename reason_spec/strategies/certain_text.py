"""Text that is certain before its step is final: what streams token by token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import takewhile

from reason_spec.engines.base import EngineRequest, Tokenizer
from reason_spec.events import TextListener
from reason_spec.segment import StopScanner


class CertainText:
    """Tells a listener of a generation's text, as far as no stop string may cut it off again.

    Args:
        start: characters of the answer that stand before the generation.
    """

    def __init__(
        self, listener: TextListener, tokenizer: Tokenizer, request: EngineRequest, start: int
    ) -> None:
        self._listener = listener
        self._tokenizer = tokenizer
        self._start = start
        # A character may be spread over two tokens.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopScanner(request.stops, request.stop_context)
        self._stop_ids = request.stop_ids
        self._is_cut = False
        self._untold = ""
        self._num_told = 0

    def feed(self, tokens: Sequence[int]) -> None:
        """Take tokens of the generation, told of or not."""
        read = list(takewhile(lambda token: token not in self._stop_ids, tokens))
        text = self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, read)))
        self._untold += text
        # Where a stop was found the final step says how much of the text is left.
        self._is_cut = self._is_cut or self._stops.feed(text) is not None

    def tell(self) -> None:
        """Let the listener have what is new, now that the generation's words are the answer's."""
        end = len(self._untold) - self._stops.held_back()
        if end > 0 and not self._is_cut:
            self._listener(self._start + self._num_told, self._untold[:end])
            self._num_told += end
            self._untold = self._untold[end:]
