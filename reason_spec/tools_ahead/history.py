"""What a conversation holds so far: events, their values by place, and the calls made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reason_spec.tools_ahead.calls import Called, Event, Returned, Said
from reason_spec.tools_ahead.values import Aliases, Value, values_of, year_of


@dataclass(slots=True)
class Entry:
    """An event with its values. ``turn`` counts the user's texts up to it."""

    event: Event
    source: str
    turn: int
    by_origin: dict[str, list[Value]] = field(default_factory=lambda: defaultdict(list))
    by_key: dict[str, list[Value]] = field(default_factory=lambda: defaultdict(list))
    fillings: dict[object, list[dict[str, str]]] = field(default_factory=dict)
    """Kept by `reason_spec.tools_ahead.shapes`: an event never changes."""


class History:
    """The prefix of a conversation; it only grows."""

    def __init__(self, aliases: Aliases, kept: list[Entry] | None = None) -> None:
        """Begin an empty history.

        Args:
            kept: the entries of the same conversation with the same aliases, which are not made again.
        """
        self._kept = kept or []
        self.entries: list[Entry] = []
        self.by_source: dict[str, list[int]] = defaultdict(list)
        self.with_key: dict[str, list[int]] = defaultdict(list)
        """The entries that hold a value, by its key."""
        self.calls: dict[str, list[int]] = defaultdict(list)
        """The entries of the calls made, by the call's key."""
        self.num_calls: dict[str, int] = defaultdict(int)
        self.proposals: dict[object, tuple[tuple[int, ...], list[Any]]] = {}
        """Kept by `reason_spec.tools_ahead.shapes`, with the numbers of events that they were made of."""
        self.turn = 0
        self._learnt = aliases
        self._own = Aliases()
        self._year: int | None = None

    def add(self, event: Event) -> None:
        place = len(self.entries)
        if isinstance(event, Said):
            self.turn += event.speaker == "user"
            self._own.learn(event.text)
        if self._year is None and isinstance(event, (Said, Returned)):
            self._year = year_of(event.text)
        entry = self._kept[place] if place < len(self._kept) else self._entry_of(event)
        for key in entry.by_key:
            self.with_key[key].append(place)
        self.by_source[entry.source].append(place)
        if isinstance(event, Called):
            self.calls[event.call.key].append(place)
            self.num_calls[event.call.name] += 1
        self.entries.append(entry)

    def _entry_of(self, event: Event) -> Entry:
        entry = Entry(event, source_of(event), self.turn)
        for value in values_of(event, (self._learnt, self._own), self._year):
            entry.by_origin[value.origin].append(value)
            entry.by_key[value.key].append(value)
        return entry

    def extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.add(event)

    def last(self, kind: type[Event], speaker: str | None = None) -> Event | None:
        for entry in reversed(self.entries):
            event = entry.event
            if isinstance(event, kind) and (speaker is None or getattr(event, "speaker", None) == speaker):
                return event
        return None

    @property
    def trigger(self) -> str:
        """What the next text of the model answers: ``user``, or ``result TOOL``."""
        return self.entries[-1].source if self.entries else "start"


def source_of(event: Event) -> str:
    """Return the first words of the origins of an event's values."""
    match event:
        case Called(call):
            return f"argument {call.name}"
        case Returned(call):
            return f"result {call.name}"
        case Said(speaker):
            return speaker
