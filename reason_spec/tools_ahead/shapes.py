"""Shapes of calls: where the value of each argument comes from, learnt from past conversations.

A pattern of PASTE (arXiv 2603.18897) is a context, a tool and a function that makes the arguments. Here a
shape is a tool and the origin of each argument: a place of an earlier result or call, a form of word in a
text, or a constant. Its context and its chance are left to the model of `reason_spec.tools_ahead.model`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from reason_spec.tools_ahead.calls import Call
from reason_spec.tools_ahead.history import Entry, History
from reason_spec.tools_ahead.values import Value

MAX_SHAPES: Final = 14
"""Of a tool, those with the most conversations."""
MAX_CANDIDATES: Final = 16
"""Calls that a shape proposes at one point."""
_MAX_ENTRIES: Final = 4
"""Latest events of a source in which a shape looks for values."""
_MAX_PLACES: Final = 10
_MAX_ROWS: Final = 100
_MAX_ORIGINS: Final = 3
_CONSTANT: Final = "="


class Binding(NamedTuple):
    """An argument and the origin of its value, ``=`` and JSON for a constant."""

    argument: str
    origin: str


@dataclass(frozen=True)
class Shape:
    """A tool with the origins of its arguments."""

    tool: str
    bindings: tuple[Binding, ...]

    @cached_property
    def by_source(self) -> tuple[tuple[str, tuple[Binding, ...]], ...]:
        """The bindings that are no constants, by the source whose event gives their values."""
        groups: dict[str, list[Binding]] = defaultdict(list)
        for binding in self.bindings:
            if not binding.origin.startswith(_CONSTANT):
                groups[_source(binding.origin)].append(binding)
        return tuple((source, tuple(group)) for source, group in groups.items())

    @cached_property
    def constants(self) -> dict[str, str]:
        return {argument: origin[1:] for argument, origin in self.bindings if origin.startswith(_CONSTANT)}

    @cached_property
    def _hash(self) -> int:
        return hash((self.tool, self.bindings))

    def __hash__(self) -> int:
        return self._hash


class Proposed(NamedTuple):
    """A call that a shape proposes. ``entry`` is the event of its first value, -1 if all are constant;
    ``place`` and ``size`` are its place among the calls from that event and their number."""

    call: Call
    entry: int
    place: int
    size: int


def _source(origin: str) -> str:
    head, _, rest = origin.partition(" ")
    return f"{head} {rest.split(' ', 1)[0]}" if head in ("result", "argument") else head


def shapes_of(call: Call, history: History) -> set[Shape]:
    """Return the shapes that explain a call by the conversation before it."""
    keys = call.values
    places = {argument: history.with_key.get(key, [])[-_MAX_PLACES:] for argument, key in keys.items()}
    constant = {argument: Binding(argument, _CONSTANT + key) for argument, key in keys.items()}
    found: set[Shape] = set()
    anchors = {place for of_argument in places.values() for place in of_argument}
    for anchor in anchors or {-1}:
        options: list[list[Binding]] = []
        for argument in sorted(keys):
            of_argument = places[argument]
            here = [anchor] if anchor in of_argument else of_argument[-1:]
            options.append(
                [
                    Binding(argument, value.origin)
                    for place in here
                    for value in history.entries[place].by_key[keys[argument]][:_MAX_ORIGINS]
                ]
                or [constant[argument]]
            )
        for bindings in itertools.islice(itertools.product(*options), 12):
            found.add(Shape(call.name, bindings))
    found.add(Shape(call.name, tuple(constant[argument] for argument in sorted(keys))))
    return found


def proposals_of(shape: Shape, history: History) -> list[Proposed]:
    """Return the calls that a shape proposes, from the latest event backwards, in the order of its lists."""
    version = tuple(len(history.by_source.get(source, ())) for source, _ in shape.by_source)
    kept = history.proposals.get(shape)
    if kept is None or kept[0] != version:
        kept = history.proposals[shape] = (version, _propose(shape, history))
    return kept[1]


def _propose(shape: Shape, history: History) -> list[Proposed]:
    groups: list[list[tuple[int, dict[str, str], int, int]]] = []
    for source, bindings in shape.by_source:
        choices = []
        for place in reversed(history.by_source.get(source, [])[-_MAX_ENTRIES:]):
            filled = _fillings(bindings, history.entries[place])
            choices += [(place, values, number, len(filled)) for number, values in enumerate(filled)]
        if not choices:
            return []
        groups.append(choices)
    proposed: dict[str, Proposed] = {}
    for parts in itertools.islice(itertools.product(*groups), MAX_CANDIDATES):
        arguments = dict(shape.constants)
        for _, values, _, _ in parts:
            arguments.update(values)
        entry, _, place, size = parts[0] if parts else (-1, {}, 0, 1)
        call = Call(shape.tool, arguments)
        proposed.setdefault(call.key, Proposed(call, entry, place, size))
    return list(proposed.values())


def _fillings(bindings: tuple[Binding, ...], entry: Entry) -> list[dict[str, str]]:
    """Return the values of arguments that come from one event: those of one list item belong together."""
    if bindings not in entry.fillings:
        columns = [entry.by_origin.get(origin, []) for _, origin in bindings]
        rows = itertools.islice(itertools.product(*columns), _MAX_ROWS)
        keys = dict.fromkeys(tuple(value.key for value in row) for row in rows if _belong_together(row))
        names = [binding.argument for binding in bindings]
        entry.fillings[bindings] = [dict(zip(names, row, strict=True)) for row in keys]
    return entry.fillings[bindings]


def _belong_together(values: Sequence[Value]) -> bool:
    if len(values) == 1:
        return True
    longest = max((value.indices for value in values), key=len)
    return all(value.indices == longest[: len(value.indices)] for value in values)


class ShapeCounts:
    """How often shapes explained calls, by tool: in how many conversations, and in how many calls."""

    def __init__(self) -> None:
        self.conversations: dict[str, Counter[Shape]] = defaultdict(Counter)
        self._best: dict[str, list[Shape]] = {}

    def learn(self, explained: Iterable[Shape]) -> None:
        """Learn the shapes of the calls of one conversation."""
        for shape in set(explained):
            self.conversations[shape.tool][shape] += 1
        self._best.clear()

    def forget(self, explained: Iterable[Shape]) -> None:
        """Take back the shapes of one conversation."""
        for shape in set(explained):
            counts = self.conversations[shape.tool]
            counts[shape] -= 1
            if not counts[shape]:
                del counts[shape]
            if not counts:
                del self.conversations[shape.tool]
        self._best.clear()

    def copy(self) -> ShapeCounts:
        """Return the same counts, which go on on their own."""
        copied = ShapeCounts()
        copied.conversations.update({tool: counts.copy() for tool, counts in self.conversations.items()})
        return copied

    def best(self, tool: str) -> list[Shape]:
        """Return the shapes of a tool that explained calls of the most conversations, of two at least."""
        if tool not in self._best:
            ranked = self.conversations[tool].most_common(MAX_SHAPES) if tool in self.conversations else []
            self._best[tool] = [shape for shape, count in ranked if count > 1]
        return self._best[tool]
