"""Chooses the settings of a pair of models: measures candidates on the same engines.

The models are loaded once. For each problem the remaining candidates and the target alone answer in a
shuffled order, each with empty caches, and every answer is stored as soon as it is graded. `candidates`
generates the candidates, `halving` chooses among them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from reason_spec.accelerator import Accelerator, Generator
from reason_spec.accelerator.engine_drafter import only_drafts_tokens
from reason_spec.accelerator.load import measure_planners, with_new_planners
from reason_spec.control.controller import SpeculationController
from reason_spec.errors import DataError, EngineError, SettingsError
from reason_spec.evaluation.batch import Failure, WorkItem, answer_batch
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.job import RunOptions, start_engines
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.run import (
    MAX_FAILURES_IN_A_ROW,
    graded,
    new_session,
)
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.store import Identity
from reason_spec.evaluation.view import RunView
from reason_spec.lab.pictures import require_matplotlib
from reason_spec.lab.tuning import report
from reason_spec.lab.tuning.calibration import LossTest
from reason_spec.lab.tuning.candidates import CandidateSettings, Grid, SearchSpace, make_search_space
from reason_spec.lab.tuning.halving import (
    BASELINE_KEY,
    MIN_PROBLEMS,
    Answer,
    Answers,
    Candidate,
    CandidateResult,
    SearchPlan,
    choose,
    compare_with_target,
    make_plan,
)
from reason_spec.lab.tuning.store import TuneFolder
from reason_spec.settings import Settings
from reason_spec.strategies.factory import strategy_class, strategy_names
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Options of a search; ``output`` defaults to a file in the run's folder, ``run.output``."""

    test: LossTest
    grid: Grid
    run: RunOptions
    halving: int = 3
    seconds: float | None = None
    output: Path | None = None
    png: Path | None = None


class SearchProgress(Protocol):
    """Follows a search."""

    def begin(self, stage: str, num_candidates: int, num_problems: int) -> None:
        """Begin a stage of the search."""

    def count(self) -> None:
        """Count an answer, a new one or one of an earlier start."""

    @property
    def is_due(self) -> bool:
        """Whether ``show`` should be called now."""

    def show(self, leader: CandidateResult) -> None:
        """Name the fastest candidate so far."""

    def paused(self) -> AbstractContextManager[None]:
        """Make room for something else that draws in place."""


class SearchView(RunView, Protocol):
    """Shows a search; the command line implements it."""

    def searching(self, total: int) -> AbstractContextManager[SearchProgress]:
        """Show the progress of a search of at most ``total`` answers."""


async def tune(settings: Settings, sources: Sources, options: TuneOptions, view: SearchView) -> report.Tuning:
    """Choose a candidate, and write its settings and the numbers of the search.

    Args:
        settings: the models, and all values that are not searched.

    Raises:
        DataError: there are too few problems with known answers, or a file cannot be written.
        MissingDependencyError: a picture is wanted, and matplotlib is missing.
        ResumeError: the folder holds another search.
        SettingsError: there is nothing to choose from.
    """
    problems = tuple(problem for problem in sources.problems if problem.answer is not None)
    if options.png is not None:
        require_matplotlib("the picture of speed against loss (--png)")
    for file in (options.output, options.png):
        _refuse_unwritable(file)
    if sources.num_without_answer:
        view.warn(f"left out: {sources.num_without_answer} problems without a reference answer")
    accelerator = _make_accelerator(settings, options.grid.strategies)
    space = make_search_space(accelerator, options.grid)
    places = list(range(len(problems)))
    random.Random(f"tune {settings.sampling.seed}").shuffle(places)
    plan = make_plan(space.candidates, places, options.test, halving=options.halving, seconds=options.seconds)
    identity = _identity(settings, problems, space, plan, options)
    path = options.run.output or Path("runs") / f"{sources.name}-tuning-{_hash(identity)}"
    report.announce(space, plan, view)
    with TuneFolder(path, identity, fresh=options.run.fresh) as folder:
        with view.searching(_num_planned(space.candidates, plan)) as progress:
            bench = EngineBench(
                accelerator, space, problems, plan, folder, options.run.concurrency, view, progress
            )
            try:
                choice = await choose(space.candidates, plan, bench)
            except asyncio.CancelledError:
                view.say(f"The answers so far are kept in {path}; the same command continues the search.")
                raise
            finally:
                await bench.close()
        written = options.output or path / report.SETTINGS
        chosen = (
            space.baseline if choice.chosen is None else space.by_key[choice.chosen.candidate.key].settings
        )
        found = report.Tuning(choice, chosen, bench.drift, space.left_out, path, written, options.png)
        report.write(found)
    return found


