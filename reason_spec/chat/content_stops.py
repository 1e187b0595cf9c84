"""Stop strings in the content of an answer alone, where its text holds headers and thinking as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reason_spec.chat.call_forms import Found
from reason_spec.segment import StopScanner


class ContentStops:
    """Ends what a parser has found at the first stop string in its content.

    Content that may be the beginning of a stop is held back. A stop does not reach over a call or a thinking.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self._begin()
        self.hit: str | None = None
        """The stop string that was found."""

    def _begin(self) -> None:
        self._scanner = StopScanner(self._stops)
        self._num_passed_on = 0

    def feed(self, found: Iterable[Found]) -> Iterator[Found]:
        """Yield the found without held back content; nothing from the stop on."""
        for one in found:
            if self.hit is not None:
                return
            if isinstance(one, str):
                yield from self._text(one)
            else:
                yield from self.close()
                self._begin()
                yield one

    def close(self) -> Iterator[str]:
        """Yield the content that is held back."""
        if self._held and self.hit is None:
            yield self._held
        self._held = ""

    def _text(self, text: str) -> Iterator[str]:
        hit = self._scanner.feed(text)
        text, self._held = self._held + text, ""
        if hit is not None:
            self.hit = hit.stop
            text = text[: hit.start - self._num_passed_on]
        elif num_held := self._scanner.held_back():
            text, self._held = text[:-num_held], text[-num_held:]
        self._num_passed_on += len(text)
        if text:
            yield text
