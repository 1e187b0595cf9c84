"""Gives problems to the workers of a cluster and collects each answer once, also where workers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeAlias

import reason_spec
from reason_spec.errors import DataError, EngineError
from reason_spec.evaluation.batch import Failure
from reason_spec.evaluation.job import KeepTimeline
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import MAX_FAILURES_IN_A_ROW
from reason_spec.evaluation.timeline import Timeline
from reason_spec.lab.cluster.worker import Assignment, ClusterWorker, MachineShare, WorkerDescription
from reason_spec.types import Problem

MAX_LOSSES_IN_A_ROW = 6
"""A slot that loses this many workers without an answer in between is given up."""
_CLOSE_SECONDS = 20.0
_WAITING_SECONDS = 60.0
_REASON_LENGTH = 200

Notify: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Slot:
    """A share of a machine that runs one worker at a time; ``node`` is Ray's name of the machine."""

    node: str
    machine: str
    share: MachineShare
    num_cpus: float
    num_gpus: float

    def __str__(self) -> str:
        part = f", part {self.share.index}" if self.share.num_shares > 1 else ""
        return self.machine + part


@dataclass(slots=True)
class Unit:
    """Problems that one worker answers together.

    ``index`` is the place of each problem in the run. ``losses`` says why earlier workers were lost.
    """

    problems: tuple[Problem, ...]
    index: dict[str, int]
    missing: set[UnitKey]
    done: set[UnitKey]
    losses: list[str] = field(default_factory=list)

    def complete(self, result: Outcome | Failure) -> Outcome | Failure:
        """Take an answer off the missing ones; return it with its place and the losses before it."""
        self.missing.remove(result.key)
        self.done.add(result.key)
        result = replace(result, failed_tries=(*self.losses, *result.failed_tries))
        return replace(result, index=self.index[result.id]) if isinstance(result, Outcome) else result


