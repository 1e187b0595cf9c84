"""Speculation as a discrete-event simulation: what the formulas leave out, acted out with drawn lengths.

Draft and target are servers that make passes: everything that waits for one is in its next pass, and how
long a pass takes depends on how much it holds. Between two events every pass holds the same, so its passes
are taken together; a hundred thousand steps take seconds. The events are the ends of drafts, target steps and
verdicts; what is behind a refused draft is cancelled. The loop is our own: it is a choice among three queues,
where a simulation library would run a process for every step.

A time unit is the time of a target token written alone. A run is determined by its seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reason_spec.control.formulas import width_rate
from reason_spec.errors import SettingsError
from reason_spec.lab.planning.servers import Job, PassServer, VerdictServer
from reason_spec.lab.planning.workload import Workload

Floats: TypeAlias = NDArray[np.float64]
Mode: TypeAlias = Literal["asynchronous", "synchronous", "judged"]
"""The target writes its own version of each step while the draft goes on, or in rounds, behind all drafts; or
the drafted step is judged first, and the target writes only what is refused."""

_BLOCK = 1024
"""Steps that are drawn at once."""
_TOGETHER = 1e-7
"""What ends within so much of each other ends together, the draft first."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How is speculated: ``depth`` steps ahead of the first that is undecided, ``width`` drafts of each.

    ``parallel`` target steps in a row may be under way (None: ``depth`` + 1, as in our own search; theorem 2
    of Lookahead Reasoning has it equal to ``depth``). Every pass checks ``num_drafts`` tokens in each branch.
    With ``hints`` the target is shown drafted steps, ``num_drafts`` + 1 of their tokens in a pass.

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
        if self.mode != "asynchronous" and self.width > 1:
            raise SettingsError(f"width is {self.width}: only the asynchronous mode tries several drafts")

    @property
    def at_once(self) -> int:
        return self.depth + 1 if self.parallel is None else self.parallel


