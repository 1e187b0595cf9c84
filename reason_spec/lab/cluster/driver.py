"""Hands problems to the workers of a cluster, and collects each answer once, whatever becomes of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeAlias

import reason_spec
from reason_spec.errors import DataError, EngineError
from reason_spec.evaluation.job import KeepTimeline
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import MAX_FAILURES_IN_A_ROW, Failure
from reason_spec.evaluation.timeline import Timeline
from reason_spec.lab.cluster.worker import Assignment, ClusterWorker, Description, Part, Report
from reason_spec.types import Problem

MAX_LOSSES_IN_A_ROW = 6
"""A place whose workers are lost so often without an answer in between is given up."""
_CLOSE_SECONDS = 20.0
_WAITING_SECONDS = 60.0
_REASON_LENGTH = 200

Notify: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a machine that one worker after another may run on; ``node`` is Ray's name for it."""

    node: str
    machine: str
    part: Part
    num_cpus: float
    num_gpus: float

    def __str__(self) -> str:
        return f"{self.machine}, part {self.part.index}" if self.part.num_parts > 1 else self.machine


@dataclass(slots=True)
class Unit:
    """Problems that one worker answers together, with what became of their answers so far.

    ``index`` is the place of each problem among all of the run. Answers are ``missing`` until they are
    ``done`` or given up; ``failed_tries`` says why earlier tries failed, and ``reason`` why the last did.
    """

    problems: tuple[Problem, ...]
    index: dict[str, int]
    missing: set[UnitKey]
    done: set[UnitKey]
    failed_tries: dict[UnitKey, list[str]] = field(default_factory=dict)
    reason: str = ""
    num_tries: int = 0
    last_place: Place | None = None

    def fail(self, keys: Collection[UnitKey], reason: str) -> None:
        """Note why these answers have to be tried again."""
        self.reason = reason
        for key in keys:
            self.failed_tries.setdefault(key, []).append(reason)

    def complete(self, outcome: Outcome) -> Outcome:
        """Take an answer off what is missing; return it with what only the driver knows."""
        self.missing.remove(outcome.key)
        self.done.add(outcome.key)
        earlier = tuple(self.failed_tries.get(outcome.key, ()))
        return replace(outcome, index=self.index[outcome.id], failed_tries=(*earlier, *outcome.failed_tries))


