"""Answers of workers that are lost: each comes once, and a run waits for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

import reason_spec
from reason_spec.errors import EngineError
from reason_spec.evaluation.batch import Failure
from reason_spec.lab.cluster import driver
from reason_spec.lab.cluster.driver import Driver, Notify, Slot, Unit, units_of
from reason_spec.lab.cluster.worker import Assignment, MachineShare, WorkerDescription
from reason_spec.types import Problem


class WorkerLostAtTheEnd:
    """Answers slow problems later; is lost after its last answer to a quick one."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.num_answers = 0

    async def describe(self, notify: Notify) -> WorkerDescription:
        return WorkerDescription(0, (0,), reason_spec.__version__, {})

    async def start(self) -> None: ...

    async def solve(self, unit: Unit) -> AsyncGenerator[tuple[Failure, None]]:
        is_slow = unit.problems[0].id == "slow"
        await asyncio.sleep(0.05 * is_slow)
        for key in sorted(unit.missing):
            yield Failure(key, EngineError("no answer")), None
        if not is_slow:
            raise driver._WorkerLostError("the machine is gone")


async def test_a_worker_lost_after_its_last_answer_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def worker(slot: Slot, assignment: Assignment) -> AsyncIterator[WorkerLostAtTheEnd]:
        yield WorkerLostAtTheEnd(slot)

    monkeypatch.setattr(driver, "_worker", worker)
    problems = [Problem("quick", "?", "1"), Problem("slow", "?", "1")]
    units = list(units_of(problems, ("autoregressive",), 1, 1, ()))
    assignment = Assignment({}, ("autoregressive",), 1, 1, 0, "one", ".")
    run = Driver(units, assignment, {}, 2, None, lambda _: None)
    slots = [Slot(str(number), "here", MachineShare(number, 2), 1.0, 0.0) for number in range(2)]
    results = [result async for result in run.run(slots)]
    assert sorted(result.key.problem_id for result in results if isinstance(result, Failure)) == [
        "quick",
        "slow",
    ]
