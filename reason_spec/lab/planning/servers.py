"""The servers of the simulator: one makes passes over everything that waits for it, one gives verdicts."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

NEVER = float("inf")


class Job:
    """Work that takes ``passes`` passes and adds ``size`` to each; ``live`` until it ends or is cancelled."""

    __slots__ = ("_begun_at", "_server", "done", "live", "passes", "size")

    def __init__(self, server: PassServer, passes: float, size: int, done: Callable[[float], None]) -> None:
        self._server = server
        self._begun_at = server.passes
        self.passes = passes
        self.size = size
        self.done = done
        self.live = True

    @property
    def passes_made(self) -> float:
        """Passes that were made for it so far; of a live job only up to the last event of its server."""
        return self._server.passes - self._begun_at if self.live else self.passes


class PassServer:
    """Makes one pass after another, each with a part of every live job.

    Every job is in every pass while it lives, so it ends when the number of passes made has grown by its own:
    the order of ends is known beforehand, whatever passes will take. ``pass_seconds`` is the time of a pass
    by the sizes of what is in it.

    ``passes`` are those made so far, ``job_passes`` the same once for each job in them, ``busy`` the time
    they took.
    """

    def __init__(self, pass_seconds: Callable[[int], float]) -> None:
        self._pass_seconds = pass_seconds
        self._known: dict[int, float] = {}
        self._queue: list[tuple[float, int, Job]] = []
        self._numbers = count()
        self._size = 0
        self._num_live = 0
        self._now = 0.0
        self._seconds = 1.0
        """The time of a pass as long as nobody comes or goes."""
        self.next_at = NEVER
        self.passes = 0.0
        self.job_passes = 0.0
        self.busy = 0.0

    def begin(self, now: float, passes: float, size: int, done: Callable[[float], None]) -> Job:
        """Take a job; ``done`` is called with the time of its end."""
        self.advance(now)
        job = Job(self, passes, size, done)
        heapq.heappush(self._queue, (self.passes + passes, next(self._numbers), job))
        self._size += size
        self._num_live += 1
        self._look_ahead()
        return job

    def cancel(self, job: Job, now: float) -> None:
        """Stop a live job; ``job.passes`` is then what was made of it."""
        self.advance(now)
        self._leave(job, job.passes_made)
        self._look_ahead()

    def finish_next(self) -> None:
        """End the job that is due at ``next_at``."""
        now = self.next_at
        self.advance(now)
        _, _, job = heapq.heappop(self._queue)
        self._leave(job, job.passes)
        self._look_ahead()
        job.done(now)

    def advance(self, now: float) -> None:
        """Make the passes up to ``now``."""
        if self._num_live and now > self._now:
            passes = (now - self._now) / self._seconds
            self.passes += passes
            self.job_passes += passes * self._num_live
            self.busy += now - self._now
        self._now = now

    def _leave(self, job: Job, passes: float) -> None:
        job.live = False
        job.passes = passes
        self._size -= job.size
        self._num_live -= 1

    def _look_ahead(self) -> None:
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


class VerdictServer:
    """Gives every verdict after the same time: those asked for at once are given at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self.num_asked = 0

    @property
    def next_at(self) -> float:
        return self._queue[0][0] if self._queue else NEVER

    def ask(self, now: float, done: Callable[[float], None]) -> None:
        self.num_asked += 1
        heapq.heappush(self._queue, (now + self._seconds, next(self._numbers), done))

    def finish_next(self) -> None:
        now, _, done = heapq.heappop(self._queue)
        done(now)
