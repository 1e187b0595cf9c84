"""Predicts the next calls to read-only tools from the conversation so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from reason_spec.tools_ahead.calls import Call, Called, Event, Returned, Said
from reason_spec.tools_ahead.features import Candidate, Situation, Streamed, ToolCounts, Turn, words_of
from reason_spec.tools_ahead.history import History
from reason_spec.tools_ahead.recall import Memory, Past, past_of
from reason_spec.tools_ahead.shapes import Proposed, Shape, ShapeCounts, proposals_of, shapes_of
from reason_spec.tools_ahead.values import Alias, Aliases

Row: TypeAlias = tuple[float, ...]
IsReadOnly: TypeAlias = Callable[[Call], bool]


class Chances(Protocol):
    """Gives each row of features its chance."""

    def chances(self, rows: Sequence[Row]) -> Sequence[float]: ...


class Prediction(NamedTuple):
    """A call that may come, and the chance that it comes before its result is out of date."""

    call: Call
    chance: float


class Scored(NamedTuple):
    """The candidates of one moment and their rows of features."""

    calls: list[Call]
    rows: list[Row]


class Lesson(NamedTuple):
    """What one conversation taught, to be taken back."""

    aliases: list[Alias]
    shapes: set[Shape]
    counts: ToolCounts
    past: Past


class Knowledge:
    """What past conversations taught; it grows with `learn` and shrinks with `forget`."""

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
        learned = [known._learn_shapes(events) for events in kept]
        for events, (history, _, _) in zip(kept, learned, strict=True):
            known._learn_rates(events, history, known.counts)
        return known

    def learn(self, events: Sequence[Event]) -> Lesson:
        """Learn one more conversation."""
        aliases = self._learn_aliases(events)
        history, shapes, past = self._learn_shapes(events)
        counts = ToolCounts()
        self._learn_rates(events, history, counts)
        self.counts.add(counts)
        return Lesson(aliases, shapes, counts, past)

    def forget(self, lesson: Lesson) -> None:
        """Take back what `learn` has learned from one conversation."""
        self.aliases.forget(lesson.aliases)
        self.shapes.forget(lesson.shapes)
        self.counts.subtract(lesson.counts)
        self.memory.remove(lesson.past)

    def copy(self) -> Knowledge:
        """Return the same knowledge, which grows on its own."""
        copied = Knowledge(self.is_read_only)
        copied.aliases = self.aliases.copy()
        copied.shapes = self.shapes.copy()
        copied.counts = self.counts.copy()
        copied.memory = self.memory.copy()
        return copied

    def _learn_aliases(self, events: Sequence[Event]) -> list[Alias]:
        return [
            alias
            for event in events
            if isinstance(event, Said) and event.speaker != "system"
            for alias in self.aliases.learn(event.text)
        ]

    def _learn_shapes(self, events: Sequence[Event]) -> tuple[History, set[Shape], Past]:
        history = History(self.aliases)
        explained: set[Shape] = set()
        calls: list[Call] = []
        for event in events:
            if isinstance(event, Called) and self.is_read_only(event.call):
                explained |= shapes_of(event.call, history)
                calls.append(event.call)
            history.add(event)
        self.shapes.learn(explained)
        past = past_of(history, calls)
        self.memory.add(past)
        return history, explained, past

    def _learn_rates(self, events: Sequence[Event], whole: History, counts: ToolCounts) -> None:
        history = History(self.aliases, whole.entries)
        rates = RateLearner(self, history, counts)
        for event in events:
            rates.before(event)
            history.add(event)
            rates.after(event)
        rates.end()


class RateLearner:
    """Counts during one conversation which tool follows what, and which shapes propose calls that come."""

    def __init__(self, knowledge: Knowledge, history: History, counts: ToolCounts) -> None:
        """Args:
        counts: takes the counts.
        """
        self._knowledge = knowledge
        self._counts = counts
        self._history = history
        self._tried: dict[str, set[Shape]] = {}
        """The shapes that have proposed a call, until it comes."""
        self._seen: dict[Shape, list[Proposed]] = {}
        self._turn: Turn | None = None

    def before(self, event: Event) -> None:
        """Take an event that the history does not hold yet."""
        known = self._knowledge
        if not isinstance(event, Called):
            if isinstance(event, Said) and event.speaker == "user":
                self.end()
            return
        if self._turn is not None:
            self._counts.learn_next(self._turn, event.call.name)
            self._turn = None
        if known.is_read_only(event.call):
            for shape in self._tried.pop(event.call.key, ()):
                self._counts.hits[shape] += 1

    def after(self, event: Event) -> None:
        """Take an event that the history holds now."""
        known, history = self._knowledge, self._history
        if not starts_turn(event):
            return
        self._turn = Turn(history.trigger, words_of(history))
        for tool in known.shapes.conversations:
            for shape in known.shapes.best(tool):
                proposals = proposals_of(shape, history)
                if self._seen.get(shape) is proposals:
                    continue
                before = {proposed.call.key for proposed in self._seen.get(shape, ())}
                self._seen[shape] = proposals
                for proposed in proposals:
                    key = proposed.call.key
                    tried = self._tried.setdefault(key, set())
                    if key not in before and key not in history.calls and shape not in tried:
                        tried.add(shape)
                        self._counts.tries[shape] += 1

    def end(self) -> None:
        """The model's turn has ended without a call."""
        if self._turn is not None:
            self._counts.learn_next(self._turn, "")
            self._turn = None


def starts_turn(event: Event) -> bool:
    """Whether the model writes after an event."""
    return isinstance(event, Returned) or (isinstance(event, Said) and event.speaker == "user")


class CallPredictor:
    """Follows one conversation; sees its prefix only."""

    def __init__(self, knowledge: Knowledge, model: Chances | None = None, *, learns: bool = False) -> None:
        """Args:
        learns: the conversation teaches the knowledge while it goes on; no other one may use it then.
        """
        self._knowledge = knowledge
        self._model = model
        self.history = History(knowledge.aliases)
        self._rates = RateLearner(knowledge, self.history, knowledge.counts) if learns else None
        self._last_write = -1

    def add(self, event: Event) -> None:
        """Append an event of the conversation."""
        known = self._knowledge
        if isinstance(event, Called) and not known.is_read_only(event.call):
            self._last_write = len(self.history.entries)
        if self._rates is None:
            self.history.add(event)
            return
        self._rates.before(event)
        if isinstance(event, Called) and known.is_read_only(event.call):
            known.shapes.learn(shapes_of(event.call, self.history))
        self.history.add(event)
        self._rates.after(event)

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