@dataclass(slots=True)
class Tally:
    """Steps, drafts and target steps by what became of them; target passes once for each step in them."""

    num_steps: int = 0
    num_steps_by_draft: int = 0
    num_drafts: int = 0
    num_drafts_stood: int = 0
    num_drafts_refused: int = 0
    num_drafts_cancelled: int = 0
    num_drafts_open: int = 0
    num_target: int = 0
    num_target_decided: int = 0
    num_target_cancelled: int = 0
    num_target_open: int = 0
    passes_decided: float = 0.0
    passes_cancelled: float = 0.0
    passes_open: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation showed.

    ``seconds`` are in units of a target token written alone, ``speedup`` is over as many plain answers at
    once. ``tally`` counts what was begun and its end, ``target_passes`` are those of the target, once for
    each step in them. ``branches`` is their mean number in a pass; busy shares are of all the time.
    """

    seconds: float
    speedup: float
    tally: Tally
    num_verdicts: int
    target_passes: float
    branches: float
    target_busy: float
    draft_busy: float


def simulate(workload: Workload, scheme: Scheme, *, num_steps: int = 20_000, seed: int = 0) -> Simulated:
    """Simulate ``workload.requests`` answers at once, each followed by another, for ``num_steps`` steps."""
    world = _World(workload, scheme, seed)
    kinds: dict[str, Callable[[_World], _Answer]]
    kinds = {"asynchronous": _Compared, "synchronous": _Rounds, "judged": _Judged}
    answers = [kinds[scheme.mode](world) for _ in range(workload.requests)]
    for answer in answers:
        answer.begin()
    draft, target, verdicts = world.draft, world.target, world.verdicts
    now = 0.0
    while world.tally.num_steps < num_steps:
        now = min(draft.next_at, target.next_at, verdicts.next_at)
        # Rounding must not decide the order of what ends together.
        together = now + _TOGETHER
        if draft.next_at <= together:
            draft.finish_next()
        elif target.next_at <= together:
            target.finish_next()
        else:
            verdicts.finish_next()
    return world.result(now, answers)


# Chance ---------------------------------------------------------------------------------------


class _Drawn(NamedTuple):
    """What chance decides about a step: its tokens, the target's passes for them, and which draft stands.

    ``stands`` is -1 where none does; ``identical`` says that the one that stands is the target's own words.
    """

    tokens: float
    passes: float
    stands: int
    identical: bool


def _draw(workload: Workload, scheme: Scheme, rng: np.random.Generator) -> Iterator[_Drawn]:
    rate = width_rate(workload.alpha_step, scheme.width)
    while True:
        tokens = _lengths(workload, rng)
        passes = _passes(tokens, workload.alpha_token, scheme.num_drafts, rng)
        chances = rng.random(_BLOCK)
        sibling = np.where(chances < rate, rng.integers(0, scheme.width, _BLOCK), -1)
        # Which drafts stand does not depend on how many of them are the target's own words.
        identical = chances < workload.identical
        yield from map(_Drawn, tokens.tolist(), passes.tolist(), sibling.tolist(), identical.tolist())


def _lengths(workload: Workload, rng: np.random.Generator) -> Floats:
    """Draw tokens of steps, log-normally spread: most steps are short, and some are long."""
    mean, std = workload.step_tokens, workload.step_tokens_std
    if std == 0:
        return np.full(_BLOCK, float(mean))
    variance = np.log1p((std / mean) ** 2)
    drawn = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), _BLOCK)
    tokens: Floats = np.maximum(1.0, np.rint(drawn))
    return tokens


def _passes(tokens: Floats, alpha: float, num_drafts: int, rng: np.random.Generator) -> Floats:
    """Return the passes that write each step: every one brings the drafts that stand, and one token more."""
    if num_drafts == 0 or alpha == 0.0:
        return np.ceil(tokens)
    left, passes = tokens.copy(), np.zeros_like(tokens)
    while (writing := left > 0).any():
        stood = rng.geometric(1.0 - alpha, len(left)) - 1 if alpha < 1.0 else np.full(len(left), num_drafts)
        left -= np.minimum(stood, num_drafts) + 1
        passes += writing
    return passes


# Answers --------------------------------------------------------------------------------------


class _Position:
    """A place in an answer behind certain earlier steps, some of which may be guesses."""

    __slots__ = (
        "behind", "decided", "draft_jobs", "drawn", "dropped", "index", "num_drafts_open", "target_job",
        "waits_for_hint", "written",
    )  # fmt: skip

    def __init__(self, index: int, drawn: _Drawn) -> None:
        self.index = index
        self.drawn = drawn
        self.behind: dict[int, _Position] = {}
        """Positions behind its drafts, -1 the one behind the target's own step."""
        self.draft_jobs: list[Job] = []
        self.num_drafts_open = 0
        self.target_job: Job | None = None
        self.decided = self.dropped = self.waits_for_hint = self.written = False

    def with_all_behind(self) -> list[_Position]:
        """Return it and all positions behind it, each after the one before it."""
        found = [self]
        for position in found:
            found += position.behind.values()
        return found


class _World:
    """Servers, chance and counts, which all answers share."""

    def __init__(self, workload: Workload, scheme: Scheme, seed: int) -> None:
        self.workload = workload
        self.scheme = scheme
        self.tally = Tally()
        self.tokens = 0.0
        drafting = workload.c_token * scheme.num_drafts
        self.target = PassServer(lambda size: workload.pass_ratio(size) + drafting)
        self.draft = PassServer(lambda size: workload.c_step * workload.draft_ratio(size))
        self.verdicts = VerdictServer(workload.verification * workload.step_tokens)
        self._drawn = _draw(workload, scheme, np.random.default_rng(seed))

    def open(self, index: int) -> _Position:
        return _Position(index, next(self._drawn))

    def result(self, now: float, answers: list[_Answer]) -> Simulated:
        for server in (self.target, self.draft):
            server.advance(now)
        for answer in answers:
            for position in answer.live():
                self.tally.num_drafts_open += position.num_drafts_open
                if position.target_job is not None:
                    self.tally.num_target_open += 1
                    self.tally.passes_open += position.target_job.passes_made
        requests = self.workload.requests
        plain = self.tokens * self.workload.pass_ratio(requests) / requests
        passes = self.target.passes
        return Simulated(
            seconds=now,
            speedup=plain / now,
            tally=self.tally,
            num_verdicts=self.verdicts.num_asked,
            target_passes=self.target.job_passes,
            branches=self.target.job_passes / passes if passes else 0.0,
            target_busy=self.target.busy / now,
            draft_busy=self.draft.busy / now,
        )


