"""A job: the missing answers of a run folder are generated, stored and measured.

`solve`, `eval` and `tune verifier` are jobs. A stopped job continues from its folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from reason_spec.accelerator import Accelerator
from reason_spec.control.planner import Planner
from reason_spec.evaluation.batch import Failure, work_items
from reason_spec.evaluation.metrics import RunMetrics, measure
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.records import FRESH, RecordFile
from reason_spec.evaluation.rounding import Rounding, find_rounding
from reason_spec.evaluation.run import Retries, Revived, new_session, run
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.store import Identity, RunFolder
from reason_spec.evaluation.timeline import TIMELINES, Timeline
from reason_spec.evaluation.view import RunView, SilentView
from reason_spec.evaluation.voting import SampleVotes, StopRule
from reason_spec.settings import EngineSettings, Settings
from reason_spec.types import Problem
from reason_spec.verifiers.base import Verifier

MAX_BAD_LINES_SHOWN = 5
_PHASE_SECONDS = 0.5
_MAX_NAME_CHARACTERS = 40

KeepTimeline: TypeAlias = Callable[[Timeline], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run beside its settings; ``output`` None names a folder after the problems.

    ``stop_samples``: the certainty at which no more samples of a problem are drawn; None draws all. ``anew``
    says in messages how a user replaces stored answers.
    """

    strategies: tuple[str, ...] = ()
    samples: int = 1
    concurrency: int = 1
    output: Path | None = None
    fresh: bool = False
    num_retries: int = 0
    timelines: bool = False
    stop_samples: float | None = None
    anew: str = FRESH


@dataclass(frozen=True, slots=True)
class Job:
    """Answers that are wanted in a folder; stored ones are not generated again."""

    settings: Settings
    problems: Sequence[Problem]
    options: RunOptions
    folder: RunFolder
    view: RunView
    wanted: frozenset[UnitKey]
    stop_rule: StopRule | None = None

    def missing(self) -> frozenset[UnitKey]:
        """Return the wanted answers that are not stored, without those that a decided vote spares."""
        left = self.wanted - self.folder.outcomes.keys()
        votes = self.votes()
        return left if votes is None else frozenset(key for key in left if not votes.is_decided(key))

    def votes(self) -> SampleVotes | None:
        """Return the votes of the stored samples; None where all samples are drawn."""
        stored = self.folder.outcomes.values()
        return None if self.stop_rule is None else SampleVotes.of(self.stop_rule, stored)

    @property
    def unwanted(self) -> frozenset[UnitKey]:
        """Answers to leave out: the stored ones, and those that the job does not want."""
        items = work_items(self.problems, self.options.samples)
        possible = {item.key(name) for item in items for name in self.options.strategies}
        return frozenset((possible - self.wanted) | self.folder.outcomes.keys())


class Backend(Protocol):
    """Generates answers: on this machine, or on the workers of a cluster."""

    async def start(self, job: Job) -> None:
        """Start the backend, and begin a session of the job's folder."""

    def answers(self, job: Job, keep_timeline: KeepTimeline | None) -> AsyncGenerator[Outcome | Failure]:
        """Yield results as they come; an answer's timeline is handed to ``keep_timeline`` before it."""

    async def finish(self, job: Job) -> None:
        """Add measurements to the session, after the last answer."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run after one start of its command; ``num_missing`` counts wanted answers that are not stored."""

    path: Path
    metrics: RunMetrics
    failures: tuple[Failure, ...]
    num_missing: int
    order_seed: int
    rounding: Rounding | None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        return {
            "output": str(self.path),
            "complete": self.num_missing == 0,
            "num_missing": self.num_missing,
            "failures": [
                {**item.key._asdict(), "error": str(item.error), "failed_tries": list(item.failed_tries)}
                for item in self.failures
            ],
            "order_seed": self.order_seed,
            "rounding": None if self.rounding is None else self.rounding.to_dict(),
            **self.metrics.to_dict(),
        }


async def run_job(
    settings: Settings,
    sources: Sources,
    options: RunOptions,
    view: RunView,
    backend: Backend | None = None,
) -> RunResult:
    """Answer all problems into the output folder, measure, and write ``summary.json``.

    Args:
        backend: None generates on this machine.

    Raises:
        DataError: the output folder cannot be written.
        EngineError: an engine does not start, or answers keep failing.
        ResumeError: the folder belongs to another run.
        SettingsError: ``stop_samples`` is no certainty, or there is one sample.
    """
    stop_rule = None
    if options.stop_samples is not None:
        stop_rule = StopRule.checked(options.samples, options.stop_samples)
    _mention_omissions(sources, view)
    _mention_short_answers(settings, view)
    identity = Identity.of(settings, sources.problems, options.concurrency)
    path = options.output or Path("runs") / f"{sources.name}-{identity.hash}"
    items = work_items(sources.problems, options.samples)
    wanted = frozenset(item.key(name) for item in items for name in options.strategies)
    failures: list[Failure] = []
    with RunFolder(path, identity, sources.problems, fresh=options.fresh, anew=options.anew) as folder:
        job = Job(settings, sources.problems, options, folder, view, wanted, stop_rule)
        num_missing = len(job.missing())
        num_done = len(wanted) - num_missing
        if num_done:
            view.say(_already_there(num_done, len(wanted), path, options.anew))
        try:
            if num_missing:
                await solve_missing(job, backend or LocalBackend(), failures)
        finally:
            result = _result(job, failures)
            if folder.outcomes:
                folder.write_summary(result.to_dict())
            if folder.outcomes and result.num_missing > len(result.failures):
                command = "the same command without --fresh" if options.fresh else "the same command"
                view.say(f"{len(folder.outcomes)} answers are kept in {path}; {command} goes on from there.")
    return result


