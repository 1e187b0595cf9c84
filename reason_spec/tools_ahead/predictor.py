"""Predicts the next calls to read-only tools from the conversation so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from reason_spec.tools_ahead.calls import Call, Called, Event, Returned, Said
from reason_spec.tools_ahead.features import Candidate, Situation, Streamed, ToolCounts
from reason_spec.tools_ahead.history import History
from reason_spec.tools_ahead.recall import Memory
from reason_spec.tools_ahead.shapes import Proposed, Shape, ShapeCounts, proposals_of, shapes_of
from reason_spec.tools_ahead.values import Aliases

Row: TypeAlias = tuple[float, ...]
IsReadOnly: TypeAlias = Callable[[Call], bool]


class Chances(Protocol):
    """Gives each row of features its chance."""

    def chances(self, rows: Sequence[Row]) -> Sequence[float]: ...


class Prediction(NamedTuple):
    """A call that may come, and the chance that it comes before its result is worthless."""

    call: Call
    chance: float


class Scored(NamedTuple):
    """The candidates of one moment and their rows of features."""

    calls: list[Call]
    rows: list[Row]


class Knowledge:
    """What past conversations taught; it grows with `learn`."""

    def __init__(self, is_read_only: IsReadOnly) -> None:
        self.is_read_only = is_read_only
        self.aliases = Aliases()
        self.shapes = ShapeCounts()
        self.counts = ToolCounts()
        self.memory = Memory()

    @classmethod
    def of(cls, conversations: Iterable[Sequence[Event]], is_read_only: IsReadOnly) -> Knowledge:
        """Learn whole conversations: first the shapes, then how often each is right."""
        known, kept = cls(is_read_only), list(conversations)
        for events in kept:
            known._learn_aliases(events)
        for events in kept:
            known._learn_shapes(events)
        for events in kept:
            known._learn_rates(events)
        return known

    def learn(self, events: Sequence[Event]) -> None:
        """Learn one more conversation."""
        self._learn_aliases(events)
        self._learn_shapes(events)
        self._learn_rates(events)

    def _learn_aliases(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Said) and event.speaker != "system":
                self.aliases.learn(event.text)

    def _learn_shapes(self, events: Sequence[Event]) -> None:
        history, explained, calls = History(self.aliases), [], []
        for event in events:
            if isinstance(event, Called) and self.is_read_only(event.call):
                explained += shapes_of(event.call, history)
                calls.append(event.call)
            history.add(event)
        self.shapes.learn(explained)
        self.memory.learn(history, calls)

    def _learn_rates(self, events: Sequence[Event]) -> None:
        history = History(self.aliases)
        later = Counter(
            event.call.key
            for event in events
            if isinstance(event, Called) and self.is_read_only(event.call)
        )
        tried = set()
        seen: dict[Shape, list[Proposed]] = {}
        for number, event in enumerate(events):
            if isinstance(event, Called):
                later[event.call.key] -= self.is_read_only(event.call)
            history.add(event)
            if not starts_turn(event):
                continue
            self.counts.learn_next(history, next_tool(events, number + 1))
            for tool in self.shapes.conversations:
                for shape in self.shapes.best(tool):
                    proposals = proposals_of(shape, history)
                    if seen.get(shape) is proposals:
                        continue
                    seen[shape] = proposals
                    for proposed in proposals:
                        pair = (shape, proposed.call.key)
                        if pair not in tried and proposed.call.key not in history.calls:
                            tried.add(pair)
                            self.counts.tries[shape] += 1
                            self.counts.hits[shape] += later[proposed.call.key] > 0


def starts_turn(event: Event) -> bool:
    """Whether the model writes after an event."""
    return isinstance(event, Returned) or (isinstance(event, Said) and event.speaker == "user")


def next_tool(events: Sequence[Event], start: int) -> str:
    """Return the tool that the model calls in its next turn, ``""`` for none."""
    for event in events[start:]:
        if isinstance(event, Called):
            return event.call.name
        if isinstance(event, Said) and event.speaker == "user":
            break
    return ""


class CallPredictor:
    """Follows one conversation; sees its prefix only."""

    def __init__(self, knowledge: Knowledge, model: Chances | None = None) -> None:
        self._knowledge = knowledge
        self._model = model
        self.history = History(knowledge.aliases)
        self._last_write = -1

    def add(self, event: Event) -> None:
        """Append an event of the conversation."""
        if isinstance(event, Called) and not self._knowledge.is_read_only(event.call):
            self._last_write = len(self.history.entries)
        self.history.add(event)

    def predict(self, streamed: Streamed | None = None) -> list[Prediction]:
        """Return the calls that may come, likeliest first.

        Args:
            streamed: what the model has written of a call, if it has begun one.
        """
        assert self._model is not None, "a predictor without a model only makes rows"
        scored = self.score(streamed)
        chances = self._model.chances(scored.rows) if scored.rows else ()
        found = map(Prediction, scored.calls, chances)
        return sorted(found, key=lambda prediction: -prediction.chance)

    def score(self, streamed: Streamed | None = None) -> Scored:
        """Return the candidates with their features."""
        known = self._knowledge
        situation = Situation(self.history, known.counts, streamed, self._last_write)
        found: dict[str, Candidate] = {}
        for tool in [streamed.name] if streamed else list(known.shapes.conversations):
            for shape in known.shapes.best(tool):
                proposals = proposals_of(shape, self.history)
                situation.add_list(shape, proposals)
                for proposed in proposals:
                    candidate = found.setdefault(proposed.call.key, Candidate(proposed.call))
                    candidate.proposals.append((shape, proposed))
        for recalled in known.memory.recall(self.history):
            found.setdefault(recalled.call.key, Candidate(recalled.call)).recalled = recalled
        kept = [
            candidate
            for candidate in found.values()
            if known.is_read_only(candidate.call) and (streamed is None or streamed.fits(candidate.call))
        ]
        return Scored([candidate.call for candidate in kept], situation.rows(kept))
