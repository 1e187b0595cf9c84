"""A discrete-event simulation of speculation, with what the formulas leave out.

Draft and target make passes, and every job that waits for a model is in its next pass. The events are the
ends of drafts, target steps and verdicts; everything after a rejected draft is cancelled. The loop chooses
among three queues; a simulation library would run a process for every step, which is slower.

The time unit is the time of a target token written alone. The seed determines a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reason_spec.control.formulas import width_rate
from reason_spec.errors import SettingsError
from reason_spec.lab.planning.queues import PassJob, PassQueue, VerdictQueue
from reason_spec.lab.planning.workload import Workload

Floats: TypeAlias = NDArray[np.float64]
Mode: TypeAlias = Literal["asynchronous", "judged"]
"""``asynchronous``: the target writes its own version of each step while the draft goes on (Lookahead
Reasoning). ``judged``: each drafted step is judged first, and the target writes the rejected ones
(SpecReason)."""

_BLOCK = 1024
"""Steps that are drawn at once."""
_SAME_TIME = 1e-7
"""Events this close count as simultaneous, and the draft's comes first: rounding must not decide."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to speculate: ``depth`` steps ahead of the first undecided one, ``width`` drafts of each.

    At most ``parallel`` target steps in a row are under way; None is ``depth`` + 1, and theorem 2 of
    Lookahead Reasoning has ``depth``. Every pass verifies ``num_drafts`` tokens in each branch. With
    ``hints`` the target verifies the tokens of drafted steps, ``num_drafts`` + 1 in a pass.

    Raises:
        SettingsError: a value is impossible.
    """

    depth: int
    parallel: int | None = None
    width: int = 1
    num_drafts: int = 0
    mode: Mode = "asynchronous"
    hints: bool = False

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise SettingsError(f"depth is {self.depth}: the draft runs 0 steps ahead or more")
        if self.width < 1:
            raise SettingsError(f"width is {self.width}: a step has 1 draft or more")
        if self.num_drafts < 0:
            raise SettingsError(f"num_drafts is {self.num_drafts}: a pass checks 0 drafts or more")
        if self.parallel is not None and self.parallel < 1:
            raise SettingsError(f"parallel is {self.parallel}: 1 target step or more is under way")
        if self.mode == "judged" and self.depth < 1:
            raise SettingsError("depth is 0: a step that is judged first has to be drafted")
        if self.mode == "judged" and self.width > 1:
            raise SettingsError(f"width is {self.width}: only the asynchronous mode tries several drafts")

    @property
    def at_once(self) -> int:
        return self.depth + 1 if self.parallel is None else self.parallel


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation.

    ``speedup`` is over as many plain answers at once. ``drafted_share`` is the share of final steps that are
    drafts. ``passes_per_step`` counts target passes, once for each step in them, cancelled ones included.
    ``target_busy`` and ``draft_busy`` are shares of the time.
    """

    speedup: float
    num_steps: int
    drafted_share: float
    passes_per_step: float
    target_busy: float
    draft_busy: float


def simulate(workload: Workload, scheme: Scheme, *, num_steps: int = 20_000, seed: int = 0) -> Simulated:
    """Simulate ``workload.requests`` answers at once, each followed by another, for ``num_steps`` steps."""
    world = _World(workload, scheme, seed)
    kind = _Asynchronous if scheme.mode == "asynchronous" else _Judged
    for _ in range(workload.requests):
        kind(world).begin()
    draft, target, verdicts = world.draft, world.target, world.verdicts
    now = 0.0
    while world.num_steps < num_steps:
        now = min(draft.next_at, target.next_at, verdicts.next_at)
        latest = now + _SAME_TIME
        if draft.next_at <= latest:
            draft.finish_next()
        elif target.next_at <= latest:
            target.finish_next()
        else:
            verdicts.finish_next()
    return world.result(now)


# Random draws ----------------------------------------------------------------------------------


class _Drawn(NamedTuple):
    """The random properties of a step: its tokens, the target's passes for them, and which draft is accepted.

    ``accepted`` is -1 where none is; ``identical`` means that the accepted draft has the target's own words.
    """

    tokens: float
    passes: float
    accepted: int
    identical: bool


