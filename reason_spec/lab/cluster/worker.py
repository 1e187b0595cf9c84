"""The work of one machine of a cluster: an accelerator that answers the problems it is given.

Nothing here imports Ray, which makes an actor of `ClusterWorker`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import asdict, dataclass
from typing import Any

import reason_spec
from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.cores import available_cores
from reason_spec.engines.weights import digest_weights
from reason_spec.errors import EngineError, ReasonSpecError
from reason_spec.evaluation.batch import Failure
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import Retries, run
from reason_spec.evaluation.timeline import Timeline
from reason_spec.events import Recorder
from reason_spec.settings import Settings
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem


@dataclass(frozen=True, slots=True)
class MachineShare:
    """Which part of a machine's cores a worker takes: number ``index`` of equal shares."""

    index: int = 0
    num_shares: int = 1

    def of(self, cores: Sequence[int]) -> tuple[int, ...]:
        """Return the cores of this share; shares overlap where there are fewer cores than shares."""
        first, end = (len(cores) * number // self.num_shares for number in (self.index, self.index + 1))
        return tuple(cores[first:end]) or (cores[self.index % len(cores)],)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The options of a worker.

    ``settings`` is the resolved tree as JSON values; names of files in it are relative to ``folder``, where
    the driver runs. ``retries`` counts further tries of an answer that fails while the engines live.
    """

    settings: dict[str, Any]
    strategies: tuple[str, ...]
    samples: int
    concurrency: int
    order_seed: int
    session: str
    folder: str
    retries: int = 0
    with_timelines: bool = False
    share: MachineShare = MachineShare()


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """The properties that the driver compares: workers of one run need equal versions and weights."""

    process: int
    cores: tuple[int, ...]
    version: str
    weights: dict[str, str | None]


class ClusterWorker:
    """An accelerator and a grader in a process of their own.

    Raises only EngineErrors with one text, which Ray can carry to any Python.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._settings = Settings.model_validate(assignment.settings)
        self._accelerator: Accelerator | None = None
        self._grader = Grader()
        self._open = ExitStack()

    async def describe(self) -> WorkerDescription:
        """Restrict the process to this worker's cores and describe it; nothing is loaded yet.

        Raises:
            EngineError: a model file cannot be read.
        """
        with suppress(OSError):
            os.chdir(self._assignment.folder)
        cores = self._assignment.share.of(available_cores())
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        try:
            weights = await asyncio.to_thread(digest_weights, self._settings)
        except ReasonSpecError as error:
            raise EngineError(str(error)) from None
        return WorkerDescription(os.getpid(), cores, reason_spec.__version__, asdict(weights))

    async def start(self) -> None:
        """Load the models.

        Raises:
            EngineError: one of them could not start, or the settings do not fit this machine.
        """
        strategies = self._assignment.strategies
        try:
            self._accelerator = Accelerator.from_settings(self._settings, strategies=strategies)
            await self._accelerator.start()
            if len(strategies) > 1:
                await self._accelerator.calibrate()
            self._open.enter_context(self._grader)
        except ReasonSpecError as error:
            await self.close()
            raise EngineError(str(error)) from None

    async def solve(
        self, problems: Sequence[Problem], done: Sequence[UnitKey] = ()
    ) -> AsyncGenerator[tuple[Outcome | Failure, Timeline | None]]:
        """Yield each answer to these problems that is not ``done``, with its timeline where one is wanted.

        Raises:
            EngineError: an engine died, or several problems in a row failed.
        """
        assert self._accelerator is not None, "solve was called before start"
        assignment = self._assignment
        timelines: dict[UnitKey, Timeline] = {}

        def keep_timeline(key: UnitKey, recorder: Recorder) -> None:
            if assignment.with_timelines:
                timelines[key] = Timeline.of(key, recorder)

        results = run(
            self._accelerator,
            problems,
            assignment.strategies,
            samples=assignment.samples,
            concurrency=assignment.concurrency,
            order_seed=assignment.order_seed,
            done=frozenset(done),
            grader=self._grader,
            session=assignment.session,
            on_answer=keep_timeline,
            retries=Retries(assignment.retries),
        )
        try:
            async with aclosing(results):
                async for result in results:
                    if isinstance(result, Failure):
                        self._check_engines()
                    yield result, timelines.pop(result.key, None)
        except ReasonSpecError as error:
            raise EngineError(str(error)) from None

    def _check_engines(self) -> None:
        """Raise an EngineError where an engine died: another worker can still write this answer."""
        assert self._accelerator is not None
        for engine in (self._accelerator.target, self._accelerator.draft):
            if engine is not None and engine.failure is not None:
                raise EngineError(engine.failure)

    async def close(self) -> None:
        """Cancel the work under way and free the models; may be called twice."""
        accelerator, self._accelerator = self._accelerator, None
        if accelerator is not None:
            await accelerator.close()
        self._open.close()
