"""Streams at an even pace, which hides what was drafted.

A drafted step is complete at once, where the target alone would write it token by token. Sizes and times of
packets would show which it was, to the client and to an observer of the network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace

from reason_spec.chat.base import ChatEnd, TextDelta, ToolCallDelta
from reason_spec.server.base import PredictedCallsEvent, StreamEvent

PACKET_BYTES = 1024
"""Packet sizes are multiples of this."""


@dataclass(frozen=True, slots=True)
class Pace:
    """At most ``chars`` characters of each answer every ``seconds``."""

    seconds: float = 0.1
    chars: int = 256


class Backlog:
    """Events of the answers of one stream that were not sent yet, in order for each answer."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[StreamEvent]] = {}

    def __bool__(self) -> bool:
        return any(self._waiting.values())

    def add(self, index: int, event: StreamEvent) -> None:
        self._waiting.setdefault(index, deque()).append(event)

    def take(self, num_chars: int) -> Iterable[tuple[int, StreamEvent]]:
        """Yield at most ``num_chars`` characters of each answer, in as few events as possible."""
        for index, waiting in self._waiting.items():
            for event in _together(_taken(waiting, num_chars)):
                yield index, event


def _taken(waiting: deque[StreamEvent], num_left: int) -> Iterable[StreamEvent]:
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


def _size(event: StreamEvent) -> int:
    match event:
        case TextDelta():
            return len(event.text)
        case ToolCallDelta():
            return len(event.arguments)
        case ChatEnd() | PredictedCallsEvent():
            return 0


def _cut(event: StreamEvent, place: int) -> tuple[StreamEvent, StreamEvent]:
    """Cut an event in two; log-probabilities stay with the second part, the name of a tool with the first."""
    match event:
        case TextDelta():
            first = TextDelta(event.channel, event.text[:place])
            return first, replace(event, text=event.text[place:])
        case ToolCallDelta():
            first_arguments = replace(event, arguments=event.arguments[:place])
            return first_arguments, ToolCallDelta(event.index, event.arguments[place:])
        case ChatEnd() | PredictedCallsEvent():
            raise AssertionError("it has no characters")


def _together(events: Iterable[StreamEvent]) -> Iterable[StreamEvent]:
    last: StreamEvent | None = None
    for event in events:
        joined = None if last is None else _joined(last, event)
        if last is not None and joined is None:
            yield last
        last = event if joined is None else joined
    if last is not None:
        yield last


def _joined(first: StreamEvent, second: StreamEvent) -> StreamEvent | None:
    """Return two events as one; None if they cannot be joined."""
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
    """Return server-sent events after a comment that pads them to the packet size; clients skip comments."""
    num_missing = -len(content) % PACKET_BYTES
    if num_missing or not content:
        # The shortest comment has four bytes.
        num_missing = num_missing if num_missing >= 4 else num_missing + PACKET_BYTES
        content = b": " + b" " * (num_missing - 4) + b"\n\n" + content
    return content


async def ticks(seconds: float) -> AsyncGenerator[None]:
    """Yield at multiples of ``seconds``, forever; ticks that a late reader missed are skipped."""
    clock = asyncio.get_running_loop().time
    due = clock()
    while True:
        due += seconds * max(1, int((clock() - due) / seconds) + 1)
        await asyncio.sleep(due - clock())
        yield
