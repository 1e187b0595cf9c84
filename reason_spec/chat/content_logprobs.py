"""Log-probabilities of the content of an answer alone, where its text holds headers and thinking as well."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from reason_spec.chat.base import TokenLogprob
from reason_spec.chat.channel_calls import ChannelParser


class ContentLogprobs:
    """Finds the tokens of the content in the steps of an answer.

    Log-probabilities come at the end of a step, after its text. So the text is parsed a second time here,
    token by token.

    Args:
        parser: has read nothing yet.
    """

    def __init__(self, parser: ChannelParser) -> None:
        self._parser = parser
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held: list[TokenLogprob] = []
        """Tokens of which it is open whether they are content."""

    def skip(self, text: str) -> None:
        """Read text whose log-probabilities are unknown."""
        self._parser.feed(text)
        self._decoder.reset()
        self._held = []

    def take(self, rated: Iterable[TokenLogprob]) -> tuple[TokenLogprob, ...]:
        """Read the tokens of a step; return those that are content for certain now."""
        return tuple(one for token in rated for one in self._read(token))

    def _read(self, token: TokenLogprob) -> list[TokenLogprob]:
        text = self._decoder.decode(token.content)
        if not text:
            # Its character ends in a later token.
            self._held.append(token)
            return []
        found = self._parser.feed(text)
        certain: list[TokenLogprob] = []
        if is_content := any(isinstance(one, str) for one in found):
            certain, self._held = self._held, []
        elif not self._parser.holds_back:
            self._held = []
        if self._parser.holds_back:
            self._held.append(token)
        elif is_content:
            certain.append(token)
        return certain
