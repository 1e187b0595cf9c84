"""`reason-spec eval`: tasks, strategies and samples in one run, measured at its end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any

from reason_spec.accelerator import Accelerator
from reason_spec.evaluation.amounts import counted
from reason_spec.evaluation.console import (
    EXIT_SOME_FAILED,
    RunOptions,
    Screen,
    already_there,
    costs_at_work,
    default_folder,
    mention_omissions,
    rounding_details,
    session_details,
    start_engines,
)
from reason_spec.evaluation.eval_progress import board_view, totals_of
from reason_spec.evaluation.eval_report import metrics_notes, paired_lines, print_metrics
from reason_spec.evaluation.metrics import Metrics, Prices, measure
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.rounding import Rounding, rounding_lines
from reason_spec.evaluation.run import Failure, Retries, Revived, UnitListener, all_asks, new_session, run
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.store import Identity, RunFolder
from reason_spec.evaluation.summary import summarize
from reason_spec.evaluation.timeline import Timeline
from reason_spec.evaluation.timeline_store import TimelineFile
from reason_spec.events import Event, Recorder
from reason_spec.lab.cluster.runner import Cluster, require_ray, run_on_ray
from reason_spec.settings import Settings


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What an evaluation does beside its settings and what every run can be told.

    ``cluster`` is where the answers are written, None: in this process.
    """

    run: RunOptions
    num_retries: int = 2
    timelines: bool = True
    prices: Prices | None = None
    cluster: Cluster | None = None


async def evaluate(settings: Settings, sources: Sources, options: EvalOptions) -> int:
    """Answer all problems, store every answer, measure, and print what came of it; return the exit code.

    Raises:
        DataError: the output folder cannot be written.
        EngineError: an engine does not start, or answers go on failing.
        MissingDependencyError: there is to be a cluster, and Ray is not installed.
        ResumeError: the folder belongs to another run.
    """
    if options.cluster is not None:
        require_ray()
    screen = Screen(options.run)
    mention_omissions(sources, screen)
    identity = Identity.of(settings, sources.problems, options.run.concurrency)
    path = options.run.output or default_folder(sources, identity)
    with RunFolder(path, identity, sources.problems, fresh=options.run.fresh) as folder:
        evaluation = _Evaluation(settings, sources, options, folder, screen)
        try:
            await evaluation.solve()
        finally:
            evaluation.write_summary()
        return evaluation.report()


