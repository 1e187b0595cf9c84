"""Predicts calls in the conversations of many tenants, from requests that each hold a whole conversation."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from reason_spec.suffix.traces import TraceMessage
from reason_spec.tools_ahead.calls import Call, Called, Event, events_of, read_messages
from reason_spec.tools_ahead.predictor import (
    CallPredictor,
    Chances,
    IsReadOnly,
    Knowledge,
    Lesson,
    Prediction,
    starts_turn,
)
from reason_spec.tools_ahead.tenants import RecentKnowledge

IDLE_SECONDS: Final = 60.0
"""A conversation without a request for so long is learned, and once more if it goes on."""
MAX_RUNNING: Final = 64
"""Conversations of one tenant that are followed at a time."""
MAX_CHARACTERS: Final = 1 << 20
"""Of one conversation; longer ones are not followed."""
_MAX_RUNNING_CHARACTERS: Final = 1 << 24
"""Of one tenant's conversations together."""
_MAX_EVENTS: Final = 400
"""Of one conversation that are learnt."""
_MAX_SALTS: Final = 8
"""Salts of one tenant whose knowledge is kept."""


class Origin(NamedTuple):
    """Where a conversation comes from. Only those of one tenant with one salt learn from each other.

    ``session`` is the client's name for it, empty where it has none.
    """

    tenant: str
    salt: str = ""
    session: str = ""


def _nothing(_: Call) -> bool:
    return False


@dataclass(eq=False, slots=True)
class Followed:
    """A conversation that may go on. ``reply`` are the calls of the answer to its last request, ``awaited``
    the keys of those that were sent to the client and may still come."""

    origin: Origin
    knowledge: Knowledge
    predictor: CallPredictor
    messages: list[TraceMessage] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reply: list[Call] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    is_read_only: IsReadOnly = _nothing
    num_characters: int = 0
    last_use: float = 0.0
    lesson: Lesson | None = None
    """What it has taught, once it was idle."""

    def is_before(self, origin: Origin, messages: Sequence[TraceMessage]) -> bool:
        return self.origin == origin and list(messages[: len(self.messages)]) == self.messages

    def follow(self, messages: list[TraceMessage]) -> None:
        """Take the whole conversation, whose beginning is known."""
        events = list(events_of(messages))
        for event in events[len(self.events) :]:
            self.predictor.add(event)
        self.messages, self.events, self.reply = messages, events, []
        self.num_characters = _num_characters(messages)

    def await_calls(self, calls: Iterable[Call]) -> list[Call]:
        """Note that these calls were sent to the client; return those that were not awaited already."""
        new = [call for call in calls if call.key not in self.awaited]
        self.awaited.update(call.key for call in new)
        return new

    def answered(self, calls: Sequence[Call]) -> list[Call]:
        """Take the calls of the answer to the last request; return those that were awaited.

        After a call that may change something nothing is awaited: results from before are out of date.
        """
        self.reply = list(calls)
        right = []
        for call in calls:
            if not self.is_read_only(call):
                self.awaited.clear()
            elif call.key in self.awaited:
                self.awaited.remove(call.key)
                right.append(call)
        return right


class PredictedCalls(NamedTuple):
    """The calls that a conversation is likely to make, likeliest first."""

    followed: Followed
    likely: list[Prediction]


@dataclass(slots=True)
class _Tenant:
    """``running`` are the conversations that may go on, those with the latest requests last."""

    knowledge: OrderedDict[str, RecentKnowledge] = field(default_factory=OrderedDict)
    running: list[Followed] = field(default_factory=list)


