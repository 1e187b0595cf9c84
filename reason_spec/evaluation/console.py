"""Runs as the command line shows them: a question step by step, or a file with a table at the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.control.planner import Planner
from reason_spec.errors import SettingsError
from reason_spec.evaluation import report
from reason_spec.evaluation.outcome import Outcome, UnitKey, outcome_from
from reason_spec.evaluation.progress import LiveProgress, PlainProgress, ProgressView, SilentProgress
from reason_spec.evaluation.prompts import ask_for
from reason_spec.evaluation.rounding import Rounding, find_rounding, rounding_lines
from reason_spec.evaluation.run import Ask, Failure, all_asks, new_session, run
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.store import Identity, RunFolder
from reason_spec.evaluation.summary import Summary, summarize
from reason_spec.evaluation.transcript import Transcript
from reason_spec.events import Recorder
from reason_spec.settings import EngineSettings, Settings
from reason_spec.types import Problem

EXIT_SOME_FAILED = 1
MAX_BAD_LINES_SHOWN = 5
_PHASE_SECONDS = 0.5
_LONG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run does beside its settings; ``output`` None names a folder after the problems."""

    strategies: tuple[str, ...]
    samples: int = 1
    concurrency: int = 1
    output: Path | None = None
    fresh: bool = False
    show_rejected: bool = False
    as_json: bool = False
    quiet: bool = False


