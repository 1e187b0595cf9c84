"""The moments of a recorded conversation at which a call could start, with what was right."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from reason_spec.suffix.traces import Conversation
from reason_spec.tools_ahead.calls import Call, Called, Event, events_of, tool_events
from reason_spec.tools_ahead.features import Streamed
from reason_spec.tools_ahead.history import History
from reason_spec.tools_ahead.predictor import CallPredictor, IsReadOnly, Knowledge, Row, starts_turn
from reason_spec.tools_ahead.recall import Past

AGREEMENT: Final = 0.7
"""Share of read-only calls that another trial of the same task makes too: on tau-bench
airline 0.56 of all, 0.68 without thoughts and formulas."""


@dataclass(frozen=True)
class Recorded:
    """A conversation of a benchmark."""

    task: str
    trial: str
    events: tuple[Event, ...]

    @property
    def calls_only(self) -> Recorded:
        """Calls and results alone, as a proxy between a client and its tools sees them."""
        return Recorded(self.task, self.trial, tuple(tool_events(self.events)))


@dataclass(frozen=True, slots=True)
class Moment:
    """The candidates at one moment.

    ``event`` is the place of the event that the model writes then. ``stage`` is 0 where nothing of it is
    written, and one more than the number of complete arguments where the name of a call is. ``is_right``:
    the call comes before the next one that may change something; from stage 1 on, it is the call being
    written.
    """

    event: int
    stage: int
    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    is_right: tuple[bool, ...]


class Scores(NamedTuple):
    """A moment with the chances of its candidates."""

    moment: Moment
    chances: Sequence[float]


def recorded(conversations: Sequence[Conversation]) -> list[Recorded]:
    """Return conversations with their task and trial.

    Without a task, conversations with the same first text of a user are one task; without a trial, they are
    numbered.
    """
    found: list[Recorded] = []
    numbers: dict[str, int] = {}
    for conversation in conversations:
        first = next((m.text for m in conversation.messages if m.role == "user"), "")
        task = conversation.task if conversation.task is not None else first
        numbers[task] = numbers.get(task, -1) + 1
        trial = conversation.trial if conversation.trial is not None else str(numbers[task])
        found.append(Recorded(task, trial, tuple(events_of(conversation.messages))))
    return found


def moments_of(knowledge: Knowledge, events: Sequence[Event]) -> list[Moment]:
    """Return the moments of a conversation. At each of them the predictor has only seen what was there."""
    is_read_only = knowledge.is_read_only
    predictor = CallPredictor(knowledge)
    found: list[Moment] = []
    for number, event in enumerate(events):
        if isinstance(event, Called) and is_read_only(event.call):
            right = frozenset([event.call.key])
            arguments = list(event.call.values.items())
            for complete in range(max(1, len(arguments))):
                streamed = Streamed(event.call.name, dict(arguments[:complete]))
                found.append(_moment(predictor, number, complete + 1, streamed, right))
        predictor.add(event)
        if starts_turn(event) and number + 1 < len(events):
            right = frozenset(_coming(events[number + 1 :], is_read_only))
            found.append(_moment(predictor, number + 1, 0, None, right))
    return found


def _moment(
    predictor: CallPredictor, event: int, stage: int, streamed: Streamed | None, right: frozenset[str]
) -> Moment:
    calls, rows = predictor.score(streamed)
    keys = tuple(call.key for call in calls)
    return Moment(event, stage, keys, tuple(rows), tuple(key in right for key in keys))


def _coming(events: Sequence[Event], is_read_only: IsReadOnly) -> list[str]:
    """Return the calls up to the next one that is not read-only."""
    found = []
    for event in events:
        if isinstance(event, Called):
            if not is_read_only(event.call):
                break
            found.append(event.call.key)
    return found


def held_out_moments(
    pool: Sequence[Recorded],
    fold_of: Callable[[Recorded], object],
    is_read_only: IsReadOnly,
    advance: Callable[[], None] = lambda: None,
    *,
    twins: bool = False,
) -> list[list[Moment]]:
    """Return the moments of each conversation, by the knowledge of the other folds.

    Args:
        twins: they follow once more, and then an invented other trial of the same task is known too, see
            `invented_trial`.
    """
    folds: dict[object, list[int]] = {}
    for number, one in enumerate(pool):
        folds.setdefault(fold_of(one), []).append(number)
    found: list[list[Moment]] = [[] for _ in range(2 * len(pool) if twins else len(pool))]
    for members in folds.values():
        inside = set(members)
        rest = [one.events for number, one in enumerate(pool) if number not in inside]
        knowledge = Knowledge.of(rest, is_read_only)
        for number in members:
            found[number] = moments_of(knowledge, pool[number].events)
            if twins:
                known = copy.copy(knowledge)
                known.memory = knowledge.memory.copy()
                known.memory.add(invented_trial(pool[number], knowledge, number))
                found[len(pool) + number] = moments_of(known, pool[number].events)
        advance()
    return found


def invented_trial(one: Recorded, others: Knowledge, seed: int) -> Past:
    """Return what another trial of a conversation's task might have been.

    For pools with one trial a task, which cannot teach how far two trials agree. Of the calls and the values
    that users named, `AGREEMENT` stay; other calls become one to the same tool from another conversation.
    """
    rng = random.Random(seed)
    history = History(others.aliases)
    history.extend(one.events)
    others_by_tool: dict[str, list[Call]] = {}
    for past in others.memory.past.values():
        for call in past.calls:
            others_by_tool.setdefault(call.name, []).append(call)
    calls: list[Call] = []
    for event in one.events:
        if isinstance(event, Called) and others.is_read_only(event.call):
            if rng.random() < AGREEMENT:
                calls.append(event.call)
            elif event.call.name in others_by_tool:
                calls.append(rng.choice(others_by_tool[event.call.name]))
    said = {key for entry in history.entries if entry.source == "user" for key in entry.by_key}
    keys = {key for key in sorted(said) if rng.random() < AGREEMENT}
    return Past(frozenset(keys.union(*(call.values.values() for call in calls))), tuple(calls))