class FollowedConversations:
    """Follows conversations, predicts their calls, and learns from those that end. Not thread-safe.

    Conversations of a session, or without one, are recognized by their messages: each request holds those of
    the one before it. A conversation ends when its session is ended, or after `IDLE_SECONDS`.

    Args:
        threshold: least chance of a call that is returned.
        max_conversations: past conversations that are learnt from, for each tenant and salt.
        clock: in seconds.
    """

    def __init__(
        self,
        model: Chances,
        *,
        threshold: float,
        max_conversations: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._threshold = threshold
        self._max_conversations = max_conversations
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._over: deque[Followed] = deque(maxlen=MAX_RUNNING)
        """Conversations that made room for others; they are learned between requests."""

    @property
    def num_running(self) -> int:
        """Conversations that are followed."""
        return sum(len(tenant.running) for tenant in self._tenants.values())

    def predict(
        self, origin: Origin, messages: Sequence[Mapping[str, Any]], is_read_only: IsReadOnly
    ) -> PredictedCalls | None:
        """Return the calls that the next answer, or a later one, is likely to make, likeliest first.

        None for a conversation that is too long to be followed.

        Args:
            messages: the whole conversation in OpenAI's form.
            is_read_only: whether a call changes nothing; only such calls are predicted.

        Raises:
            pydantic.ValidationError: a message has another form.
        """
        parsed = read_messages(messages)
        if _num_characters(parsed) > MAX_CHARACTERS:
            return None
        followed = self._take_up(origin, parsed)
        if followed.lesson is not None:
            # It goes on, and is learned whole later.
            self._knowledge_of(origin).drop(followed.lesson)
            followed.lesson = None
        followed.last_use = self._clock()
        followed.is_read_only = followed.knowledge.is_read_only = is_read_only
        try:
            followed.follow(parsed)
        except Exception:
            # It is half read, and without messages it would be taken for the beginning of any other.
            self._tenants[origin.tenant].running.remove(followed)
            raise
        if not (followed.events and starts_turn(followed.events[-1])):
            return PredictedCalls(followed, [])
        likely = [one for one in followed.predictor.predict() if one.chance >= self._threshold]
        return PredictedCalls(followed, likely)

    def end(self, tenant: str, session: str) -> None:
        """End the conversations of a session, and learn from them."""
        kept = self._tenants.get(tenant, _Tenant())
        for followed in [one for one in kept.running if one.origin.session == session]:
            kept.running.remove(followed)
            self._learn(followed)

    def learn_idle(self) -> bool:
        """Learn one conversation that has been idle or made room; return whether there was one."""
        if self._over:
            self._learn(self._over.popleft())
            return True
        due = self._clock() - IDLE_SECONDS
        for tenant in self._tenants.values():
            for followed in tenant.running:
                if followed.last_use <= due and followed.lesson is None:
                    self._learn(followed)
                    return True
        return False

    def _take_up(self, origin: Origin, messages: Sequence[TraceMessage]) -> Followed:
        """Return the conversation that a request goes on with, or a new one."""
        tenant = self._tenants.setdefault(origin.tenant, _Tenant())
        known = [one for one in tenant.running if one.is_before(origin, messages)]
        if known:
            followed = max(known, key=lambda one: len(one.messages))
            tenant.running.remove(followed)
        else:
            knowledge = self._knowledge_of(origin).knowledge
            followed = Followed(origin, knowledge, CallPredictor(knowledge, self._model))
        tenant.running.append(followed)
        while len(tenant.running) > 1 and (
            len(tenant.running) > MAX_RUNNING
            or sum(one.num_characters for one in tenant.running) > _MAX_RUNNING_CHARACTERS
        ):
            # It may go on, and is then learned as a new one.
            self._over.append(tenant.running.pop(0))
        return followed

    def _knowledge_of(self, origin: Origin) -> RecentKnowledge:
        by_salt = self._tenants[origin.tenant].knowledge
        if origin.salt not in by_salt:
            by_salt[origin.salt] = RecentKnowledge(Knowledge(_nothing), self._max_conversations)
        by_salt.move_to_end(origin.salt)
        if len(by_salt) > _MAX_SALTS:
            by_salt.popitem(last=False)
        return by_salt[origin.salt]

    def _learn(self, followed: Followed) -> None:
        if followed.lesson is not None:
            return
        events = [*followed.events, *map(Called, followed.reply)]
        recent = self._knowledge_of(followed.origin)
        recent.knowledge.is_read_only = followed.is_read_only
        followed.lesson = recent.learn(events[:_MAX_EVENTS])


def _num_characters(messages: Sequence[TraceMessage]) -> int:
    return sum(len(message.text_with_calls) for message in messages)