async def solve_missing(job: Job, backend: Backend, failures: list[Failure]) -> None:
    """Generate and store the wanted answers that the folder lacks; ``failures`` takes the others."""
    folder, options = job.folder, job.options
    done = [outcome for key, outcome in folder.outcomes.items() if key in job.wanted]
    timelines: dict[UnitKey, Timeline] = {}
    try:
        await backend.start(job)
        with ExitStack() as stack:
            file = stack.enter_context(RecordFile(folder.path / TIMELINES)) if options.timelines else None
            count = stack.enter_context(job.view.progress(_totals(job), done))

            def keep(timeline: Timeline) -> None:
                timelines[timeline.key] = timeline

            results = backend.answers(job, keep if options.timelines else None)
            async with aclosing(results):
                async for result in results:
                    if isinstance(result, Failure):
                        failures.append(result)
                        continue
                    # The timeline first: a kill between the two leaves no answer without one.
                    if file is not None:
                        file.append(timelines.pop(result.key).to_json())
                    folder.append(result)
                    count(result)
        await backend.finish(job)
    finally:
        await backend.close()


def _totals(job: Job) -> dict[tuple[str, str], int]:
    tasks = {problem.id: problem.task for problem in job.problems}
    totals: dict[tuple[str, str], int] = {}
    for item in work_items(job.problems, job.options.samples):
        for name in job.options.strategies:
            if (key := item.key(name)) in job.wanted:
                place = tasks[key.problem_id], name
                totals[place] = totals.get(place, 0) + 1
    return totals


def _result(job: Job, failures: Sequence[Failure]) -> RunResult:
    folder, seed = job.folder, job.settings.sampling.seed
    options = job.options
    noted = folder.latest("rounding")
    missing = job.missing()
    return RunResult(
        path=folder.path,
        metrics=measure(folder.outcomes.values(), options.strategies),
        # A failed sample that its vote did not need is no loss.
        failures=tuple(failure for failure in failures if failure.key in missing),
        num_missing=len(missing),
        order_seed=seed,
        rounding=Rounding.from_dict(noted) if noted else None,
    )


def _already_there(num_done: int, num_wanted: int, path: Path, anew: str) -> str:
    if num_done < num_wanted:
        return f"{num_done} of {num_wanted} answers are in {path} already; the rest is solved now."
    return f"All {num_wanted} answers are in {path} already: nothing is left to solve; {anew}."


def _mention_omissions(sources: Sources, view: RunView) -> None:
    for notice in sources.notices:
        view.say(notice)
    warn_of_bad_lines(sources.bad_lines, view)
    if sources.num_without_answer:
        view.say(
            f"{sources.num_without_answer} of {len(sources.problems)} problems have no reference answer; "
            "they are solved and not graded."
        )