def _draw(workload: Workload, scheme: Scheme, rng: np.random.Generator) -> Iterator[_Drawn]:
    rate = width_rate(workload.alpha_step, scheme.width)
    while True:
        tokens = _lengths(workload, rng)
        passes = _passes(tokens, workload.alpha_token, scheme.num_drafts, rng)
        chances = rng.random(_BLOCK)
        accepted = np.where(chances < rate, rng.integers(0, scheme.width, _BLOCK), -1)
        identical = chances < workload.identical
        yield from map(_Drawn, tokens.tolist(), passes.tolist(), accepted.tolist(), identical.tolist())


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


# Answers --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Position:
    """A place in an answer after certain earlier steps, some of which may be drafts.

    ``successors`` holds the positions after its drafts, and after the target's own step as -1.
    """

    index: int
    drawn: _Drawn
    successors: dict[int, _Position] = field(default_factory=dict)
    draft_jobs: list[PassJob] = field(default_factory=list)
    target_job: PassJob | None = None
    decided: bool = False
    dropped: bool = False
    waits_for_hint: bool = False
    written: bool = False

    def with_successors(self) -> list[_Position]:
        """Return it and all positions after it, each after the one before it."""
        found = [self]
        for position in found:
            found += position.successors.values()
        return found


class _World:
    """Queues, random draws and counts, shared by all answers."""

    def __init__(self, workload: Workload, scheme: Scheme, seed: int) -> None:
        self.workload = workload
        self.scheme = scheme
        self.num_steps = 0
        self.num_drafted = 0
        self.tokens = 0.0
        drafting = workload.c_token * scheme.num_drafts
        self.target = PassQueue(lambda size: workload.pass_ratio(size) + drafting)
        self.draft = PassQueue(lambda size: workload.c_step * workload.draft_ratio(size))
        self.verdicts = VerdictQueue(workload.verification * workload.step_tokens)
        self._drawn = _draw(workload, scheme, np.random.default_rng(seed))

    def open(self, index: int) -> _Position:
        return _Position(index, next(self._drawn))

    def result(self, now: float) -> Simulated:
        for queue in (self.target, self.draft):
            queue.advance(now)
        requests = self.workload.requests
        plain = self.tokens * self.workload.pass_ratio(requests) / requests
        return Simulated(
            speedup=plain / now,
            num_steps=self.num_steps,
            drafted_share=self.num_drafted / self.num_steps,
            passes_per_step=self.target.job_passes / self.num_steps,
            target_busy=self.target.busy / now,
            draft_busy=self.draft.busy / now,
        )