class _Answer(ABC):
    """Answers one after another: the tree of positions behind the first that is not decided.

    Positions are numbered on through all of them; nobody looks ahead beyond the end of the present one.
    """

    def __init__(self, world: _World) -> None:
        self._world = world
        self._scheme = world.scheme
        self._tally = world.tally
        self._root = world.open(0)
        self._num_answers = 0
        self._end = inf
        self._find_end()

    @abstractmethod
    def begin(self) -> None: ...

    def live(self) -> list[_Position]:
        return self._root.with_all_behind()

    def _draft_step(self, position: _Position, now: float) -> None:
        for sibling in range(self._scheme.width):
            done = partial(self._drafted, position, sibling)
            position.draft_jobs.append(self._world.draft.begin(now, position.drawn.tokens, 1, done))
        position.num_drafts_open = self._scheme.width
        self._tally.num_drafts += self._scheme.width

    def _write_step(self, position: _Position, now: float, passes: float) -> None:
        size, done = 1 + self._scheme.num_drafts, partial(self._written, position)
        position.target_job = self._world.target.begin(now, passes, size, done)
        self._tally.num_target += 1

    def _ask_verdict(self, position: _Position, now: float) -> None:
        self._world.verdicts.ask(now, partial(self._judged, position))

    @abstractmethod
    def _drafted(self, position: _Position, sibling: int, now: float) -> None: ...

    @abstractmethod
    def _written(self, position: _Position, now: float) -> None: ...

    @abstractmethod
    def _judged(self, position: _Position, now: float) -> None: ...

    def _cancel_drafts(self, position: _Position, now: float) -> None:
        """Stop the drafts that are still being written."""
        for job in position.draft_jobs:
            if job.live:
                self._world.draft.cancel(job, now)
                position.num_drafts_open -= 1
                self._tally.num_drafts_cancelled += 1

    def _drop(self, first: _Position, now: float) -> None:
        """Cancel a position and all that is built on it."""
        for position in first.with_all_behind():
            position.dropped = True
            self._cancel_drafts(position, now)
            self._tally.num_drafts_cancelled += position.num_drafts_open
            if (job := position.target_job) is not None:
                if job.live:
                    self._world.target.cancel(job, now)
                self._tally.num_target_cancelled += 1
                self._tally.passes_cancelled += job.passes

    def _settle(self, position: _Position, stands: int, now: float) -> None:
        """Let the draft ``stands`` stand, or the target's own step where it is -1; the rest is cancelled."""
        chosen = position.behind.pop(stands, None) or self._world.open(position.index + 1)
        for other in position.behind.values():
            self._drop(other, now)
        position.behind = {stands: chosen}
        refused = position.num_drafts_open - (stands >= 0)
        self._tally.num_drafts_refused += refused
        position.num_drafts_open -= refused
        position.decided = True

    def _count(self, position: _Position) -> None:
        """Count a step that is final."""
        self._world.tokens += position.drawn.tokens
        self._tally.num_steps += 1
        self._tally.num_steps_by_draft += -1 not in position.behind
        self._tally.num_drafts_stood += position.num_drafts_open
        if (job := position.target_job) is not None:
            self._tally.num_target_decided += 1
            self._tally.passes_decided += job.passes

    def _advance(self) -> None:
        """Move on to the first position that is not decided."""
        while self._root.decided:
            self._count(self._root)
            (self._root,) = self._root.behind.values()
        if self._root.index >= self._end:
            self._find_end()

    def _find_end(self) -> None:
        """Set where the present answer ends: whole numbers of steps that are right on average."""
        self._num_answers += 1
        length = self._world.workload.answer_steps
        if length is not None:
            self._end = round(self._num_answers * length)


