"""Log-probabilities of the content of an answer alone, where its text holds headers and thinking as well."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from reason_spec.chat.base import TokenLogprob
from reason_spec.chat.content_stops import ContentStops


class _PlacedToken(NamedTuple):
    start: int
    """Characters of the text before its first one."""
    end: int
    logprob: TokenLogprob


class ContentLogprobs:
    """Finds the tokens of the content in the steps of an answer. They come later than the text.

    Args:
        content_places: the place in the text of each character of the content; it grows with the text.
        stops: passes the content on; None: all of it is passed on at once.
    """

    def __init__(self, content_places: Sequence[int], stops: ContentStops | None) -> None:
        self._places = content_places
        self._stops = stops
        # A step may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_characters = 0
        """Characters of the steps so far."""
        self._held: deque[_PlacedToken] = deque()

    def take(self, step_text: str, logprobs: Sequence[TokenLogprob] | None) -> None:
        """Read the next step and its tokens, None where their log-probabilities are unknown."""
        if logprobs is None:
            self._num_characters += len(step_text)
            self._decoder.reset()
            return
        for token in logprobs:
            start = self._num_characters
            self._num_characters += len(self._decoder.decode(token.content))
            is_split = bool(self._decoder.getstate()[0])
            self._held.append(_PlacedToken(start, self._num_characters + is_split, token))

    def continue_at(self, place: int) -> None:
        """Take the next step for the text from ``place`` on; nothing before it is content."""
        self._held.clear()
        self._decoder.reset()
        self._num_characters = place

    @property
    def _num_passed_on(self) -> int:
        return len(self._places) if self._stops is None else self._stops.num_passed_on

    @property
    def is_behind(self) -> bool:
        """Whether the step of the last content that was passed on has not come yet."""
        num_passed_on = self._num_passed_on
        return num_passed_on > 0 and self._places[num_passed_on - 1] >= self._num_characters

    def release(self) -> tuple[TokenLogprob, ...]:
        """Return the new tokens with a character of the content that was passed on."""
        num_passed_on = self._num_passed_on
        released: list[TokenLogprob] = []
        while self._held:
            start, end, logprob = self._held[0]
            place = bisect_left(self._places, start, hi=num_passed_on)
            if place == num_passed_on:
                break
            if self._places[place] < end:
                released.append(logprob)
            self._held.popleft()
        return tuple(released)