def units_of(
    problems: Sequence[Problem],
    strategies: Sequence[str],
    samples: int,
    concurrency: int,
    done: Collection[UnitKey],
) -> Iterator[Unit]:
    """Yield the missing answers in units of as many whole problems as make ``concurrency`` answers."""
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
    """Keeps a worker alive in each slot and gives it units.

    One task for each slot puts results into a queue that ``run`` empties; all of them share one event loop.

    Args:
        weights: digests of this machine's model files by role, None where it has none; workers must agree.
        retries: how often a unit is tried again after the loss of its worker.
        keep_timeline: called with an answer's timeline before the answer is yielded; None: there are none.
        notify: called with a sentence about workers that are ready or lost.
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
        self._units: asyncio.Queue[Unit] = asyncio.Queue()
        for unit in units:
            self._units.put_nowait(unit)
        self._num_open = len(units)
        self._assignment = assignment
        self._weights = dict(weights)
        self._retries = retries
        self._keep_timeline = keep_timeline
        self._notify = notify
        self._results: asyncio.Queue[Outcome | Failure | Exception | None] = asyncio.Queue()
        self._num_given_up = 0
        self._num_slots = 0

    async def run(self, slots: Sequence[Slot]) -> AsyncGenerator[Outcome | Failure]:
        """Yield results until every unit is answered or given up; closing the generator ends the workers.

        Raises:
            DataError: a worker has another version of the package, or other weights.
            EngineError: no slot has a worker any more, or several units in a row were given up.
        """
        self._num_slots = len(slots)
        tasks = [asyncio.create_task(self._keep_busy(slot)) for slot in slots]
        try:
            while (result := await self._results.get()) is not None:
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_busy(self, slot: Slot) -> None:
        """Keep a worker alive in a slot until that is impossible, and report the reason to ``run``."""
        num_losses = 0
        error: Exception | None = None
        while error is None:
            async with _worker(slot, self._assignment) as worker:
                try:
                    await self._begin(worker)
                    while True:
                        await self._answer(worker, await self._take())
                except _WorkerLostError as lost:
                    num_losses = 1 if worker.num_answers else num_losses + 1
                    self._notify(f"The worker on {slot} was lost: {lost}")
                    if num_losses == MAX_LOSSES_IN_A_ROW:
                        error = EngineError(f"{num_losses} workers in a row were lost on {slot}: {lost}")
                except Exception as failure:
                    error = failure
        self._num_slots -= 1
        self._notify(f"{slot} is given up: {error}")
        if self._num_slots == 0 or not isinstance(error, EngineError):
            self._results.put_nowait(error)

    async def _take(self) -> Unit:
        return await self._units.get()

    async def _begin(self, worker: _Worker) -> None:
        """Start a worker, unless its answers would be those of another run."""
        described = await worker.describe(self._notify)
        if described.version != reason_spec.__version__:
            raise DataError(
                f"{worker.slot} has reason-spec {described.version}, and here it is "
                f"{reason_spec.__version__}; install the same version on every machine"
            )
        for role, digest in described.weights.items():
            known = self._weights.get(role) or digest
            if digest is not None and digest != known:
                raise DataError(
                    f"{worker.slot} has other weights of the {role}: sha256 {digest[:12]}..., and elsewhere "
                    f"it is {str(known)[:12]}...; copy the same files to every machine"
                )
            self._weights[role] = known
        await worker.start()
        cores = ", ".join(map(str, described.cores))
        self._notify(f"A worker is ready on {worker.slot} (process {described.process}, cores {cores}).")

    async def _answer(self, worker: _Worker, unit: Unit) -> None:
        """Have a unit answered; on a loss put it back, or give up its missing answers."""
        try:
            async with aclosing(worker.solve(unit)) as results:
                async for result, timeline in results:
                    if timeline is not None and self._keep_timeline is not None:
                        self._keep_timeline(timeline)
                    worker.num_answers += 1
                    self._results.put_nowait(unit.complete(result))
            assert not unit.missing, unit.missing
            self._num_given_up = 0
        except _WorkerLostError as lost:
            # It may be lost after its last answer, which closes the unit.
            if unit.missing:
                unit.losses.append(f"the worker on {worker.slot} was lost: {lost}")
                if len(unit.losses) <= self._retries:
                    self._units.put_nowait(unit)
                else:
                    self._give_up(unit)
            raise
        finally:
            if not unit.missing:
                self._close_unit()

    def _give_up(self, unit: Unit) -> None:
        for key in sorted(unit.missing):
            self._results.put_nowait(Failure(key, EngineError(unit.losses[-1]), tuple(unit.losses)))
        unit.missing.clear()
        self._num_given_up += 1
        if self._num_given_up >= MAX_FAILURES_IN_A_ROW:
            self._results.put_nowait(EngineError(unit.losses[-1]))

    def _close_unit(self) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            self._results.put_nowait(None)


# Workers -------------------------------------------------------------------------------------


class _WorkerLostError(Exception):
    """A worker cannot continue; the message says why."""


class _Worker:
    """A ClusterWorker as an actor of Ray."""

    def __init__(self, slot: Slot, actor: Any) -> None:
        self.slot = slot
        self.num_answers = 0
        self._actor = actor

    async def describe(self, notify: Notify) -> WorkerDescription:
        """Wait until Ray has room for the worker, and return its description."""
        describing = asyncio.ensure_future(_result(self._actor.describe.remote()))
        try:
            while not (await asyncio.wait({describing}, timeout=_WAITING_SECONDS))[0]:
                amount = f"{self.slot.num_cpus:g} CPUs and {self.slot.num_gpus:g} GPUs"
                notify(f"The worker on {self.slot} waits for {amount} to be free.")
        finally:
            describing.cancel()
        with _ray_errors(EngineError):
            described: WorkerDescription = describing.result()
        return described

    async def start(self) -> None:
        """Load the models.

        Raises:
            EngineError: they cannot be loaded.
        """
        with _ray_errors(EngineError):
            await self._actor.start.remote()

    async def solve(self, unit: Unit) -> AsyncGenerator[tuple[Outcome | Failure, Timeline | None]]:
        """Yield the missing answers of a unit; an EngineError of the worker counts as its loss."""
        results = self._actor.solve.options(num_returns="streaming").remote(unit.problems, sorted(unit.done))
        with _ray_errors(_WorkerLostError):
            async for result in results:
                yield await result


@asynccontextmanager
async def _worker(slot: Slot, assignment: Assignment) -> AsyncIterator[_Worker]:
    """Make an actor in a slot; on exit it ends, with everything that it started."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor_class: Any = ray.remote(ClusterWorker)
    actor = actor_class.options(
        num_cpus=slot.num_cpus,
        num_gpus=slot.num_gpus,
        max_restarts=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=False),
    ).remote(replace(assignment, share=slot.share))
    try:
        yield _Worker(slot, actor)
    finally:
        # A lost actor has nothing left to close.
        with suppress(Exception):
            await asyncio.wait_for(_result(actor.close.remote()), _CLOSE_SECONDS)
        ray.kill(actor)


async def _result(reference: Any) -> Any:
    return await reference


@contextmanager
def _ray_errors(engine_error: type[Exception]) -> Iterator[None]:
    """Raise a lost worker as a _WorkerLostError, and an EngineError of the worker as ``engine_error``."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        if not isinstance(error.cause, EngineError):
            raise
        raise engine_error(str(error.cause)) from None
    except RayError as error:
        # Ray explains a dead actor in paragraphs, the cause after "exit detail".
        text = " ".join(str(error).split())
        _, found, detail = text.partition("exit detail: ")
        raise _WorkerLostError((detail if found else text)[:_REASON_LENGTH]) from None