class _Compared(_Answer):
    """The target writes its own version of each step, the draft looks ahead meanwhile (asynchronous)."""

    def begin(self) -> None:
        self._start(self._root, 0.0)

    def _start(self, position: _Position, now: float) -> None:
        """Let those write that may; called again when the first undecided position has come nearer."""
        if position.index >= self._end:
            return
        ahead = position.index - self._root.index
        may_draft = ahead < self._scheme.depth
        if may_draft and not position.draft_jobs and not position.written:
            self._draft_step(position, now)
        if ahead >= self._scheme.at_once or position.target_job is not None or position.waits_for_hint:
            return
        if self._scheme.hints and position.drawn.identical and may_draft:
            position.waits_for_hint = True  # its words are confirmed behind the draft
        else:
            self._write_step(position, now, position.drawn.passes)

    def _drafted(self, position: _Position, sibling: int, now: float) -> None:
        behind = position.behind[sibling] = self._world.open(position.index + 1)
        if position.waits_for_hint and sibling == position.drawn.stands:
            position.waits_for_hint = False
            size = 1 + self._scheme.num_drafts
            self._write_step(position, now, max(1.0, position.drawn.tokens / size))
        self._start(behind, now)

    def _written(self, position: _Position, now: float) -> None:
        position.written = True
        # What is slower than the target itself has nothing left to save.
        self._cancel_drafts(position, now)
        if position.behind:
            self._ask_verdict(position, now)
        else:
            self._decide(position, -1, now)

    def _judged(self, position: _Position, now: float) -> None:
        if not position.dropped:
            stands = position.drawn.stands
            self._decide(position, stands if stands in position.behind else -1, now)

    def _decide(self, position: _Position, stands: int, now: float) -> None:
        self._settle(position, stands, now)
        if position is self._root:
            self._advance()
            for live in self.live():
                if not live.decided:
                    self._start(live, now)
        else:
            # Refused ahead of its turn: what comes behind the target's step need not wait.
            (behind,) = position.behind.values()
            self._start(behind, now)


class _Judged(_Answer):
    """A drafted step is judged before the target writes anything at its place."""

    def begin(self) -> None:
        self._start(self._root, 0.0)

    def _start(self, position: _Position, now: float) -> None:
        within = position.index - self._root.index < self._scheme.depth
        if within and position.index < self._end and not position.draft_jobs:
            self._draft_step(position, now)

    def _drafted(self, position: _Position, sibling: int, now: float) -> None:
        self._ask_verdict(position, now)
        behind = position.behind[sibling] = self._world.open(position.index + 1)
        self._start(behind, now)

    def _judged(self, position: _Position, now: float) -> None:
        if position.dropped:
            return
        if position.drawn.stands >= 0:
            self._decide(position, position.drawn.stands, now)
        else:
            for behind in position.behind.values():
                self._drop(behind, now)
            position.behind = {}
            self._write_step(position, now, position.drawn.passes)

    def _written(self, position: _Position, now: float) -> None:
        self._decide(position, -1, now)

    def _decide(self, position: _Position, stands: int, now: float) -> None:
        self._settle(position, stands, now)
        if position is self._root:
            self._advance()
        for live in self.live():
            if not live.decided:
                self._start(live, now)


class _Rounds(_Answer):
    """All drafts of a round, then all target steps at once, then all verdicts together (synchronous)."""

    def begin(self) -> None:
        self._begin_round(0.0)

    def _begin_round(self, now: float) -> None:
        self._round = [self._root]
        self._num_written = 0
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if len(self._round) < min(self._scheme.at_once, self._end - self._root.index):
            self._draft_step(self._round[-1], now)
        else:
            for position in self._round:
                self._write_step(position, now, position.drawn.passes)

    def _drafted(self, position: _Position, sibling: int, now: float) -> None:
        position.behind[sibling] = self._world.open(position.index + 1)
        self._round.append(position.behind[sibling])
        self._go_on(now)

    def _written(self, position: _Position, now: float) -> None:
        self._num_written += 1
        if self._num_written < len(self._round):
            return
        if len(self._round) > 1:
            self._ask_verdict(self._root, now)
        else:
            self._judged(self._root, now)

    def _judged(self, position: _Position, now: float) -> None:
        while not position.decided:
            stands = position.drawn.stands if position.behind else -1
            self._settle(position, stands, now)
            (behind,) = position.behind.values()
            if stands >= 0:
                position = behind
        self._advance()
        self._begin_round(now)
