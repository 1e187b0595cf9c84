"""What the model sees of a call that may come next."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Final, NamedTuple

from reason_spec.tools_ahead.calls import Call, Called, Said
from reason_spec.tools_ahead.history import History
from reason_spec.tools_ahead.recall import Recalled
from reason_spec.tools_ahead.shapes import Proposed, Shape

FEATURE_NAMES: Final = (
    "name_known num_known next_by_trigger next_by_words calls_of_tool shape_rate shape_tries second_rate "
    "num_shapes place size share_of_list is_first_left in_users in_assistant others_in_last_user "
    "events_since turns_since times_made since_made wrote_since likeness share_recalled is_next_recalled "
    "num_of_tool num_calls num_turns after_user rank_in_tool lead_over_tools num_arguments last_same_tool"
).split()
"""In the order of a row; shares and chances are log-odds."""
_WORD: Final = re.compile(r"[a-z']{3,}")
_NEVER: Final = 99.0


class Streamed(NamedTuple):
    """What the model has already written of a call: its name, and the arguments that are complete,
    in normal JSON."""

    name: str
    arguments: Mapping[str, str] = {}

    def fits(self, call: Call) -> bool:
        return call.name == self.name and all(
            call.values.get(key) == value for key, value in self.arguments.items()
        )


def log_odds(hits: float, tries: float, prior: float = 0.1, weight: float = 2.0) -> float:
    chance = (hits + prior * weight) / (tries + weight)
    return log(chance / (1 - chance))


class Turn(NamedTuple):
    """What a turn of the model answers: the last event's source, and the words of the last user's text."""

    trigger: str
    words: set[str]


@dataclass
class ToolCounts:
    """Which tool follows which event and which words, counted over past conversations."""

    next_by_trigger: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    words: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """For each tool, and ``""`` for none: in how many texts of users before it a word stands."""
    texts: Counter[str] = field(default_factory=Counter)
    tries: Counter[Shape] = field(default_factory=Counter)
    hits: Counter[Shape] = field(default_factory=Counter)
    _merged: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """The words before all tools, as of so many texts as ``_merged_at``; -1: to be counted anew."""
    _merged_at: int = field(default=-1, init=False, repr=False, compare=False)

    def learn_next(self, turn: Turn, tool: str) -> None:
        """Learn which tool was called in a turn; ``""`` for none."""
        self.next_by_trigger[turn.trigger][tool] += 1
        if turn.trigger == "user":
            self.texts[tool] += 1
            self.words[tool].update(turn.words)

    def add(self, others: ToolCounts) -> None:
        """Add the counts of other conversations."""
        for mine, more in zip(self._counters(others), others._counters(others), strict=True):
            mine.update(more)
        self._merged_at = -1

    def subtract(self, others: ToolCounts) -> None:
        """Take back counts that were added."""
        for mine, more in zip(self._counters(others), others._counters(others), strict=True):
            for key, number in more.items():
                mine[key] -= number
                if not mine[key]:
                    del mine[key]
        for trigger in others.next_by_trigger:
            if not self.next_by_trigger[trigger]:
                del self.next_by_trigger[trigger]
        for tool in others.words:
            if not self.words[tool]:
                del self.words[tool]
        self._merged_at = -1

    def copy(self) -> ToolCounts:
        """Return the same counts, which go on on their own."""
        copied = ToolCounts()
        copied.add(self)
        return copied

    def _counters(self, others: ToolCounts) -> Iterator[Counter[Any]]:
        """Yield the counters in one order, of the tables those that ``others`` has."""
        yield from (self.next_by_trigger[key] for key in others.next_by_trigger)
        yield from (self.words[key] for key in others.words)
        yield from (self.texts, self.tries, self.hits)

    def trigger_odds(self, tool: str, trigger: str) -> float:
        counts = self.next_by_trigger.get(trigger, Counter())
        return log_odds(counts[tool], counts.total())

    def word_odds(self, tool: str, words: Iterable[str]) -> float:
        """Return the log-odds that a tool follows a user's text, by naive Bayes with damped evidence."""
        num, rest = self.texts[tool], self.texts.total() - self.texts[tool]
        if not num or not rest:
            return 0.0
        total = log((num + 0.5) / (rest + 0.5))
        everywhere: Counter[str] = self._all_words()
        mine = self.words[tool]
        for word in words:
            if everywhere[word] >= 3:
                here, other = mine[word], everywhere[word] - mine[word]
                total += 0.5 * log((here + 0.5) / (num + 1) / ((other + 0.5) / (rest + 1)))
        return max(-8.0, min(8.0, total))

    def _all_words(self) -> Counter[str]:
        if self._merged_at != self.texts.total():
            self._merged = Counter()
            for counts in self.words.values():
                self._merged.update(counts)
            self._merged_at = self.texts.total()
        return self._merged


def words_of(history: History) -> set[str]:
    said = history.last(Said, "user")
    return set(_WORD.findall(said.text.lower())) if isinstance(said, Said) else set()


@dataclass
class Candidate:
    """A call that may come, with the shapes and the past conversations that propose it."""

    call: Call
    proposals: list[tuple[Shape, Proposed]] = field(default_factory=list)
    recalled: Recalled | None = None