class _Evaluation:
    """One start of the command on its folder."""

    def __init__(
        self, settings: Settings, sources: Sources, options: EvalOptions, folder: RunFolder, screen: Screen
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._options = options
        self._folder = folder
        self._screen = screen
        asks = all_asks(sources.problems, options.run.samples)
        self._wanted = [ask.key(name) for ask in asks for name in options.run.strategies]
        self._failures: list[Failure] = []
        self._timelines: dict[UnitKey, Timeline] = {}
        self._accelerator: Accelerator | None = None
        self._listener: UnitListener | None = None

    async def solve(self) -> None:
        """Solve what the folder lacks."""
        done = [self._folder.outcomes[key] for key in self._wanted if key in self._folder.outcomes]
        if done:
            self._screen.say(already_there(len(done), len(self._wanted), self._folder.path))
        if len(done) == len(self._wanted):
            return
        try:
            if self._options.cluster is not None:
                cluster, session = self._options.cluster, self._begin_on(self._options.cluster)
                await self._solve_rest(self._results_of_cluster(cluster, session), done)
            else:
                accelerator, session = await self._start(self._screen)
                await self._solve_rest(self._results(accelerator, session), done)
                # An engine that died was started again, as another session.
                accelerator = self._accelerator or accelerator
                rounding = await rounding_details(accelerator, self._sources.problems, self._folder)
                self._folder.end_session(costs_at_work(accelerator) | rounding)
        finally:
            await self._close()

    async def _solve_rest(self, results: AsyncGenerator[Outcome | Failure], done: Sequence[Outcome]) -> None:
        """Show and store results as they come."""
        options = self._options.run
        tasks = {problem.id: problem.task for problem in self._sources.problems}
        with ExitStack() as stack:
            timelines = (
                stack.enter_context(TimelineFile(self._folder.path)) if self._options.timelines else None
            )
            view = board_view(
                self._screen.err,
                options.strategies,
                totals_of(self._wanted, tasks),
                done,
                quiet=self._screen.quiet,
            )
            progress = stack.enter_context(view)
            self._listener = progress.listener
            async with aclosing(results):
                async for result in results:
                    if isinstance(result, Failure):
                        self._failures.append(result)
                        continue
                    self._store(result, timelines)
                    progress.add(result)

    def _results(self, accelerator: Accelerator, session: str) -> AsyncGenerator[Outcome | Failure]:
        options = self._options.run
        return run(
            accelerator,
            self._sources.problems,
            options.strategies,
            samples=options.samples,
            concurrency=options.concurrency,
            order_seed=self._settings.sampling.seed,
            done=set(self._folder.outcomes),
            calibrate=False,
            session=session,
            listener=self._listen,
            on_answer=self._keep_events if self._options.timelines else None,
            retries=Retries(self._options.num_retries, revive=self._revive),
        )

    def _results_of_cluster(self, cluster: Cluster, session: str) -> AsyncGenerator[Outcome | Failure]:
        options = self._options.run
        return run_on_ray(
            self._settings,
            self._sources.problems,
            options.strategies,
            cluster=cluster,
            samples=options.samples,
            concurrency=options.concurrency,
            order_seed=self._settings.sampling.seed,
            done=set(self._folder.outcomes),
            retries=self._options.num_retries,
            session=session,
            keep_timeline=self._keep_timeline if self._options.timelines else None,
            notify=self._screen.say,
        )

    def _listen(self, key: UnitKey, event: Event) -> None:
        if self._listener is not None:
            self._listener(key, event)

    def _keep_events(self, key: UnitKey, recorder: Recorder) -> None:
        self._keep_timeline(Timeline.of(key, recorder))

    def _keep_timeline(self, timeline: Timeline) -> None:
        self._timelines[timeline.key] = timeline

    def _store(self, outcome: Outcome, timelines: TimelineFile | None) -> None:
        # The timeline first: a kill between the two leaves no answer without one.
        if timelines is not None:
            timelines.append(self._timelines.pop(outcome.key))
        self._folder.append(outcome)

    # --- engines -----------------------------------------------------------------------------------

    async def _start(self, screen: Screen) -> Revived:
        """Start the engines, and a session of the folder with what was measured about them."""
        strategies = self._options.run.strategies
        self._accelerator = Accelerator.from_settings(self._settings, strategies=strategies)
        await start_engines(self._accelerator, self._settings, screen)
        if len(strategies) > 1:
            with screen.status("Measuring on which cores the target is fastest alone"):
                await self._accelerator.calibrate()
        session = new_session()
        details = session_details(self._accelerator, self._options.run)
        self._folder.begin_session(session, strategies, details)
        return Revived(self._accelerator, session)

    def _begin_on(self, cluster: Cluster) -> str:
        """Begin a session of the folder for workers elsewhere; what they measured is in their answers."""
        session = new_session()
        details = {"order_seed": self._settings.sampling.seed, "ray": asdict(cluster)}
        self._folder.begin_session(session, self._options.run.strategies, details)
        return session

    async def _revive(self) -> Revived:
        self._screen.warn("an engine died; it is started again")
        await self._close()
        # The live table is on the screen, and a terminal takes one live display at a time.
        return await self._start(Screen(replace(self._options.run, quiet=True)))

    async def _close(self) -> None:
        accelerator, self._accelerator = self._accelerator, None
        if accelerator is not None:
            await accelerator.close()

    # --- what came of it ---------------------------------------------------------------------------

    def write_summary(self) -> None:
        """Write ``summary.json``, also of a run that was stopped, and say how it goes on."""
        if not self._folder.outcomes:
            return
        self._folder.write_summary(self._summary())
        if self._num_missing > len(self._failures):
            command = "the same command without --fresh" if self._options.run.fresh else "the same command"
            self._screen.say(
                f"{len(self._folder.outcomes)} answers are kept in {self._folder.path}; "
                f"{command} goes on from there."
            )

    def report(self) -> int:
        """Measure, write ``metrics.json``, print; return the exit code."""
        options, screen = self._options, self._screen
        path = self._folder.path
        if self._folder.outcomes:
            metrics = measure(
                self._folder.outcomes.values(),
                options.run.strategies,
                prices=options.prices,
                seed=self._settings.sampling.seed,
            )
            prices = None if options.prices is None else asdict(options.prices)
            content = {"prices": prices, **metrics.to_dict()}
            self._folder.write_metrics(content)
            if options.run.as_json:
                shown = {**self._summary(), "metrics": content}
                screen.write(json.dumps(shown, indent=2, ensure_ascii=False))
            else:
                self._print(metrics)
        for failure in self._failures:
            key, tries = failure.key, counted(len(failure.failed_tries), "try", "tries")
            screen.warn(
                f"problem {key.problem_id!r}, {key.strategy}: not answered after {tries}: {failure.error}"
            )
        if not self._folder.outcomes:
            screen.say("No answer was written.")
        else:
            screen.say(f"Results: {path}. As a page: reason-spec report {path} --html")
        return EXIT_SOME_FAILED if self._failures else 0

    def _print(self, metrics: Metrics) -> None:
        out = self._screen.out
        print_metrics(metrics, out)
        noted = self._folder.latest("rounding")
        rounding = Rounding.from_dict(noted) if noted else None
        for line in (*paired_lines(metrics), *rounding_lines(rounding), *metrics_notes(metrics)):
            out.print(line)

    @property
    def _num_missing(self) -> int:
        return sum(key not in self._folder.outcomes for key in self._wanted)

    def _summary(self) -> dict[str, Any]:
        return {
            "output": str(self._folder.path),
            "complete": self._num_missing == 0,
            "num_missing": self._num_missing,
            "failures": [
                {**item.key._asdict(), "error": str(item.error), "failed_tries": list(item.failed_tries)}
                for item in self._failures
            ],
            "order_seed": self._settings.sampling.seed,
            "rounding": self._folder.latest("rounding"),
            **summarize(self._folder.outcomes.values(), self._options.run.strategies).to_dict(),
        }