class Screen:
    """Results go to standard output, everything else to standard error."""

    def __init__(self, options: RunOptions) -> None:
        # Emoji codes are text like any other here.
        self.out = Console(highlight=False, markup=False, emoji=False)
        self.err = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.quiet = options.quiet or options.as_json

    def say(self, text: str) -> None:
        if not self.quiet:
            self.err.print(text, soft_wrap=not self.err.is_terminal)

    def warn(self, text: str) -> None:
        self.err.print(text, style="yellow", soft_wrap=not self.err.is_terminal)

    def write(self, line: str) -> None:
        """Print a line for a program: as it is, whatever the width."""
        self.out.file.write(line + "\n")
        self.out.file.flush()

    def status(self, text: str) -> AbstractContextManager[object]:
        if self.quiet or not self.err.is_terminal:
            self.say(text)
            return nullcontext()
        return self.err.status(text)

    def bar(self, unit: str) -> Progress:
        """Return a bar that counts ``unit``, shown to people only; add one task to it."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
        )
        return Progress(*columns, console=self.err, disable=self.quiet or not self.err.is_terminal)

    def progress(self, strategies: Sequence[str], total: int, done: Sequence[Outcome]) -> ProgressView:
        if self.quiet:
            return SilentProgress(strategies, total, done)
        view = LiveProgress if self.err.is_terminal else PlainProgress
        return view(self.err, strategies, total, done)


async def solve_sources(settings: Settings, sources: Sources, options: RunOptions) -> int:
    """Answer questions on the screen, or solve files into a folder; return the exit code.

    Raises:
        SettingsError: an option does not go with what is to be solved.
    """
    streams = sources.only_questions and len(options.strategies) == 1
    _refuse_contradictions(options, streams)
    if streams:
        await answer_questions(settings, sources, options)
        return 0
    return await solve_problems(settings, sources, options)


def _refuse_contradictions(options: RunOptions, streams: bool) -> None:
    if streams and options.concurrency > 1:
        raise SettingsError("--concurrency is for files: questions are answered one after another")
    if streams and options.fresh and options.output is None:
        raise SettingsError("--fresh needs --output: without it the answer to a question is not stored")
    if options.show_rejected and not streams:
        raise SettingsError("--show-rejected is for a question; the verdicts on a file are in its results")


# Questions -----------------------------------------------------------------------------------


async def answer_questions(settings: Settings, sources: Sources, options: RunOptions) -> None:
    """Print the answer to each question step by step, with its numbers at the end.

    With an output folder the answers are stored, and ones that are stored already are shown again.
    """
    screen = Screen(options)
    asks = all_asks(sources.problems, options.samples)
    (strategy,) = options.strategies
    with _folder(settings, sources, options) as folder:
        stored = folder.outcomes if folder else {}
        if all(ask.key(strategy) in stored for ask in asks):
            for ask in asks:
                _show_stored(stored[ask.key(strategy)], options, screen)
            return
        accelerator = Accelerator.from_settings(settings, strategies=options.strategies)
        session = new_session()
        try:
            await start_engines(accelerator, settings, screen)
            if folder is not None:
                folder.begin_session(session, options.strategies, session_details(accelerator, options))
            for ask in asks:
                if ask.key(strategy) in stored:
                    _show_stored(stored[ask.key(strategy)], options, screen)
                    continue
                if len(asks) > 1 and not options.quiet and not options.as_json:
                    screen.out.print(_heading(ask, options), style="bold")
                outcome = await _answer(accelerator, ask, options, session, screen)
                if folder is not None:
                    folder.append(outcome)
        finally:
            await accelerator.close()


async def _answer(
    accelerator: Accelerator, ask: Ask, options: RunOptions, session: str, screen: Screen
) -> Outcome:
    transcript = Transcript(screen.out, plain=options.quiet, show_rejected=options.show_rejected)
    strategy = accelerator.generator.strategy()
    await accelerator.prepare(strategy.name)
    recorder = Recorder(transcript.listen)
    asked = ask_for(ask.problem, accelerator.settings, sample=ask.sample)
    solving = accelerator.solve(asked, recorder=recorder)
    steps = []
    async with aclosing(solving):
        async for step in solving:
            steps.append(step)
            if not options.as_json:
                transcript.print(step)
    seconds = time.perf_counter() - recorder.started
    text = "".join(step.text for step in steps)
    solution = Solution(text, tuple(steps), seconds, strategy.name, strategy.loss_class, recorder)
    outcome = outcome_from(
        ask.problem, ask.sample, solution, accelerator.settings, index=ask.place, session=session
    )
    _show_numbers(outcome, transcript, options, screen)
    return outcome


def _show_stored(outcome: Outcome, options: RunOptions, screen: Screen) -> None:
    transcript = Transcript(screen.out, plain=options.quiet)
    if not options.as_json:
        screen.say("This answer was written by an earlier run; --fresh solves anew.")
        for step in outcome.steps:
            transcript.print(step)
    _show_numbers(outcome, transcript, options, screen)


def _show_numbers(outcome: Outcome, transcript: Transcript, options: RunOptions, screen: Screen) -> None:
    if options.as_json:
        screen.write(outcome.to_json())
        return
    transcript.end()
    if not options.quiet:
        screen.out.print(report.answer_line(outcome), style="dim", soft_wrap=True)


def _heading(ask: Ask, options: RunOptions) -> str:
    sample = f" (sample {ask.sample + 1} of {options.samples})" if options.samples > 1 else ""
    return ask.problem.question + sample


# Files ---------------------------------------------------------------------------------------


async def solve_problems(settings: Settings, sources: Sources, options: RunOptions) -> int:
    """Solve all problems, store every answer, print the table; return the exit code."""
    screen = Screen(options)
    mention_omissions(sources, screen)
    identity = Identity.of(settings, sources.problems, options.concurrency)
    path = options.output or default_folder(sources, identity)
    failures: list[Failure] = []
    with RunFolder(path, identity, sources.problems, fresh=options.fresh) as folder:
        asks = all_asks(sources.problems, options.samples)
        wanted = {ask.key(strategy) for ask in asks for strategy in options.strategies}
        num_done = len(wanted & folder.outcomes.keys())
        if num_done:
            screen.say(already_there(num_done, len(wanted), path))
        try:
            if num_done < len(wanted):
                await _solve_rest(settings, sources, options, folder, wanted, failures, screen)
        finally:
            num_stored = len(folder.outcomes)
            missing = len(wanted - folder.outcomes.keys())
            summary = summarize(folder.outcomes.values(), options.strategies)
            content = {
                "output": str(path),
                "complete": missing == 0,
                "num_missing": missing,
                "failures": [{**item.key._asdict(), "error": str(item.error)} for item in failures],
                "order_seed": settings.sampling.seed,
                "rounding": folder.latest("rounding"),
                **summary.to_dict(),
            }
            if num_stored:
                folder.write_summary(content)
            if num_stored and missing > len(failures):
                command = "the same command without --fresh" if options.fresh else "the same command"
                screen.say(f"{num_stored} answers are kept in {path}; {command} goes on from there.")
    _report(summary, content, failures, options, screen)
    return EXIT_SOME_FAILED if failures else 0


def already_there(num_done: int, num_wanted: int, path: Path) -> str:
    """Return what a resumed run says first."""
    if num_done < num_wanted:
        return f"{num_done} of {num_wanted} answers are in {path} already; the rest is solved now."
    return f"All {num_wanted} answers are in {path} already: nothing is left to solve; --fresh solves anew."


async def _solve_rest(
    settings: Settings,
    sources: Sources,
    options: RunOptions,
    folder: RunFolder,
    wanted: set[UnitKey],
    failures: list[Failure],
    screen: Screen,
) -> None:
    """Solve what the folder lacks; ``failures`` takes what could not be answered."""
    accelerator = Accelerator.from_settings(settings, strategies=options.strategies)
    session = new_session()
    done = [outcome for key, outcome in folder.outcomes.items() if key in wanted]
    try:
        await start_engines(accelerator, settings, screen)
        if len(options.strategies) > 1:
            with screen.status("Measuring on which cores the target is fastest alone"):
                await accelerator.calibrate()
        folder.begin_session(session, options.strategies, session_details(accelerator, options))
        with screen.progress(options.strategies, len(wanted), done) as progress:
            results = run(
                accelerator,
                sources.problems,
                options.strategies,
                samples=options.samples,
                concurrency=options.concurrency,
                order_seed=settings.sampling.seed,
                done=set(folder.outcomes),
                calibrate=False,
                session=session,
                listener=progress.listener,
            )
            async with aclosing(results):
                await store_results(results, folder, failures, progress)
        rounding = await rounding_details(accelerator, sources.problems, folder)
        folder.end_session(costs_at_work(accelerator) | rounding)
    finally:
        await accelerator.close()


async def store_results(
    results: AsyncIterator[Outcome | Failure],
    folder: RunFolder,
    failures: list[Failure],
    progress: ProgressView,
) -> None:
    async for result in results:
        if isinstance(result, Failure):
            failures.append(result)
        else:
            folder.append(result)
            progress.add(result)


def _report(
    summary: Summary,
    content: dict[str, Any],
    failures: Sequence[Failure],
    options: RunOptions,
    screen: Screen,
) -> None:
    if options.as_json:
        screen.write(json.dumps(content, indent=2, ensure_ascii=False))
    elif summary.strategies:
        rounding = Rounding.from_dict(content["rounding"]) if content["rounding"] else None
        report.print_summary(summary, screen.out, rounding)
        for line in (*report.comparison_lines(summary), *rounding_lines(rounding), *report.notes(summary)):
            screen.out.print(line)
    for failure in failures:
        key = failure.key
        screen.warn(f"problem {key.problem_id!r}, {key.strategy}: not answered: {failure.error}")
    screen.say(f"Results: {content['output']}" if summary.strategies else "No answer was written.")


def mention_omissions(sources: Sources, screen: Screen) -> None:
    """Say what was left out of the sources, and what is not graded."""
    for notice in sources.notices:
        screen.say(notice)
    for bad in sources.bad_lines[:MAX_BAD_LINES_SHOWN]:
        screen.warn(f"left out: {bad}")
    if len(sources.bad_lines) > MAX_BAD_LINES_SHOWN:
        screen.warn(f"left out: {len(sources.bad_lines) - MAX_BAD_LINES_SHOWN} more lines")
    if sources.num_without_answer:
        screen.say(
            f"{sources.num_without_answer} of {len(sources.problems)} problems have no reference answer; "
            "they are solved and not graded."
        )


# Common --------------------------------------------------------------------------------------


def default_folder(sources: Sources, identity: Identity) -> Path:
    """Return the folder of a run that names none: equal settings and file names share one."""
    return Path("runs") / f"{sources.name}-{identity.hash}"


@contextmanager
def _folder(settings: Settings, sources: Sources, options: RunOptions) -> Iterator[RunFolder | None]:
    if options.output is None:
        yield None
        return
    identity = Identity.of(settings, sources.problems, options.concurrency)
    with RunFolder(options.output, identity, sources.problems, fresh=options.fresh) as folder:
        yield folder


async def start_engines(accelerator: Accelerator, settings: Settings, screen: Screen) -> None:
    """Start the engines and say what they are doing meanwhile: large models take minutes."""
    text = _loading(settings, accelerator)
    with screen.status(text) as status:
        started, shown = time.monotonic(), ""
        starting = asyncio.ensure_future(accelerator.start())
        try:
            while not (await asyncio.wait({starting}, timeout=_PHASE_SECONDS))[0]:
                engines = (accelerator.target, accelerator.draft)
                phases = [f"{engine.name} {engine.phase}" for engine in engines if engine and engine.phase]
                seconds = time.monotonic() - started
                if isinstance(status, Status):
                    status.update(f"{text} ({'; '.join([*phases, f'{seconds:.0f} s'])})")
                elif phases and seconds > _LONG_SECONDS and (now := "; ".join(phases)) != shown:
                    shown = now
                    screen.say(f"  after {seconds:.0f} s: {now}")
        finally:
            # Where the user gives up, the engines are let go of before anything else ends.
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
    return engine.model if len(engine.model) < 40 else Path(engine.model).name


def session_details(accelerator: Accelerator, options: RunOptions) -> dict[str, Any]:
    details: dict[str, Any] = {
        "order_seed": accelerator.settings.sampling.seed,
        "target_cores": {name: list(accelerator.target_cores(name)) for name in options.strategies},
    }
    if accelerator.planner is not None:
        details["costs"] = _costs(accelerator.planner)
    return details


def costs_at_work(accelerator: Accelerator) -> dict[str, Any]:
    """Return what passes took while answers were written, for the session that ends."""
    return {} if accelerator.planner is None else {"costs_at_work": _costs(accelerator.planner)}


async def rounding_details(
    accelerator: Accelerator, problems: Sequence[Problem], folder: RunFolder
) -> dict[str, Any]:
    """Return where exact answers part by rounding, for the session that ends; empty in float32."""
    found = await find_rounding(accelerator, problems, folder.outcomes.values())
    return {} if found is None else {"rounding": found.to_dict()}


def _costs(planner: Planner) -> dict[str, Any]:
    costs = planner.costs
    return {
        "target_pass_ms": {size: round(1000 * seconds, 3) for size, seconds in costs.target.points},
        "draft_token_ms": round(1000 * costs.draft_token, 3),
        "c": round(costs.c, 4),
    }