class Situation:
    """What all candidates of one moment share."""

    def __init__(
        self, history: History, counts: ToolCounts, streamed: Streamed | None, last_write: int
    ) -> None:
        """Look at a conversation.

        Args:
            streamed: what the model has written of a call.
            last_write: the event of the last call to a tool that is not read-only, -1 for none.
        """
        self._history = history
        self._counts = counts
        self._streamed = streamed
        self._last_write = last_write
        self._words = words_of(history)
        self._odds: dict[str, tuple[float, float]] = {}
        self._siblings: dict[tuple[Shape, int], list[str]] = defaultdict(list)
        self._last_user = history.by_source.get("user", [-1])[-1]
        self._last_said = history.by_source.get("assistant", [-1])[-1]
        called = history.last(Called)
        self._last_tool = called.call.name if isinstance(called, Called) else ""

    def add_list(self, shape: Shape, proposals: Sequence[Proposed]) -> None:
        """Learn which calls a shape proposes, in their order."""
        for proposed in proposals:
            self._siblings[shape, proposed.entry].append(proposed.call.key)

    def rows(self, candidates: Sequence[Candidate]) -> list[tuple[float, ...]]:
        """Return ``[candidates, features]``."""
        peers = Peers.of(self, candidates)
        return [self._row(candidate, number, peers) for number, candidate in enumerate(candidates)]

    def _row(self, candidate: Candidate, number: int, peers: Peers) -> tuple[float, ...]:
        call, history, recalled = candidate.call, self._history, candidate.recalled
        rates, in_list = peers.rates[number], peers.places[number]
        entry = max((proposed.entry for _, proposed in candidate.proposals), default=-1)
        now = len(history.entries)
        made_at = history.calls.get(call.key, [])
        return (
            float(self._streamed is not None),
            float(len(self._streamed.arguments)) if self._streamed else 0.0,
            *self._tool_odds(call.name),
            float(history.num_calls.get(call.name, 0)),
            *rates,
            float(len(candidate.proposals)),
            *in_list,
            float(self._mentions(call)),
            float(self.names(call, self._last_said)),
            float(peers.named[call.name] - self.names(call, self._last_user)),
            float(now - entry) if entry >= 0 else _NEVER,
            float(history.turn - history.entries[entry].turn) if entry >= 0 else _NEVER,
            float(len(made_at)),
            float(now - made_at[-1]) if made_at else _NEVER,
            float(bool(made_at) and self._last_write > made_at[-1]),
            recalled.likeness if recalled else 0.0,
            recalled.share if recalled else 0.0,
            float(recalled is not None and recalled.is_next),
            float(peers.of_tool[call.name]),
            float(sum(history.num_calls.values())),
            float(history.turn),
            float(history.trigger == "user"),
            float(peers.rank[number]),
            peers.best[call.name]
            - max((best for tool, best in peers.best.items() if tool != call.name), default=-5.0),
            float(len(call.values)),
            float(call.name == self._last_tool),
        )

    def _tool_odds(self, tool: str) -> tuple[float, float]:
        if tool not in self._odds:
            self._odds[tool] = (
                self._counts.trigger_odds(tool, self._history.trigger),
                self._counts.word_odds(tool, self._words),
            )
        return self._odds[tool]

    def shape_rates(self, candidate: Candidate) -> tuple[float, float, float]:
        """Return the best shape's log-odds and number of tries, and the second best's log-odds."""
        counts = self._counts
        ranked = sorted(
            (
                (log_odds(counts.hits[shape], counts.tries[shape]), float(counts.tries[shape]))
                for shape, _ in candidate.proposals
            ),
            reverse=True,
        )
        if not ranked:
            return -5.0, 0.0, -5.0
        return ranked[0][0], ranked[0][1], ranked[1][0] if len(ranked) > 1 else -5.0

    def place_in_list(self, candidate: Candidate) -> tuple[float, float, float, float]:
        """Return place and size of its longest list, the share made of it, and whether it is the next."""
        lists = [(proposed, shape) for shape, proposed in candidate.proposals if proposed.entry >= 0]
        if not lists:
            return 0.0, 0.0, 0.0, 0.0
        proposed, shape = max(lists, key=lambda pair: pair[0].size)
        made = [key in self._history.calls for key in self._siblings[shape, proposed.entry]]
        first_left = made.index(False) if False in made else len(made)
        share = sum(made) / max(1, len(made))
        return float(proposed.place), float(proposed.size), share, float(proposed.place == first_left)

    def names(self, call: Call, entry: int) -> bool:
        """Whether a text names a value of the call; no text is at -1."""
        by_key = self._history.entries[entry].by_key if entry >= 0 else {}
        return any(key in by_key for key in call.values.values())

    @property
    def last_user(self) -> int:
        return self._last_user

    def _mentions(self, call: Call) -> int:
        """Return how many values of a call users have named."""
        entries = self._history.entries
        return sum(
            any(entries[place].source == "user" for place in self._history.with_key.get(key, ()))
            for key in call.values.values()
        )


@dataclass(slots=True)
class Peers:
    """What the candidates of one moment are to each other; lists are in their order."""

    rates: list[tuple[float, float, float]]
    places: list[tuple[float, float, float, float]]
    rank: dict[int, int]
    of_tool: Counter[str]
    named: Counter[str]
    best: dict[str, float]

    @classmethod
    def of(cls, situation: Situation, candidates: Sequence[Candidate]) -> Peers:
        rates = [situation.shape_rates(candidate) for candidate in candidates]
        places = [situation.place_in_list(candidate) for candidate in candidates]
        # A tool's candidates by their best shape, then by the order of its lists.
        ranked = sorted(range(len(candidates)), key=lambda n: (-rates[n][0], places[n][0]))
        rank: dict[int, int] = {}
        of_tool: Counter[str] = Counter()
        best: dict[str, float] = {}
        for number in ranked:
            tool = candidates[number].call.name
            rank[number] = of_tool[tool]
            of_tool[tool] += 1
            best.setdefault(tool, rates[number][0])
        named = Counter(c.call.name for c in candidates if situation.names(c.call, situation.last_user))
        return cls(rates, places, rank, of_tool, named, best)
