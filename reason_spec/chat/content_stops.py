"""Stop strings in the content of an answer alone, where its text holds headers and thinking as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reason_spec.chat.call_forms import Found
from reason_spec.segment import StopScanner


class ContentStops:
    """Passes on the results of a parser up to the first stop string in the content.

    Content that may be the beginning of a stop is held back. A stop lies in one message: it does not reach
    over a call, a thinking, or the empty line between two messages.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self._scanner = StopScanner(stops)
        self._num_before = 0
        """Characters of the content before those that the scanner has read."""
        self.num_passed_on = 0
        """Characters of the content that were passed on."""
        self.hit: str | None = None
        """The stop string that was found."""

    def feed(self, found: Iterable[Found]) -> Iterator[Found]:
        """Yield what a parser found, except for content that is held back; nothing after the stop."""
        for one in found:
            if self.hit is not None:
                return
            if isinstance(one, str):
                yield from self._text(one)
            else:
                yield from self.close()
                self._scanner, self._num_before = StopScanner(self._stops), self.num_passed_on
                yield one

    def close(self) -> Iterator[str]:
        """Yield the content that is held back."""
        text, self._held = self._held, ""
        return self._pass_on(text)

    def _text(self, text: str) -> Iterator[str]:
        hit = self._scanner.feed(text)
        text, self._held = self._held + text, ""
        if hit is not None:
            self.hit = hit.stop
            text = text[: self._num_before + hit.start - self.num_passed_on]
        elif num_held := self._scanner.held_back():
            text, self._held = text[:-num_held], text[-num_held:]
        return self._pass_on(text)

    def _pass_on(self, text: str) -> Iterator[str]:
        self.num_passed_on += len(text)
        if text:
            yield text
