"""What the sessions of each tenant taught, within bounds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from weakref import WeakValueDictionary

from reason_spec.errors import SettingsError
from reason_spec.tools_ahead.calls import Event
from reason_spec.tools_ahead.held import AheadBudget, AheadLimits
from reason_spec.tools_ahead.predictor import Knowledge, Lesson


class RecentKnowledge:
    """What the latest conversations taught, beside what ``knowledge`` held before."""

    def __init__(self, knowledge: Knowledge, max_learned: int) -> None:
        """Args:
        max_learned: conversations that are learned; the oldest are forgotten.
        """
        self.knowledge = knowledge
        self._max_learned = max_learned
        self._lessons: deque[Lesson] = deque()

    def learn(self, events: Sequence[Event]) -> Lesson:
        """Learn a conversation, in the thread in which the knowledge is read."""
        lesson = self.knowledge.learn(events)
        self._lessons.append(lesson)
        while len(self._lessons) > self._max_learned:
            self.knowledge.forget(self._lessons.popleft())
        return lesson

    def drop(self, lesson: Lesson) -> None:
        """Forget a conversation that goes on, unless it is forgotten already."""
        for place, one in enumerate(self._lessons):
            if one is lesson:
                del self._lessons[place]
                self.knowledge.forget(lesson)
                return


class Tenant:
    """What one tenant knows, how often expected calls were made, and what its sessions may use."""

    def __init__(self, past: Knowledge, max_learned: int, limits: AheadLimits) -> None:
        """Args:
        past: shared by all tenants, and never changed.
        max_learned: conversations that are learned beside it; the oldest are forgotten.
        limits: of its open sessions together.
        """
        self.knowledge = past
        self.budget = AheadBudget(limits)
        self._num_expected = 0
        self._num_made = 0
        self._counting = threading.Lock()
        self._max_learned = max_learned
        self._recent: RecentKnowledge | None = None

    def learn(self, events: Sequence[Event]) -> None:
        """Learn a conversation, in the thread in which the knowledge is read."""
        if self._recent is None:
            self._recent = RecentKnowledge(self.knowledge.copy(), self._max_learned)
            self.knowledge = self._recent.knowledge
        self._recent.learn(events)

    def count_expected(self) -> float:
        """Count an expected call; return the chance that it is made, by Laplace's rule of succession."""
        with self._counting:
            chance = (self._num_made + 1) / (self._num_expected + 2)
            self._num_expected += 1
            return chance

    def count_made(self) -> None:
        """Count that an expected call was made."""
        with self._counting:
            self._num_made += 1


class Tenants:
    """The tenants that began a session last. Thread-safe."""

    def __init__(self, past: Knowledge, max_learned: int, max_tenants: int, limits: AheadLimits) -> None:
        """Remember no tenant yet; arguments as for `reason_spec.tools_ahead.sessions.SpeculativeTools`.

        Raises:
            SettingsError: a number is too small.
        """
        for name, number, least in (("max_learned", max_learned, 0), ("max_tenants", max_tenants, 1)):
            if number < least:
                raise SettingsError(f"{name} is {number}; give {least} or more")
        self._past = past
        self._max_learned = max_learned
        self._max_tenants = max_tenants
        self._limits = limits
        self._by_name: dict[str | None, Tenant] = {}
        # A tenant with an open session stays the same when it is forgotten, or its limits would hold twice.
        self._in_use: WeakValueDictionary[str | None, Tenant] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, name: str | None) -> Tenant:
        """Return a tenant; the one that was asked for longest ago may be forgotten.

        None is that of the sessions without a tenant.
        """
        with self._lock:
            tenant = self._by_name.pop(name, None) or self._in_use.get(name)
            if tenant is None:
                tenant = Tenant(self._past, self._max_learned, self._limits)
                self._in_use[name] = tenant
            self._by_name[name] = tenant
            if len(self._by_name) > self._max_tenants:
                del self._by_name[next(iter(self._by_name))]
            return tenant
