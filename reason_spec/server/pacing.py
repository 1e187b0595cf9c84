"""Streams at an even pace, so that what was written at once does not show.

A step that the suffix cache or the draft brought stands as a whole, where the target alone would have written
it token by token. Sent at once, the sizes and times of what is sent tell one from the other, to the client
and to whoever watches the network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace

from reason_spec.chat.base import ChatEnd, ChatEvent, TextDelta, ToolCallDelta

PACKET_BYTES = 1024
"""What is sent has a multiple of this as its size."""


@dataclass(frozen=True, slots=True)
class Pace:
    """At most ``chars`` characters of each answer every ``seconds``."""

    seconds: float
    chars: int


class Backlog:
    """What the answers of one stream said and the client was not sent, in order for each of them."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[ChatEvent]] = {}

    def __bool__(self) -> bool:
        return any(self._waiting.values())

    def add(self, index: int, event: ChatEvent) -> None:
        self._waiting.setdefault(index, deque()).append(event)

    def take(self, num_chars: int) -> Iterable[tuple[int, ChatEvent]]:
        """Yield at most so many characters of each answer, in as few events as there can be."""
        for index, waiting in self._waiting.items():
            for event in _together(_taken(waiting, num_chars)):
                yield index, event


def _taken(waiting: deque[ChatEvent], num_left: int) -> Iterable[ChatEvent]:
    while waiting:
        event = waiting.popleft()
        size = _size(event)
        if size > num_left:
            if num_left:
                first, rest = _cut(event, num_left)
                waiting.appendleft(rest)
                yield first
            else:
                waiting.appendleft(event)
            return
        num_left -= size
        yield event


def _size(event: ChatEvent) -> int:
    match event:
        case TextDelta():
            return len(event.text)
        case ToolCallDelta():
            return len(event.arguments)
        case ChatEnd():
            return 0


def _cut(event: ChatEvent, place: int) -> tuple[ChatEvent, ChatEvent]:
    """Cut an event in two; log-probabilities stay with the end of their text, the name with the beginning."""
    match event:
        case TextDelta():
            first = TextDelta(event.channel, event.text[:place])
            return first, replace(event, text=event.text[place:])
        case ToolCallDelta():
            first_arguments = replace(event, arguments=event.arguments[:place])
            return first_arguments, ToolCallDelta(event.index, event.arguments[place:])
        case ChatEnd():
            raise AssertionError("an end has no characters")


def _together(events: Iterable[ChatEvent]) -> Iterable[ChatEvent]:
    last: ChatEvent | None = None
    for event in events:
        joined = None if last is None else _joined(last, event)
        if last is not None and joined is None:
            yield last
        last = event if joined is None else joined
    if last is not None:
        yield last


def _joined(first: ChatEvent, second: ChatEvent) -> ChatEvent | None:
    """Return two events as one; None where they are not of one kind."""
    if isinstance(first, TextDelta) and isinstance(second, TextDelta) and first.channel == second.channel:
        logprobs = (*(first.logprobs or ()), *(second.logprobs or ()))
        return TextDelta(first.channel, first.text + second.text, logprobs or None)
    if (
        isinstance(first, ToolCallDelta)
        and isinstance(second, ToolCallDelta)
        and first.index == second.index
        and second.id is None
    ):
        return replace(first, arguments=first.arguments + second.arguments)
    return None


def padded(content: bytes) -> bytes:
    """Return server-sent events behind a comment, which clients skip, so that the size tells little."""
    num_missing = -len(content) % PACKET_BYTES
    if num_missing or not content:
        # The comment has four bytes at least.
        num_missing = num_missing if num_missing >= 4 else num_missing + PACKET_BYTES
    return _comment(num_missing) + content


def _comment(num_bytes: int) -> bytes:
    return b": " + b" " * (num_bytes - 4) + b"\n\n" if num_bytes else b""


async def ticks(seconds: float) -> AsyncGenerator[None]:
    """Yield every so many seconds, for ever; where the reader was late the next comes in its turn."""
    clock = asyncio.get_running_loop().time
    due = clock()
    while True:
        due += seconds * max(1, int((clock() - due) / seconds) + 1)
        await asyncio.sleep(due - clock())
        yield