def units_of(
    problems: Sequence[Problem],
    strategies: Sequence[str],
    samples: int,
    concurrency: int,
    done: Collection[UnitKey],
) -> Iterator[Unit]:
    """Yield what is left to answer, in units of as many whole problems as make ``concurrency`` answers."""
    already = set(done)
    pending = []
    for place, problem in enumerate(problems):
        keys = {UnitKey(problem.id, sample, name) for sample in range(samples) for name in strategies}
        if not keys <= already:
            pending.append((place, problem, keys))
    size = max(1, concurrency // samples)
    # As in `run`, answers that share their time are of one task.
    for _, group in groupby(pending, key=lambda entry: entry[1].task):
        of_task = list(group)
        for start in range(0, len(of_task), size):
            batch = of_task[start : start + size]
            wanted = set[UnitKey]().union(*(keys for _, _, keys in batch))
            yield Unit(
                problems=tuple(problem for _, problem, _ in batch),
                index={problem.id: place for place, problem, _ in batch},
                missing=wanted - already,
                done=wanted & already,
            )


class Driver:
    """Keeps a worker alive at each place and hands it units; yields what they report.

    Everything happens on one event loop: a task for each place fills ``_results``, and ``run`` empties it.

    Args:
        units: what is to be answered.
        assignment: of every worker, but for its part of a machine.
        weights: digests of the model files here by role, None where there are none; a worker's must be equal.
        retries: how often a unit is tried again before what it lacks is a failure.
        keep_timeline: called with an answer's timeline before the answer is yielded; None: they are not made.
        notify: told of workers that are ready, or lost.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        assignment: Assignment,
        weights: dict[str, str | None],
        retries: int,
        keep_timeline: KeepTimeline | None,
        notify: Notify,
    ) -> None:
        self._waiting = list(units)
        self._num_open = len(units)
        self._assignment = assignment
        self._weights = dict(weights)
        self._retries = retries
        self._keep_timeline = keep_timeline
        self._notify = notify
        self._changed = asyncio.Condition()
        self._results: asyncio.Queue[Outcome | Failure | Exception | None] = asyncio.Queue()
        self._num_failed_in_a_row = 0
        self._num_places = 0

    async def run(self, places: Sequence[Place]) -> AsyncGenerator[Outcome | Failure]:
        """Yield results until every unit is over; then, or where the generator is closed, workers end.

        Raises:
            DataError: a worker has another version of the package, or other weights.
            EngineError: no place has a worker any more, or unit after unit failed.
        """
        self._num_places = len(places)
        tasks = [asyncio.create_task(self._keep_busy(place)) for place in places]
        try:
            while (result := await self._results.get()) is not None:
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_busy(self, place: Place) -> None:
        """Keep a worker alive at a place, and tell ``run`` where that cannot be."""
        num_losses = 0
        error: Exception | None = None
        while error is None:
            async with _worker(place, self._assignment) as worker:
                try:
                    await self._begin(worker)
                    await self._serve(worker)
                except _WorkerLostError as lost:
                    num_losses = 1 if worker.num_answers else num_losses + 1
                    self._notify(f"The worker on {place} was lost: {lost}")
                    if num_losses == MAX_LOSSES_IN_A_ROW:
                        error = EngineError(f"{num_losses} workers in a row were lost on {place}: {lost}")
                except Exception as failure:
                    error = failure
        self._num_places -= 1
        self._notify(f"{place} takes no part any more: {error}")
        if self._num_places == 0 or not isinstance(error, EngineError):
            self._results.put_nowait(error)

    async def _begin(self, worker: _Worker) -> None:
        """Start a worker, unless its answers would be another run's."""
        described = await worker.describe(self._notify)
        if described.version != reason_spec.__version__:
            raise DataError(
                f"{worker.place} has reason-spec {described.version}, and here it is "
                f"{reason_spec.__version__}; install the same version on every machine"
            )
        for role, digest in described.weights.items():
            known = self._weights.get(role) or digest
            if digest is not None and digest != known:
                raise DataError(
                    f"{worker.place} has other weights of the {role}: sha256 {digest[:12]}..., and elsewhere "
                    f"it is {str(known)[:12]}...; copy the same files to every machine"
                )
            self._weights[role] = known
        await worker.start()
        cores = ", ".join(map(str, described.cores))
        self._notify(f"A worker is ready on {worker.place} (process {described.process}, cores {cores}).")

    async def _serve(self, worker: _Worker) -> None:
        while True:
            unit = await self._take(worker.place)
            try:
                await self._answer(worker, unit)
            finally:
                self._settle(unit)
                async with self._changed:
                    self._changed.notify_all()

    async def _take(self, place: Place) -> Unit:
        """Return the next unit; one that was lost here is left to others as long as there is another."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting)
            elsewhere = (unit for unit in self._waiting if unit.last_place != place)
            unit = next(elsewhere, self._waiting[0])
            self._waiting.remove(unit)
            return unit

    async def _answer(self, worker: _Worker, unit: Unit) -> None:
        unit.num_tries += 1
        unit.last_place = worker.place
        begun: set[UnitKey] = set()
        try:
            async with aclosing(worker.solve(unit)) as reports:
                async for report in reports:
                    match report.kind:
                        case "begun":
                            begun.add(report.key)
                        case "failed":
                            begun.discard(report.key)
                            unit.fail([report.key], report.text)
                        case "outcome":
                            self._add(unit, report)
                            worker.num_answers += 1
        except _WorkerLostError as lost:
            unit.fail(begun & unit.missing, f"the worker on {worker.place} was lost: {lost}")
            raise

    def _add(self, unit: Unit, report: Report) -> None:
        if report.timeline is not None and self._keep_timeline is not None:
            self._keep_timeline(Timeline.from_json(report.timeline))
        self._num_failed_in_a_row = 0
        self._results.put_nowait(unit.complete(Outcome.from_json(report.text)))

    def _settle(self, unit: Unit) -> None:
        """Put a unit back that lacks answers, or give up what it lacks."""
        if unit.missing and unit.num_tries <= self._retries:
            self._waiting.append(unit)
            return
        if unit.missing:
            self._num_failed_in_a_row += 1
            for key in sorted(unit.missing):
                reasons = unit.failed_tries.get(key, [unit.reason])
                self._results.put_nowait(Failure(key, EngineError(reasons[-1]), tuple(reasons)))
            if self._num_failed_in_a_row >= MAX_FAILURES_IN_A_ROW:
                self._results.put_nowait(EngineError(unit.reason))
        self._num_open -= 1
        if self._num_open == 0:
            self._results.put_nowait(None)


# Workers -------------------------------------------------------------------------------------


class _WorkerLostError(Exception):
    """A worker cannot go on; the message says why."""


class _Worker:
    """A ClusterWorker as an actor of Ray's."""

    def __init__(self, place: Place, actor: Any) -> None:
        self.place = place
        self.num_answers = 0
        self._actor = actor

    async def describe(self, notify: Notify) -> Description:
        """Wait until there is room for it, and return what it will work with."""
        describing = asyncio.ensure_future(_result(self._actor.describe.remote()))
        try:
            while not (await asyncio.wait({describing}, timeout=_WAITING_SECONDS))[0]:
                amount = f"{self.place.num_cpus:g} CPUs and {self.place.num_gpus:g} GPUs"
                notify(f"The worker on {self.place} waits for {amount} to be free.")
        finally:
            describing.cancel()
        with _losses():
            described: Description = describing.result()
        return described

    async def start(self) -> None:
        """Have it load its models.

        Raises:
            EngineError: it cannot.
        """
        with _losses():
            await self._actor.start.remote()

    async def solve(self, unit: Unit) -> AsyncGenerator[Report]:
        """Yield what becomes of a unit's missing answers."""
        done = sorted(unit.done)
        reports = self._actor.solve.options(num_returns="streaming").remote(unit.problems, done)
        with _losses(engine_dies=True):
            async for report in reports:
                yield await report


@asynccontextmanager
async def _worker(place: Place, assignment: Assignment) -> AsyncIterator[_Worker]:
    """Make an actor that runs at a place and nowhere else; leaving ends it, and whatever it started."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor_class: Any = ray.remote(ClusterWorker)
    actor = actor_class.options(
        num_cpus=place.num_cpus,
        num_gpus=place.num_gpus,
        max_restarts=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False),
    ).remote(replace(assignment, part=place.part))
    try:
        yield _Worker(place, actor)
    finally:
        # One that was lost has nothing left to close.
        with suppress(Exception):
            await asyncio.wait_for(_result(actor.close.remote()), _CLOSE_SECONDS)
        ray.kill(actor)


async def _result(reference: Any) -> Any:
    return await reference


@contextmanager
def _losses(*, engine_dies: bool = False) -> Iterator[None]:
    """Turn what Ray raises into our own: a lost worker, or the EngineError that the worker raised.

    ``engine_dies``: an EngineError means that the worker is of no more use, and counts as its loss.
    """
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        if not isinstance(error.cause, EngineError):
            raise
        raise (_WorkerLostError if engine_dies else EngineError)(str(error.cause)) from None
    except RayError as error:
        raise _WorkerLostError(_in_one_line(error)) from None


def _in_one_line(error: Exception) -> str:
    """Return the telling part of Ray's paragraphs about an actor that died."""
    text = " ".join(str(error).split())
    _, found, detail = text.partition("exit detail: ")
    return (detail if found else text)[:_REASON_LENGTH]