class EngineBench:
    """Measures candidates on one pair of engines; stored answers are not generated again.

    Engines start when the first answer is missing.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        space: SearchSpace,
        problems: Sequence[Problem],
        plan: SearchPlan,
        folder: TuneFolder,
        concurrency: int,
        view: RunView,
        progress: SearchProgress,
    ) -> None:
        self._accelerator = accelerator
        baseline = Candidate(BASELINE_KEY, BASELINE, is_exact=True)
        alone = CandidateSettings(baseline, space.baseline)
        self._entries = {BASELINE_KEY: alone, **space.by_key}
        self._problems = problems
        self._plan = plan
        self._folder = folder
        self._concurrency = concurrency
        self._view = view
        self._progress = progress
        self._started = False
        self._session = new_session()
        self._generators: dict[str, Generator] = {}
        self._control = SpeculationController()
        self._used: dict[tuple[str, int], Answer] = {}
        self._num_failures_in_a_row = 0
        self._warned: set[str] = set()
        self._grader = Grader()

    @property
    def seconds_spent(self) -> float:
        return sum(answer.seconds or 0.0 for answer in self._used.values())

    @property
    def drift(self) -> float | None:
        """The relative slow-down of the target alone in the second half; None for few answers."""
        outcomes = self._folder.outcomes.items()
        pace = [
            outcome.seconds / outcome.tokens
            for (key, _), outcome in outcomes
            if key == BASELINE_KEY and outcome.tokens
        ]
        return report.drift_of(pace)

    async def close(self) -> None:
        self._grader.close()
        await self._accelerator.close()

    async def measure(
        self, stage: str, candidates: Sequence[Candidate], problems: Sequence[int], seconds: float | None
    ) -> Answers:
        """Have every candidate and the target alone answer the problems; see `halving.Bench`."""
        keys = [BASELINE_KEY, *(candidate.key for candidate in candidates)]
        size, spent_before = self._concurrency, self.seconds_spent
        measured: list[int] = []
        self._progress.begin(stage, len(candidates), len(problems))
        for start in range(0, len(problems), size):
            batch = problems[start : start + size]
            is_new = any((key, place) not in self._used for key in keys for place in batch)
            has_time = seconds is None or self.seconds_spent - spent_before < seconds
            if is_new and not has_time and len(measured) >= MIN_PROBLEMS:
                break
            # Seeded by the problem's name, so that a search that continues keeps the order of every problem.
            order = list(keys)
            random.Random(f"{self._seed}:{self._problems[batch[0]].id}").shuffle(order)
            for number, key in enumerate(order):
                await self._solve(key, batch, number)
            measured += batch
            if self._progress.is_due:
                answers, test = self._answers(keys, measured), self._plan.final_test
                results = [compare_with_target(candidate, answers, test) for candidate in candidates]
                self._progress.show(max(results, key=lambda item: item.speed))
        return self._answers(keys, measured)

    def _answers(self, keys: Sequence[str], places: Sequence[int]) -> Answers:
        return {key: {place: self._used[key, place] for place in places} for key in keys}

    @property
    def _seed(self) -> int:
        return self._entries[BASELINE_KEY].settings.sampling.seed

    async def _solve(self, key: str, batch: Sequence[int], order: int) -> None:
        """Use stored answers; let the candidate answer the other problems, all at once."""
        left = []
        for place in batch:
            stored = self._folder.answer(key, self._problems[place].id)
            if (key, place) in self._used:
                continue
            if stored is None:
                left.append(place)
            else:
                self._progress.count()
                self._used[key, place] = stored
        if not left:
            return
        entry = self._entries[key]
        await self._prepare(entry)
        results = await answer_batch(
            self._generator_of(entry),
            [WorkItem(self._problems[place], 0, place) for place in left],
            entry.settings,
            strategy=entry.settings.strategy.name,
            # Compared answers must not learn from each other.
            scope=lambda _: key,
            concurrency=self._concurrency,
            order=order,
            session=self._session,
            failing=(EngineError, SettingsError),
        )
        for place, result in zip(left, results, strict=True):
            if isinstance(result, Failure):
                self._fail(entry, place, result)
            else:
                await self._store(key, place, result)
            self._progress.count()

    async def _store(self, key: str, place: int, outcome: Outcome) -> None:
        outcome = await graded(outcome, self._problems[place], self._grader)
        self._folder.append(key, outcome)
        self._used[key, place] = Answer(outcome.seconds, outcome.correct is True)
        self._num_failures_in_a_row = 0

    def _fail(self, entry: CandidateSettings, place: int, failure: Failure) -> None:
        """Count a failed answer as one that is not right.

        Raises:
            EngineError: the engine is at fault, not the candidate.
        """
        if failure.blames_engine:
            self._num_failures_in_a_row += 1
            if self._num_failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                raise failure.error
        if entry.candidate.key not in self._warned:
            self._warned.add(entry.candidate.key)
            self._view.warn(f"{entry.candidate.name}, problem {failure.key.problem_id!r}: {failure.error}")
        self._used[entry.candidate.key, place] = Answer(None, False)

    async def _prepare(self, entry: CandidateSettings) -> None:
        """Prepare the engines for a candidate: its cores, its verifier and empty caches."""
        if not self._started:
            await self._start()
        await self._generator_of(entry).prepare()

    async def _start(self) -> None:
        planned = {
            entry.settings.strategy.name: entry for entry in self._entries.values() if _is_planned(entry)
        }
        first = next(iter(planned.values()), self._entries[BASELINE_KEY])
        accelerator = self._accelerator
        with self._progress.paused():
            await start_engines(accelerator, first.settings, self._view)
            if planned:
                verifiers = {
                    name: self._generator_of(entry).verifier_for(name) for name, entry in planned.items()
                }
                planners = await measure_planners(accelerator.bundle, first.settings.strategy, verifiers)
                self._control = replace(accelerator.generator.control, planners=planners)
                self._generators.clear()
            with self._view.status("Measuring on which cores the target is fastest alone"):
                await accelerator.calibrate()
        self._started = True

    def _generator_of(self, entry: CandidateSettings) -> Generator:
        """Return the generator of a candidate; its planner has only seen answers of this candidate."""
        key, settings = entry.candidate.key, entry.settings
        if key not in self._generators:
            generator = replace(self._accelerator.generator, settings=settings)
            if _is_planned(entry):
                control = with_new_planners(self._control, settings.strategy, generator.target)
                generator = replace(generator, control=control)
            self._generators[key] = generator
        return self._generators[key]


def _is_planned(entry: CandidateSettings) -> bool:
    strategy = entry.settings.strategy
    return strategy.planner and strategy_class(strategy.name).planned is not None


def _num_planned(candidates: Sequence[Candidate], plan: SearchPlan) -> int:
    """Return how many answers it takes if every rung keeps as many as it may."""
    left = sum(candidate.is_exact or plan.tests_loss for candidate in candidates)
    total, before = 0, 0
    for size in plan.rungs:
        total += (left + 1) * (size - before)
        before, left = size, max(plan.num_finalists, -(-left // plan.halving))
    return total + (min(left, plan.num_finalists) + 1) * len(plan.final)


def _make_accelerator(settings: Settings, strategies: Sequence[str]) -> Accelerator:
    names = strategies or strategy_names()
    with_draft = any(strategy_class(name).needs_draft for name in names) and not only_drafts_tokens(settings)
    # Strategies without a verifier: those of candidates are made with the candidates.
    return Accelerator.from_settings(
        settings, strategies=(BASELINE, "speculative") if with_draft else (BASELINE,)
    )


def _identity(
    settings: Settings,
    problems: Sequence[Problem],
    space: SearchSpace,
    plan: SearchPlan,
    options: TuneOptions,
) -> Mapping[str, Any]:
    """Return everything that must be equal for a search to resume."""
    identity = Identity.of(settings, problems, options.run.concurrency)
    return {
        "settings": identity.settings.hash,
        "weights": asdict(identity.weights),
        "prompt": identity.prompt,
        "concurrency": identity.concurrency,
        "problems": asdict(identity.problems),
        "candidates": {entry.candidate.key: entry.candidate.name for entry in space.by_key.values()},
        "loss": options.test.loss,
        "confidence": options.test.confidence,
        "halving": plan.halving,
        "budget": options.seconds,
    }


def _hash(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _refuse_unwritable(file: Path | None) -> None:
    """Refuse a file that could not be written, before anything is measured.

    Raises:
        DataError: its folder does not exist, or it is a folder itself.
    """
    if file is None:
        return
    if file.is_dir():
        raise DataError(f"{file} is a folder: name a file in it, such as {file / 'tuned.yaml'}")
    if not file.absolute().parent.is_dir():
        raise DataError(f"{file}: there is no folder {file.parent}; make it first")
