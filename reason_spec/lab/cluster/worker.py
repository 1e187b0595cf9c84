"""What a machine of a cluster does for an evaluation: it has an accelerator and solves what it is handed.

Nothing here knows of Ray, which makes an actor of `ClusterWorker` and carries what it is told and says.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import reason_spec
from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.cores import available_cores
from reason_spec.engines.weights import digest_weights
from reason_spec.errors import EngineError, ReasonSpecError
from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.run import Failure, run
from reason_spec.evaluation.timeline import Mark, Timeline
from reason_spec.events import Event
from reason_spec.settings import Settings
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of its machine a worker takes: the one at ``index`` of so many equal ones."""

    index: int = 0
    num_parts: int = 1

    def of(self, cores: Sequence[int]) -> tuple[int, ...]:
        """Return this part's cores; parts share cores where there are fewer cores than parts."""
        first, end = (len(cores) * number // self.num_parts for number in (self.index, self.index + 1))
        return tuple(cores[first:end]) or (cores[self.index % len(cores)],)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is made for. ``settings`` is the resolved tree as JSON values, ``folder`` where the
    driver runs: names of files in the settings are relative to it."""

    settings: dict[str, Any]
    strategies: tuple[str, ...]
    samples: int
    concurrency: int
    order_seed: int
    session: str
    part: Part
    folder: str
    with_timelines: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """What a worker works with, for the driver to compare: equal runs need equal versions and weights."""

    process: int
    cores: tuple[int, ...]
    version: str
    weights: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Report:
    """One thing that happened to one answer.

    ``text`` of ``outcome`` is the outcome's line and ``timeline`` its timeline's, as they are stored;
    ``text`` of ``failed`` is the reason.
    """

    kind: Literal["begun", "outcome", "failed"]
    key: UnitKey
    text: str = ""
    timeline: str | None = None


class ClusterWorker:
    """An accelerator and a grader in a process of their own.

    Everything it raises is an EngineError with one text, which any Python can carry.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._settings = Settings.model_validate(assignment.settings)
        self._accelerator: Accelerator | None = None
        self._grader = Grader()
        self._open = ExitStack()

    async def describe(self) -> Description:
        """Keep to this worker's cores, and tell what it will work with; nothing is loaded yet.

        Raises:
            EngineError: a model file cannot be read.
        """
        with suppress(OSError):
            os.chdir(self._assignment.folder)
        cores = _keep_to(self._assignment.part)
        try:
            weights = await asyncio.to_thread(digest_weights, self._settings)
        except ReasonSpecError as error:
            raise EngineError(str(error)) from None
        return Description(os.getpid(), cores, reason_spec.__version__, asdict(weights))

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
    ) -> AsyncGenerator[Report]:
        """Report each answer to these problems that is not ``done``: begun, then its outcome or its failure.

        Raises:
            EngineError: an engine died; this worker is of no more use.
        """
        assert self._accelerator is not None, "solve was called before start"
        reports: asyncio.Queue[Report | None] = asyncio.Queue()
        solving = asyncio.create_task(self._solve(self._accelerator, problems, done, reports))
        solving.add_done_callback(lambda _: reports.put_nowait(None))
        try:
            while (report := await reports.get()) is not None:
                yield report
        finally:
            solving.cancel()
            await asyncio.wait({solving})
        if not solving.cancelled():
            solving.result()

    async def _solve(
        self,
        accelerator: Accelerator,
        problems: Sequence[Problem],
        done: Sequence[UnitKey],
        reports: asyncio.Queue[Report | None],
    ) -> None:
        marks: defaultdict[UnitKey, list[Mark]] = defaultdict(list)

        def listen(key: UnitKey, event: Event) -> None:
            if key not in marks:
                reports.put_nowait(Report("begun", key))
            marks[key].append(Mark.of(event))

        assignment = self._assignment
        results = run(
            accelerator,
            problems,
            assignment.strategies,
            samples=assignment.samples,
            concurrency=assignment.concurrency,
            order_seed=assignment.order_seed,
            done=frozenset(done),
            grader=self._grader,
            calibrate=False,
            session=assignment.session,
            listener=listen,
        )
        try:
            async with aclosing(results):
                async for result in results:
                    key = result.key
                    if isinstance(result, Failure):
                        reports.put_nowait(Report("failed", key, str(result.error)))
                        continue
                    line = Timeline(key, tuple(marks[key])).to_json() if assignment.with_timelines else None
                    reports.put_nowait(Report("outcome", key, result.to_json(), line))
        except ReasonSpecError as error:
            # Several failures in a row. The driver counts too, and sees all machines.
            logger.warning("%s", error)
        self._check_engines(accelerator)

    def _check_engines(self, accelerator: Accelerator) -> None:
        for engine in (accelerator.target, accelerator.draft):
            if engine is not None and engine.failure is not None:
                raise EngineError(engine.failure)

    async def close(self) -> None:
        """Cancel what is under way and free the models; may be called twice."""
        accelerator, self._accelerator = self._accelerator, None
        if accelerator is not None:
            await accelerator.close()
        self._open.close()


def _keep_to(part: Part) -> tuple[int, ...]:
    """Keep this thread and all that it starts to a part of the machine's cores; return them."""
    cores = part.of(available_cores())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    return cores