def _mention_short_answers(settings: Settings, view: RunView) -> None:
    """Warn where answers may not be long enough for the thinking that is allowed."""
    thinking, max_tokens = settings.thinking, settings.sampling.max_tokens
    budget = thinking.token_budget
    if budget is None and thinking.effort is not None:
        budget = thinking.effort_tokens.get(thinking.effort)
    kept = min(thinking.answer_tokens, max_tokens // 2)
    if budget is not None and budget >= max_tokens - kept:
        view.warn(
            f"sampling.max_tokens = {max_tokens} ends answers before their thinking reaches its budget of "
            f"{budget} tokens, because {kept} are kept for the answer; raise --max-tokens"
        )


def warn_of_bad_lines(bad_lines: Sequence[str], view: RunView) -> None:
    """Name the first lines that were left out, and count the rest."""
    for bad in bad_lines[:MAX_BAD_LINES_SHOWN]:
        view.warn(f"left out: {bad}")
    if len(bad_lines) > MAX_BAD_LINES_SHOWN:
        view.warn(f"left out: {len(bad_lines) - MAX_BAD_LINES_SHOWN} more lines")


# This machine ----------------------------------------------------------------------------------


@dataclass(slots=True)
class LocalBackend:
    """Generates answers with an accelerator of this process.

    Args:
        accelerator: used instead of one of its own, under the settings of the job; started at the first
            ``start``, and left open by ``close``.
        verifier: used instead of that of the accelerator.
    """

    accelerator: Accelerator | None = None
    verifier: Verifier | None = None
    _owns: bool = field(init=False)
    _session: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._owns = self.accelerator is None

    async def start(self, job: Job) -> None:
        await self._start(job, job.view)

    async def _start(self, job: Job, view: RunView) -> Revived:
        strategies = job.options.strategies
        if self.accelerator is None:
            self.accelerator = Accelerator.from_settings(job.settings, strategies=strategies)
        if not self.accelerator.bundle.is_started:
            await start_engines(self.accelerator, job.settings, view)
        if len(strategies) > 1:
            with view.status("Measuring on which cores the target is fastest alone"):
                await self.accelerator.calibrate()
        self._session = new_session()
        job.folder.begin_session(self._session, strategies, session_details(self.accelerator, strategies))
        return Revived(self.accelerator, self._session)

    def answers(self, job: Job, keep_timeline: KeepTimeline | None) -> AsyncGenerator[Outcome | Failure]:
        assert self.accelerator is not None, "answers was called before start"
        options = job.options

        async def revive() -> Revived:
            job.view.warn("an engine died; it is started again")
            await self._close_own()
            # The progress is on the screen, and a terminal takes one live display at a time.
            return await self._start(job, SilentView())

        generator = self.accelerator.generator
        verifier = self.verifier or generator.verifier
        return run(
            self.accelerator if self._owns else replace(generator, settings=job.settings, verifier=verifier),
            job.problems,
            options.strategies,
            samples=options.samples,
            concurrency=options.concurrency,
            order_seed=job.settings.sampling.seed,
            done=job.unwanted,
            session=self._session,
            on_answer=None
            if keep_timeline is None
            else lambda key, recorder: keep_timeline(Timeline.of(key, recorder)),
            retries=Retries(options.num_retries, revive=revive if self._owns else None),
            votes=job.votes(),
        )

    async def finish(self, job: Job) -> None:
        """Store the costs of passes under load, and below float32 where exact answers differ by rounding."""
        assert self.accelerator is not None, "finish was called before start"
        planner = self.accelerator.planner
        details = {} if planner is None else {"costs_at_work": _costs(planner)}
        rounding = await find_rounding(self.accelerator, job.problems, job.folder.outcomes.values())
        job.folder.end_session(details if rounding is None else {**details, "rounding": rounding.to_dict()})

    async def close(self) -> None:
        if self._owns:
            await self._close_own()

    async def _close_own(self) -> None:
        accelerator, self.accelerator = self.accelerator, None
        if accelerator is not None:
            await accelerator.close()


async def start_engines(accelerator: Accelerator, settings: Settings, view: RunView) -> None:
    """Start the engines and show their phases: large models take minutes to load."""
    with view.status(_loading(settings, accelerator)) as show:
        started = time.monotonic()
        starting = asyncio.ensure_future(accelerator.start())
        try:
            while not (await asyncio.wait({starting}, timeout=_PHASE_SECONDS))[0]:
                engines = (accelerator.target, accelerator.draft)
                phases = [f"{engine.name} {engine.phase}" for engine in engines if engine and engine.phase]
                show("; ".join(phases), time.monotonic() - started)
        finally:
            # On an interrupt the engines are released before anything else ends.
            starting.cancel()
            await asyncio.wait({starting})
        starting.result()


def _loading(settings: Settings, accelerator: Accelerator) -> str:
    parts = [f"target {_model_name(settings.target)}"]
    if accelerator.draft is not None:
        parts.append(f"draft {_model_name(settings.draft)}")
    verifiers = (accelerator.verifier_for(name) for name in accelerator.strategies)
    parts += dict.fromkeys(f"verifier {verifier.name}" for verifier in verifiers if verifier is not None)
    return f"Loading {', '.join(parts)}"


def _model_name(engine: EngineSettings) -> str:
    return engine.model if len(engine.model) < _MAX_NAME_CHARACTERS else Path(engine.model).name


def session_details(accelerator: Accelerator, strategies: Sequence[str]) -> dict[str, Any]:
    """Return the details of started engines for a session of a run folder."""
    details: dict[str, Any] = {
        "order_seed": accelerator.settings.sampling.seed,
        "target_cores": {name: list(accelerator.target_cores(name)) for name in strategies},
    }
    if accelerator.planner is not None:
        details["costs"] = _costs(accelerator.planner)
    return details


def _costs(planner: Planner) -> dict[str, Any]:
    costs = planner.costs
    return {
        "target_pass_ms": {size: round(1000 * seconds, 3) for size, seconds in costs.target.points},
        "draft_token_ms": round(1000 * costs.draft_token, 3),
        "c": round(costs.c, 4),
    }
