"""Results of calls that ran ahead: the limits, and which result may stand for which call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias
from weakref import WeakSet

from reason_spec.errors import SettingsError
from reason_spec.tools_ahead.calls import Call
from reason_spec.tools_ahead.predictor import Prediction

logger = logging.getLogger(__name__)
Dropped: TypeAlias = Literal["unused", "stale", "changed", "failed", "too_large"]
"""Why a result was not used: the model made no such call, it was too old, something may have changed since,
the tool failed, or it was larger than the limit."""


@dataclass(frozen=True, slots=True)
class AheadLimits:
    """Limits of the sessions of a tenant together, or of one session without a tenant.

    Attributes:
        max_calls: calls that run or wait to be used at the same time, dropped ones that still run among them.
        max_seconds: seconds that calls ran in vain; then nothing more runs ahead.
        max_bytes: bytes of the results that are held.
        max_age: seconds from the start of a call until it is dropped. The model's call waits for one that was
            not dropped, however long that runs: to begin anew would take longer.
        threshold: chance from which on a call runs ahead; None: the model's.

    Raises:
        SettingsError: a limit is negative, or the threshold no chance.
    """

    max_calls: int = 8
    max_seconds: float = 60.0
    max_bytes: int = 4 << 20
    max_age: float = 60.0
    threshold: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_seconds", "max_bytes", "max_age"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give 0 or more")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise SettingsError(f"threshold is {self.threshold}; it is a chance between 0 and 1")


class AheadReport(NamedTuple):
    """What ran ahead in a session, and what became of it.

    ``num_read_only`` are the model's calls that could have been answered, ``num_used`` those that were.
    ``saved_seconds`` is the time by which these came earlier, ``wasted_seconds`` the run time of results that
    were dropped, so far where they still run, ``dropped`` their number by reason.
    """

    num_read_only: int
    num_started: int
    num_used: int
    saved_seconds: float
    wasted_seconds: float
    dropped: dict[str, int]


class Used(NamedTuple):
    """The result of a call that ran ahead, and its age in seconds."""

    result: Any
    age: float


@dataclass(slots=True, eq=False)
class _Ahead:
    name: str
    future: Future[Any]
    started: float
    finished: float | None = None
    size: int = 0


class Usage(NamedTuple):
    """What counts in a budget: calls, seconds that calls ran in vain, and bytes of results."""

    num_calls: int
    wasted_seconds: float
    num_bytes: int


class AheadBudget:
    """The limits that sessions share, as those of a tenant do. Thread-safe.

    Open sessions count, and of closed ones the calls that still run.
    """

    def __init__(self, limits: AheadLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        # Cancelling a future calls back in the same thread.
        self.lock = threading.RLock()
        # A session that is never closed counts as long as it exists, or a call of it runs.
        self._sessions: WeakSet[HeldResults] = WeakSet()

    def add(self, session: HeldResults) -> None:
        with self.lock:
            self._sessions.add(session)

    def remove(self, session: HeldResults) -> None:
        with self.lock:
            self._sessions.discard(session)

    def used(self) -> Usage:
        """Return what all sessions use together."""
        with self.lock:
            used = [session.usage() for session in self._sessions]
        return Usage(
            sum(one.num_calls for one in used),
            sum(one.wasted_seconds for one in used),
            sum(one.num_bytes for one in used),
        )

    def has_room(self) -> bool:
        """Whether one more call may start."""
        used, limits = self.used(), self.limits
        return (
            used.num_calls < limits.max_calls
            and used.wasted_seconds < limits.max_seconds
            and used.num_bytes < limits.max_bytes
        )

    def drop_stale(self) -> None:
        """Drop the old results of all sessions: an idle one does not do it itself."""
        with self.lock:
            for session in list(self._sessions):
                session.drop_stale()


class HeldResults:
    """The calls of one session that run ahead, and their results. Thread-safe.

    A result is used once, for a call with the same key, and only while nothing has changed since its start.
    """

    def __init__(self, budget: AheadBudget) -> None:
        self._budget = budget
        self._limits = budget.limits
        self._clock = budget.clock
        self._lock = budget.lock
        self._held: dict[str, _Ahead] = {}
        self._running_on: set[_Ahead] = set()
        """The dropped calls that have not ended: a thread cannot be cancelled."""
        self._num_writing = 0
        self._closed = False
        self._num_read_only = self._num_started = self._num_used = 0
        self._saved = self._wasted = 0.0
        self._dropped: dict[Dropped, int] = {}
        budget.add(self)

    def start(
        self, predictions: Iterable[Prediction], threshold: float, run: Callable[[Call], Future[Any] | None]
    ) -> list[Call]:
        """Start the calls whose chance reaches the threshold, within the limits; return them.

        Args:
            run: starts a call and returns at once; None where nothing can run now.
        """
        started = []
        with self._lock:
            self._budget.drop_stale()
            for call, chance in predictions:
                if chance < threshold or call.key in self._held:
                    continue
                future = run(call) if self._has_room() else None
                if future is None:
                    break
                self._held[call.key] = ahead = _Ahead(call.name, future, self._clock())
                self._num_started += 1
                started.append((call, ahead))
                logger.debug("a call of %s runs ahead, chance %.2f", call.name, chance)
        for call, ahead in started:
            # Outside the lock: a future that is already done calls back at once.
            ahead.future.add_done_callback(partial(self._finished, call.key, ahead))
        return [call for call, _ in started]

    def take(self, call: Call) -> Future[Used] | None:
        """Return the future result for a read-only call of the model; None if none may be used.

        The future raises what the tool raised; the caller then makes the call itself.
        """
        with self._lock:
            self._num_read_only += 1
            self.drop_stale()
            ahead = self._held.pop(call.key, None)
        if ahead is None:
            return None
        asked = self._clock()
        found: Future[Used] = Future()
        ahead.future.add_done_callback(lambda done: self._hand_over(ahead, asked, done, found))
        return found

    def begin_write(self) -> None:
        """Drop all results: a call that may change something begins. Nothing starts until `end_write`."""
        with self._lock:
            self._num_writing += 1
            self._drop_all("changed")

    def end_write(self) -> None:
        with self._lock:
            self._num_writing -= 1

    @property
    def is_writing(self) -> bool:
        with self._lock:
            return self._num_writing > 0

    def drop_all(self, why: Dropped = "changed") -> None:
        with self._lock:
            self._drop_all(why)

    def close(self) -> AheadReport:
        """Drop all results and return the report; nothing starts any more."""
        with self._lock:
            self._closed = True
            self._drop_all("unused")
            self._leave_when_ended()
            return self.report()

    def report(self) -> AheadReport:
        with self._lock:
            return AheadReport(
                self._num_read_only,
                self._num_started,
                self._num_used,
                self._saved,
                self._wasted_seconds(),
                {str(why): number for why, number in self._dropped.items()},
            )

    # The lock is held in what follows, except where said otherwise.

    def usage(self) -> Usage:
        """Return what counts in the budget."""
        return Usage(
            len(self._held) + len(self._running_on),
            self._running_on_seconds() if self._closed else self._wasted_seconds(),
            sum(ahead.size for ahead in self._held.values()),
        )

    def drop_stale(self) -> None:
        oldest = self._clock() - self._limits.max_age
        for key in [key for key, ahead in self._held.items() if ahead.started < oldest]:
            self._drop(key, "stale")

    def _running_on_seconds(self) -> float:
        now = self._clock()
        return sum(now - ahead.started for ahead in self._running_on)

    def _wasted_seconds(self) -> float:
        return self._wasted + self._running_on_seconds()

    def _has_room(self) -> bool:
        return not self._closed and self._num_writing == 0 and self._budget.has_room()

    def _leave_when_ended(self) -> None:
        if self._closed and not self._running_on:
            self._budget.remove(self)

    def _drop_all(self, why: Dropped) -> None:
        for key in list(self._held):
            self._drop(key, why)

    def _drop(self, key: str, why: Dropped) -> None:
        self._count_dropped(self._held.pop(key), why)

    def _count_dropped(self, ahead: _Ahead, why: Dropped) -> None:
        self._dropped[why] = self._dropped.get(why, 0) + 1
        logger.debug("a call of %s that ran ahead is dropped: %s", ahead.name, why)
        ahead.future.cancel()
        if ahead.finished is None:
            self._running_on.add(ahead)
        else:
            self._wasted += ahead.finished - ahead.started

    def _finished(self, key: str, ahead: _Ahead, _: Future[Any]) -> None:
        """Called without the lock, from the thread that ran the call."""
        with self._lock:
            ahead.finished = self._clock()
            if ahead in self._running_on:
                self._running_on.remove(ahead)
                self._wasted += ahead.finished - ahead.started
                self._leave_when_ended()
            if self._held.get(key) is not ahead:
                return
            if ahead.future.cancelled() or ahead.future.exception() is not None:
                self._drop(key, "failed")
                return
            ahead.size = size_of(ahead.future.result())
            if self._budget.used().num_bytes > self._limits.max_bytes:
                self._drop(key, "too_large")

    def _hand_over(self, ahead: _Ahead, asked: float, done: Future[Any], found: Future[Used]) -> None:
        """Called without the lock, from any thread."""
        error = RuntimeError("cancelled") if done.cancelled() else done.exception()
        with self._lock:
            now = self._clock()
            if ahead.finished is None:
                ahead.finished = now
            if error is None:
                self._num_used += 1
                self._saved += min(ahead.finished, asked) - ahead.started
            else:
                self._count_dropped(ahead, "failed")
        if error is None:
            logger.debug(
                "a call of %s that ran ahead is used, %.2f s after its start", ahead.name, now - ahead.started
            )
            found.set_result(Used(done.result(), now - ahead.started))
        else:
            found.set_exception(error)


def size_of(result: object) -> int:
    """Return the bytes of an array or a text, of anything else as text: about what it takes to keep it."""
    num_bytes = getattr(result, "nbytes", None)
    if isinstance(num_bytes, int):
        return num_bytes
    if isinstance(result, bytes):
        return len(result)
    return len((result if isinstance(result, str) else repr(result)).encode("utf-8", "surrogatepass"))
