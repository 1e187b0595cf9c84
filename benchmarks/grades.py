"""Grading many problems at once: slow, but no other work on the machine disturbs it.

A file keeps the grades, so that a stopped run goes on where it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from arms import Ours, Run
from models import Task

from reason_spec.errors import DataError
from reason_spec.evaluation.records import RecordFile, read_records
from reason_spec.settings import Settings

PATIENCE = 600.0
"""Deadline of a verdict where only the text counts."""


@dataclass(frozen=True, slots=True)
class Graded:
    """One row on one problem: was it right, and what did the target have to do for it?"""

    right: bool
    num_tokens: int
    target_tokens: int
    scored_tokens: int
    passes: int
    prefilled_tokens: int

    @classmethod
    def of(cls, run: Run) -> Graded:
        assert run.solution is not None
        usage = run.solution.recorder.target_usage
        return cls(
            run.right,
            run.num_tokens,
            usage.num_generated_tokens,
            usage.num_scored_tokens,
            usage.num_passes,
            usage.num_prefilled_tokens,
        )


class Grades:
    """Grades by row and number of the problem, stored in a file if one is given.

    Raises:
        DataError: the file cannot be read or written, or a line of it is damaged.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = None
        self._known: dict[str, dict[int, Graded]] = {}
        if file is not None:
            self._file = RecordFile(file, "Name another file with --grades.")
            for _, (key, problem, graded) in read_records(file, _grade_of, DataError, "Remove the file."):
                self._known.setdefault(key, {})[problem] = graded

    @staticmethod
    def key(settings: Settings, problems: int | str) -> str:
        """Return a key of problems (their seed, name or hash) and all settings that affect a row's text."""
        key = json.dumps([settings.model_dump(mode="json", exclude_defaults=True), problems], sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    def add(self, key: str, problem: int, graded: Graded) -> None:
        self._known.setdefault(key, {})[problem] = graded
        if self._file is not None:
            self._file.append(json.dumps({"key": key, "problem": problem, "graded": asdict(graded)}))

    def of(self, key: str) -> dict[int, Graded]:
        return self._known.get(key, {})


def _grade_of(line: str) -> tuple[str, int, Graded]:
    record = json.loads(line)
    return record["key"], record["problem"], Graded(**record["graded"])


async def solve_many(
    ours: Ours,
    settings: Settings,
    chosen: Sequence[tuple[int, Task]],
    at_once: int,
    done: Callable[[int, Run], None],
) -> None:
    """Solve numbered problems, ``at_once`` at a time, and call ``done`` for each."""
    await ours.prepare(settings)
    places = asyncio.Semaphore(at_once)
    num_done = 0

    async def solve(index: int, problem: Task) -> None:
        nonlocal num_done
        async with places:
            done(index, await ours.solve(settings, problem, index))
        num_done += 1
        sys.stderr.write(f"\r{settings.strategy.name}: {num_done} of {len(chosen)} problems graded")

    await asyncio.gather(*(solve(index, problem) for index, problem in chosen))
    if chosen:
        sys.stderr.write("\n")


async def grade(
    ours: Ours, settings: Settings, chosen: Sequence[Task], at_once: int, grades: Grades, key: str
) -> dict[int, Graded]:
    """Grade what was not graded under ``key`` yet, and return the problems' grades by number."""
    # With many problems at once verdicts wait for each other: what counts here is what they say.
    patient = settings.verifier.model_copy(update={"deadline": PATIENCE})
    settings = settings.model_copy(update={"verifier": patient})
    left = [(i, problem) for i, problem in enumerate(chosen) if i not in grades.of(key)]
    await solve_many(ours, settings, left, at_once, lambda i, run: grades.add(key, i, Graded.of(run)))
    return {i: grades.of(key)[i] for i in range(len(chosen))}