class _Answer(ABC):
    """Answers one after another: the tree of positions after the first undecided one.

    Positions are numbered through all answers; none is begun beyond the end of the present answer.
    """

    def __init__(self, world: _World) -> None:
        self._world = world
        self._scheme = world.scheme
        self._root = world.open(0)
        self._num_answers = 0
        self._end = inf
        self._find_end()

    def begin(self) -> None:
        self._start(self._root, 0.0)

    @abstractmethod
    def _start(self, position: _Position, now: float) -> None:
        """Begin the work that is allowed at a position; called again when the root has moved."""

    @abstractmethod
    def _drafted(self, position: _Position, sibling: int, now: float) -> None: ...

    @abstractmethod
    def _written(self, position: _Position, now: float) -> None: ...

    @abstractmethod
    def _judged(self, position: _Position, now: float) -> None: ...

    def _draft_step(self, position: _Position, now: float) -> None:
        for sibling in range(self._scheme.width):
            done = partial(self._drafted, position, sibling)
            position.draft_jobs.append(self._world.draft.begin(now, position.drawn.tokens, 1, done))

    def _write_step(self, position: _Position, now: float, passes: float) -> None:
        size, done = 1 + self._scheme.num_drafts, partial(self._written, position)
        position.target_job = self._world.target.begin(now, passes, size, done)

    def _ask_verdict(self, position: _Position, now: float) -> None:
        self._world.verdicts.ask(now, partial(self._judged, position))

    def _cancel_drafts(self, position: _Position, now: float) -> None:
        for job in position.draft_jobs:
            if job.live:
                self._world.draft.cancel(job, now)

    def _drop(self, first: _Position, now: float) -> None:
        """Cancel a position and everything after it."""
        for position in first.with_successors():
            position.dropped = True
            self._cancel_drafts(position, now)
            if position.target_job is not None and position.target_job.live:
                self._world.target.cancel(position.target_job, now)

    def _settle(self, position: _Position, accepted: int, now: float) -> None:
        """Keep the draft ``accepted``, or the target's own step where it is -1; cancel the rest."""
        chosen = position.successors.pop(accepted, None) or self._world.open(position.index + 1)
        for other in position.successors.values():
            self._drop(other, now)
        position.successors = {accepted: chosen}
        position.decided = True

    def _advance(self) -> None:
        """Move the root to the first undecided position, and count the steps before it."""
        while self._root.decided:
            self._world.tokens += self._root.drawn.tokens
            self._world.num_steps += 1
            self._world.num_drafted += -1 not in self._root.successors
            (self._root,) = self._root.successors.values()
        if self._root.index >= self._end:
            self._find_end()

    def _advance_and_start(self, now: float) -> None:
        self._advance()
        for live in self._root.with_successors():
            if not live.decided:
                self._start(live, now)

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
        ahead = position.index - self._root.index
        may_draft = ahead < self._scheme.depth
        if may_draft and not position.draft_jobs and not position.written:
            self._draft_step(position, now)
        if ahead >= self._scheme.at_once or position.target_job is not None or position.waits_for_hint:
            return
        if self._scheme.hints and position.drawn.identical and may_draft:
            position.waits_for_hint = True
        else:
            self._write_step(position, now, position.drawn.passes)

    def _drafted(self, position: _Position, sibling: int, now: float) -> None:
        successor = position.successors[sibling] = self._world.open(position.index + 1)
        if position.waits_for_hint and sibling == position.drawn.accepted:
            position.waits_for_hint = False
            size = 1 + self._scheme.num_drafts
            self._write_step(position, now, max(1.0, position.drawn.tokens / size))
        self._start(successor, now)

    def _written(self, position: _Position, now: float) -> None:
        position.written = True
        # A draft slower than the target itself saves nothing.
        self._cancel_drafts(position, now)
        if position.successors:
            self._ask_verdict(position, now)
        else:
            self._decide(position, -1, now)

    def _judged(self, position: _Position, now: float) -> None:
        if not position.dropped:
            accepted = position.drawn.accepted
            self._decide(position, accepted if accepted in position.successors else -1, now)

    def _decide(self, position: _Position, accepted: int, now: float) -> None:
        self._settle(position, accepted, now)
        if position is self._root:
            self._advance_and_start(now)
        else:
            # Rejected before its turn: the position after the target's step can start already.
            (successor,) = position.successors.values()
            self._start(successor, now)


class _Judged(_Answer):
    """A drafted step is judged before the target writes anything at its place."""

    def _start(self, position: _Position, now: float) -> None:
        within = position.index - self._root.index < self._scheme.depth
        if within and position.index < self._end and not position.draft_jobs:
            self._draft_step(position, now)

    def _drafted(self, position: _Position, sibling: int, now: float) -> None:
        self._ask_verdict(position, now)
        successor = position.successors[sibling] = self._world.open(position.index + 1)
        self._start(successor, now)

    def _judged(self, position: _Position, now: float) -> None:
        if position.dropped:
            return
        if position.drawn.accepted >= 0:
            self._decide(position, position.drawn.accepted, now)
        else:
            for successor in position.successors.values():
                self._drop(successor, now)
            position.successors = {}
            self._write_step(position, now, position.drawn.passes)

    def _written(self, position: _Position, now: float) -> None:
        self._decide(position, -1, now)

    def _decide(self, position: _Position, accepted: int, now: float) -> None:
        self._settle(position, accepted, now)
        self._advance_and_start(now)
