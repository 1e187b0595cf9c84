"""The queues of the simulator: a model that makes passes over all of its jobs, and a verifier."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class PassJob:
    """Work that adds ``size`` tokens to each pass, ``live`` until it ends or is cancelled."""

    size: int
    done: Callable[[float], None]
    live: bool = True


class PassQueue:
    """A model that makes one pass after another, each with a part of every live job.

    A live job is in every pass, so it ends when the count of passes has grown by its own number: the order of
    ends is known in advance, for any pass times.

    Args:
        pass_seconds: the time of a pass by the total size of its jobs.

    Attributes:
        next_at: when the next job ends.
        passes: passes made so far.
        job_passes: the same, counted once for each job in a pass.
        busy: the time that passes took.
    """

    def __init__(self, pass_seconds: Callable[[int], float]) -> None:
        self._pass_seconds = pass_seconds
        self._known: dict[int, float] = {}
        self._queue: list[tuple[float, int, PassJob]] = []
        self._numbers = count()
        self._size = 0
        self._num_live = 0
        self._now = 0.0
        self._seconds = 1.0
        self.next_at = NEVER
        self.passes = 0.0
        self.job_passes = 0.0
        self.busy = 0.0

    def begin(self, now: float, passes: float, size: int, done: Callable[[float], None]) -> PassJob:
        """Take a job that needs ``passes`` passes; ``done`` is called with the time of its end."""
        self.advance(now)
        job = PassJob(size, done)
        heapq.heappush(self._queue, (self.passes + passes, next(self._numbers), job))
        self._size += size
        self._num_live += 1
        self._find_next()
        return job

    def cancel(self, job: PassJob, now: float) -> None:
        """Stop a live job."""
        self.advance(now)
        self._remove(job)
        self._find_next()

    def finish_next(self) -> None:
        """End the job that is due at ``next_at``."""
        now = self.next_at
        self.advance(now)
        _, _, job = heapq.heappop(self._queue)
        self._remove(job)
        self._find_next()
        job.done(now)

    def advance(self, now: float) -> None:
        """Make the passes up to ``now``."""
        if self._num_live and now > self._now:
            passes = (now - self._now) / self._seconds
            self.passes += passes
            self.job_passes += passes * self._num_live
            self.busy += now - self._now
        self._now = now

    def _remove(self, job: PassJob) -> None:
        job.live = False
        self._size -= job.size
        self._num_live -= 1

    def _find_next(self) -> None:
        queue, size = self._queue, self._size
        while queue and not queue[0][2].live:
            heapq.heappop(queue)
        if not queue:
            self.next_at = NEVER
            return
        if size not in self._known:
            self._known[size] = self._pass_seconds(size)
        self._seconds = self._known[size]
        left = queue[0][0] - self.passes
        self.next_at = self._now + left * self._seconds if left > 0.0 else self._now


class VerdictQueue:
    """A verifier that returns every verdict after the same time, any number at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()

    @property
    def next_at(self) -> float:
        return self._queue[0][0] if self._queue else NEVER

    def ask(self, now: float, done: Callable[[float], None]) -> None:
        heapq.heappush(self._queue, (now + self._seconds, next(self._numbers), done))

    def finish_next(self) -> None:
        now, _, done = heapq.heappop(self._queue)
        done(now)
