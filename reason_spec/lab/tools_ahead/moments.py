"""The moments of a recorded conversation at which a call could start, with what was right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reason_spec.tools_ahead.calls import Called, Event, events_of
from reason_spec.tools_ahead.features import Streamed
from reason_spec.tools_ahead.predictor import CallPredictor, IsReadOnly, Knowledge, Row, starts_turn
from reason_spec.suffix.traces import Conversation


@dataclass(frozen=True)
class Recorded:
    """A conversation of a benchmark."""

    task: str
    trial: str
    events: tuple[Event, ...]


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
) -> list[list[Moment]]:
    """Return the moments of each conversation, by the knowledge of the other folds."""
    folds: Mapping[object, list[int]] = _grouped([fold_of(one) for one in pool])
    found: list[list[Moment]] = [[] for _ in pool]
    for members in folds.values():
        inside = set(members)
        rest = [one.events for number, one in enumerate(pool) if number not in inside]
        knowledge = Knowledge.of(rest, is_read_only)
        for number in members:
            found[number] = moments_of(knowledge, pool[number].events)
        advance()
    return found


def _grouped(folds: Sequence[object]) -> dict[object, list[int]]:
    groups: dict[object, list[int]] = {}
    for number, fold in enumerate(folds):
        groups.setdefault(fold, []).append(number)
    return groups
