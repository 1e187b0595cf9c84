"""A discrete-event simulation of speculation, with what the formulas leave out.

Draft and target make passes, and every job that waits for a model is in its next pass. The events are the
ends of drafts, target steps and verdicts. Work after a rejected draft is cancelled.

The time unit is the time of a target token written alone. The seed determines a run.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reason_spec.lab.planning.workload import Workload

Floats: TypeAlias = NDArray[np.float64]
Mode: TypeAlias = Literal["asynchronous", "judged"]
"""``asynchronous``: the target writes its own version of each step while the draft continues (Lookahead
Reasoning). ``judged``: each drafted step is judged first, and the target writes the rejected ones
(SpecReason)."""

_BLOCK = 1024
"""Steps that are drawn at once."""
_SAME_TIME = 1e-7
"""Events this close count as simultaneous, and the draft's comes first: rounding must not decide."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to speculate: ``depth`` steps ahead of the first undecided one.

    At most ``parallel`` target steps in a row are under way; None is ``depth`` + 1, and theorem 2 of
    Lookahead Reasoning has ``depth``. Every pass verifies ``num_drafts`` tokens in each branch.
    """

    depth: int
    parallel: int | None = None
    num_drafts: int = 0
    mode: Mode = "asynchronous"

    def __post_init__(self) -> None:
        assert self.depth >= (self.mode == "judged"), "a step that is judged first has to be drafted"
        assert self.num_drafts >= 0 < self.at_once, self

    @property
    def at_once(self) -> int:
        return self.depth + 1 if self.parallel is None else self.parallel


def simulate(workload: Workload, scheme: Scheme, *, num_steps: int = 20_000, seed: int = 0) -> float:
    """Return the speed-up over as many plain answers at once.

    ``workload.requests`` answers are written at once, each followed by another, until ``num_steps`` steps are
    final.
    """
    world = _World(workload, scheme, seed)
    kind = _Asynchronous if scheme.mode == "asynchronous" else _Judged
    for _ in range(workload.requests):
        kind(world).begin()
    queues = world.draft, world.target, world.verifier
    now = 0.0
    while world.num_steps < num_steps:
        now = min(queue.next_at for queue in queues)
        next(queue for queue in queues if queue.next_at <= now + _SAME_TIME).finish_next()
    plain = world.num_tokens * workload.pass_ratio(workload.requests) / workload.requests
    return plain / now


# Random draws ----------------------------------------------------------------------------------


class _Drawn(NamedTuple):
    """The random properties of a step: its tokens, the target's passes for them, and its draft's verdict."""

    tokens: float
    passes: float
    accepted: bool


def _draw(workload: Workload, scheme: Scheme, rng: np.random.Generator) -> Iterator[_Drawn]:
    while True:
        tokens = _lengths(workload, rng)
        passes = _passes(tokens, workload.alpha_token, scheme.num_drafts, rng)
        accepted = rng.random(_BLOCK) < workload.alpha_step
        yield from map(_Drawn, tokens.tolist(), passes.tolist(), accepted.tolist())


def _lengths(workload: Workload, rng: np.random.Generator) -> Floats:
    """Draw tokens of steps from a log-normal distribution: most steps are short, some are long."""
    mean, std = workload.step_tokens, workload.step_tokens_std
    if std == 0:
        return np.full(_BLOCK, float(mean))
    variance = np.log1p((std / mean) ** 2)
    drawn = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), _BLOCK)
    tokens: Floats = np.maximum(1.0, np.rint(drawn))
    return tokens


def _passes(tokens: Floats, alpha: float, num_drafts: int, rng: np.random.Generator) -> Floats:
    """Return the passes that write each step: a pass brings the accepted drafts and one more token."""
    if num_drafts == 0 or alpha == 0.0:
        return np.ceil(tokens)
    left, passes = tokens.copy(), np.zeros_like(tokens)
    while (writing := left > 0).any():
        accepted = (
            rng.geometric(1.0 - alpha, len(left)) - 1 if alpha < 1.0 else np.full(len(left), num_drafts)
        )
        left -= np.minimum(accepted, num_drafts) + 1
        passes += writing
    return passes


# Models ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Job:
    """Work that adds ``size`` tokens to each pass, ``live`` until it ends or is cancelled."""

    size: int
    done: Callable[[float], None]
    live: bool = True


class _PassQueue:
    """A model that makes one pass after another, each with a part of every live job.

    So a job ends when the count of passes has grown by its own number: the order of ends is known in advance,
    for any pass times.

    Args:
        pass_seconds: the time of a pass by the total size of its jobs.

    Attributes:
        next_at: when the next job ends.
    """

    def __init__(self, pass_seconds: Callable[[int], float]) -> None:
        self._pass_seconds = cache(pass_seconds)
        self._heap: list[tuple[float, int, _Job]] = []
        self._numbers = count()
        self._size = 0
        self._num_passes = 0.0
        self._now = 0.0
        self.next_at = inf

    def begin(self, now: float, num_passes: float, size: int, done: Callable[[float], None]) -> _Job:
        """Take a job that needs ``num_passes`` passes; ``done`` is called with the time of its end."""
        self._advance(now)
        job = _Job(size, done)
        heapq.heappush(self._heap, (self._num_passes + num_passes, next(self._numbers), job))
        self._size += size
        self._find_next()
        return job

    def cancel(self, job: _Job | None, now: float) -> None:
        """Stop a job, if there is one and it is live."""
        if job is not None and job.live:
            self._advance(now)
            self._remove(job)

    def finish_next(self) -> None:
        """End the job that is due at ``next_at``."""
        now, job = self.next_at, self._heap[0][2]
        self._advance(now)
        self._remove(job)
        job.done(now)

    def _advance(self, now: float) -> None:
        """Make the passes up to ``now``."""
        if self._size and now > self._now:
            self._num_passes += (now - self._now) / self._pass_seconds(self._size)
        self._now = now

    def _remove(self, job: _Job) -> None:
        job.live = False
        self._size -= job.size
        self._find_next()

    def _find_next(self) -> None:
        while self._heap and not self._heap[0][2].live:
            heapq.heappop(self._heap)
        self.next_at = inf
        if self._heap:
            left = max(0.0, self._heap[0][0] - self._num_passes)
            self.next_at = self._now + left * self._pass_seconds(self._size)


class _World:
    """Models, random draws and counts, shared by all answers."""

    def __init__(self, workload: Workload, scheme: Scheme, seed: int) -> None:
        self.workload = workload
        self.scheme = scheme
        self.num_steps = 0
        self.num_tokens = 0.0
        drafting = workload.c_token * scheme.num_drafts
        self.target = _PassQueue(lambda size: workload.pass_ratio(size) + drafting)
        self.draft = _PassQueue(lambda _: workload.c_step)
        # Verdicts all take the same time, any number at once.
        self.verifier = _PassQueue(lambda _: 1.0)
        self._drawn = _draw(workload, scheme, np.random.default_rng(seed))

    def open(self, index: int) -> _Position:
        return _Position(index, next(self._drawn))


# Answers --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Position:
    """A place in an answer after certain earlier steps, some of which may be drafts."""

    index: int
    drawn: _Drawn
    draft: _Job | None = None
    target: _Job | None = None
    verdict: _Job | None = None
    decided: bool = False


class _Answer(ABC):
    """Answers one after another, from the first undecided position on.

    Each position continues the draft of the one before it. Positions are numbered through all answers; none
    is begun beyond the end of the present answer.
    """

    def __init__(self, world: _World) -> None:
        self._world = world
        self._scheme = world.scheme
        self._positions = deque([world.open(0)])
        self._num_answers = 0
        self._end = inf
        self._find_end()

    def begin(self) -> None:
        self._start(self._positions[0], 0.0)

    @abstractmethod
    def _start(self, position: _Position, now: float) -> None:
        """Begin the work that is allowed at a position; called again when the first one has moved."""

    @abstractmethod
    def _drafted(self, position: _Position, now: float) -> None: ...

    @abstractmethod
    def _written(self, position: _Position, now: float) -> None: ...

    @abstractmethod
    def _judged(self, position: _Position, now: float) -> None: ...

    def _ahead(self, position: _Position) -> int:
        return position.index - self._positions[0].index

    def _draft_step(self, position: _Position, now: float) -> None:
        done = partial(self._drafted, position)
        position.draft = self._world.draft.begin(now, position.drawn.tokens, 1, done)

    def _write_step(self, position: _Position, now: float) -> None:
        size, done = 1 + self._scheme.num_drafts, partial(self._written, position)
        position.target = self._world.target.begin(now, position.drawn.passes, size, done)

    def _ask_verdict(self, position: _Position, now: float) -> None:
        workload, done = self._world.workload, partial(self._judged, position)
        seconds = workload.verification * workload.step_tokens
        position.verdict = self._world.verifier.begin(now, seconds, 1, done)

    def _open_next(self, position: _Position) -> _Position:
        following = self._world.open(position.index + 1)
        self._positions.append(following)
        return following

    def _drop_behind(self, position: _Position, now: float) -> None:
        """Cancel everything that continues the draft of a position."""
        while self._positions[-1] is not position:
            dropped = self._positions.pop()
            self._world.draft.cancel(dropped.draft, now)
            self._world.target.cancel(dropped.target, now)
            self._world.verifier.cancel(dropped.verdict, now)

    def _settle(self, position: _Position, accepted: bool, now: float) -> _Position:
        """Keep the draft or the target's own step; return the position after it."""
        position.decided = True
        if accepted:
            return self._positions[self._ahead(position) + 1]
        self._drop_behind(position, now)
        return self._open_next(position)

    def _advance(self, now: float) -> None:
        """Count the decided steps up to the first undecided one, and start what is allowed now."""
        while self._positions[0].decided:
            self._world.num_tokens += self._positions.popleft().drawn.tokens
            self._world.num_steps += 1
        if self._positions[0].index >= self._end:
            self._find_end()
        for position in tuple(self._positions):
            if not position.decided:
                self._start(position, now)

    def _find_end(self) -> None:
        """Set the end of the present answer: whole numbers of steps with the right mean."""
        self._num_answers += 1
        length = self._world.workload.answer_steps
        if length is not None:
            self._end = round(self._num_answers * length)


