"""Folders of runs that scripted models wrote, with their timelines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reason_spec.evaluation.outcome import Outcome, outcome_from
from reason_spec.evaluation.store import Identity, RunFolder
from reason_spec.evaluation.timeline import TIMELINES, Timeline
from reason_spec.tasks.grading import Grader
from tests.evaluation.problems import Sum, make_accelerator

STRATEGIES = ("autoregressive", "lookahead")


def write_run(
    folder: Path,
    count: int = 6,
    strategies: Sequence[str] = STRATEGIES,
    *,
    timelines: bool = True,
    flags: Mapping[str, Any] | None = None,
) -> tuple[Outcome, ...]:
    """Solve sums with each strategy into a folder."""
    # On a thread of its own: a browser that is driven from this one has its event loop here.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _write(folder, count, strategies, timelines, flags or {})).result()


async def _write(
    folder: Path, count: int, strategies: Sequence[str], timelines: bool, flags: Mapping[str, Any]
) -> tuple[Outcome, ...]:
    problems = [Sum(number).problem() for number in range(count)]
    written = []
    async with make_accelerator(count, flags) as accelerator:
        settings = accelerator.settings
        with (
            RunFolder(folder, Identity.of(settings, problems, 1), problems) as run,
            Grader(deadline_seconds=60) as grader,
        ):
            run.begin_session("first", strategies, {})
            for index, problem in enumerate(problems):
                for strategy in strategies:
                    solution = await accelerator.answer(problem.question, strategy=strategy)
                    outcome = outcome_from(problem, 0, solution, settings, index=index, session="first")
                    assert problem.answer is not None
                    outcome = outcome.graded(grader.grade(outcome.response, problem.answer, problem.task))
                    if timelines:
                        with (folder / TIMELINES).open("a", encoding="utf-8") as file:
                            file.write(Timeline.of(outcome.key, solution.recorder).to_json() + "\n")
                    run.append(outcome)
                    written.append(outcome)
    return tuple(written)