class _Asynchronous(_Answer):
    """The target writes its own version of each step, and the draft runs ahead meanwhile."""

    def _start(self, position: _Position, now: float) -> None:
        if position.index >= self._end:
            return
        ahead = self._ahead(position)
        is_written = position.target is not None and not position.target.live
        if ahead < self._scheme.depth and position.draft is None and not is_written:
            self._draft_step(position, now)
        if ahead < self._scheme.at_once and position.target is None:
            self._write_step(position, now)

    def _drafted(self, position: _Position, now: float) -> None:
        self._start(self._open_next(position), now)

    def _written(self, position: _Position, now: float) -> None:
        # A draft slower than the target itself saves nothing.
        self._world.draft.cancel(position.draft, now)
        if self._positions[-1] is not position:
            self._ask_verdict(position, now)
        else:
            self._decide(position, False, now)

    def _judged(self, position: _Position, now: float) -> None:
        self._decide(position, position.drawn.accepted, now)

    def _decide(self, position: _Position, accepted: bool, now: float) -> None:
        following = self._settle(position, accepted, now)
        if position is self._positions[0]:
            self._advance(now)
        else:
            # Rejected before its turn: the position after the target's step can start already.
            self._start(following, now)


class _Judged(_Answer):
    """A drafted step is judged before the target writes anything at its place."""

    def _start(self, position: _Position, now: float) -> None:
        within = self._ahead(position) < self._scheme.depth and position.index < self._end
        if within and position.draft is None:
            self._draft_step(position, now)

    def _drafted(self, position: _Position, now: float) -> None:
        self._ask_verdict(position, now)
        self._start(self._open_next(position), now)

    def _judged(self, position: _Position, now: float) -> None:
        if position.drawn.accepted:
            self._settle(position, True, now)
            self._advance(now)
        else:
            self._drop_behind(position, now)
            self._write_step(position, now)

    def _written(self, position: _Position, now: float) -> None:
        self._settle(position, False, now)
        self._advance(now)
