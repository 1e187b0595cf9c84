"""`reason-spec exit eval` on the screen, under rules that ask a model for trial answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reason_spec.accelerator import Accelerator
from reason_spec.cli.command import run_interruptible
from reason_spec.cli.exit_screens import REMEDY, answers_table, warn_of_seen
from reason_spec.cli.flags import Flags
from reason_spec.cli.screen import Screen
from reason_spec.errors import SettingsError
from reason_spec.evaluation.amounts import counted
from reason_spec.evaluation.job import start_engines
from reason_spec.evaluation.records import write_text
from reason_spec.lab.exit.live_rules import LiveStop, follow
from reason_spec.lab.exit.replay import Replay, num_tokens, report_dict
from reason_spec.lab.exit.stop_store import StopFolder, answer_key
from reason_spec.lab.exit.traces import ReadTrace, Trace, read_traces
from reason_spec.settings import Settings
from reason_spec.strategies.early_exit import policy_of
from reason_spec.tasks.grading import Grader


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How answers are replayed: ``concurrency`` at once, and kept in ``output``; None keeps none."""

    concurrency: int
    output: Path | None
    fresh: bool


def settings_for_trials(flags: Flags, rule: str, policy: Path | None, threshold: float | None) -> Settings:
    """Return the settings of a replay.

    Raises:
        SettingsError: a model that is needed is not named, one is named that is not asked, or the rule has
            no policy.
    """
    if rule != "probes" and (policy is not None or threshold is not None):
        named = "--policy" if policy is not None else "--threshold"
        raise SettingsError(
            f"{named} is for --rule policy and probes, and {rule} reads no policy: leave it out; settings of "
            "trials are given with --set, such as --set exit.confidence=0.9"
        )
    settings = flags.resolve({"exit.rule": rule, "exit.policy": policy, "exit.threshold": threshold})
    _check_models(flags.given, settings)
    changed: dict[str, Any] = {
        # No answer waits for a trial here: a slow one must not become unknown.
        "exit": settings.exit.model_copy(update={"deadline": math.inf}),
        "strategy": settings.strategy.model_copy(update={"planner": False}),
    }
    return settings.model_copy(update=changed)


def _check_models(given: Mapping[str, Any], settings: Settings) -> None:
    is_pair = settings.target.model == "embedded"
    if is_pair and given["target"] is None:
        raise SettingsError(
            f"--rule {settings.exit.rule} asks a model for trial answers: name the one that wrote the "
            "answers with --target, and a server of it, if it has one, with --target-url"
        )
    asks_draft = settings.exit.probe_by == "draft_first"
    if not asks_draft and (given["draft"] or given["draft_url"]):
        raise SettingsError(
            "a draft is asked for trial answers under exit.probe_by: draft_first alone: add --set "
            "exit.probe_by=draft_first, or leave the draft out"
        )
    if asks_draft and not is_pair and given["draft"] is None and settings.draft.model == "embedded":
        raise SettingsError("exit.probe_by: draft_first asks a draft: name it with --draft")


def evaluate_with_trials(
    file: Path,
    settings: Settings,
    options: ReplayOptions,
    *,
    groups: Sequence[str],
    limit: int | None,
    json_file: Path | None,
    screen: Screen,
) -> None:
    """Replay a file under the rule of the settings, print a table, and write the numbers where wanted.

    Raises:
        DataError: the file has no usable answers, or an output cannot be written.
        EngineError: a model cannot be loaded, or a trial answer fails.
        ResumeError: the output folder has stops under other settings.
    """
    rule, task = settings.exit.rule, settings.task.name
    traces = read_traces(file, task, groups=groups)[:limit]
    if rule == "probes":
        warn_of_seen(file, policy_of(settings.exit), traces, screen)
    with Grader() as grader:
        replay = Replay([ReadTrace(trace, (), (), ()) for trace in traces], grader, task)
        with screen.counting("Grading", len(traces), "answers") as advance:
            replay.prepare(advance)
        stops = find_stops(settings, traces, options, screen)
        sizes = [sum(map(num_tokens, found.trials)) for found in stops]
        cuts = zip(stops, sizes, strict=True)
        answers = [replay.cut(place, found.stop, found.end, size) for place, (found, size) in enumerate(cuts)]
    num_trials = sum(len(found.trials) for found in stops)
    screen.print_table(answers_table(answers))
    screen.say(
        f"Rule {rule}. Tokens are those of thinking and of {counted(num_trials, 'trial answer')} "
        f"({sum(sizes):,} tokens)."
    )
    if num_longer := sum(not found.fits for found in stops):
        screen.warn(
            f"beyond the target's context no trial answer is asked for, and {counted(num_longer, 'answer')} "
            "went on beyond it"
        )
    if json_file is not None:
        about = {"file": str(file), "rule": rule, "target": settings.target.model}
        content = report_dict(answers, **about, num_trials=num_trials, num_trial_tokens=sum(sizes))
        write_text(json_file, json.dumps(content, indent=2) + "\n", REMEDY)


def find_stops(
    settings: Settings, traces: Sequence[Trace], options: ReplayOptions, screen: Screen
) -> list[LiveStop]:
    """Return where the rule stops each answer; those in the output folder are not replayed again."""
    by = "speculative" if settings.exit.probe_by == "draft_first" else "autoregressive"
    accelerator = Accelerator.from_settings(settings, strategies=(by,))
    wanted = {answer_key(trace): trace for trace in traces}
    stops: dict[str, LiveStop] = {}
    keep: Callable[[str, LiveStop], None] = stops.__setitem__
    with ExitStack() as stack:
        if options.output is not None:
            folder = stack.enter_context(StopFolder(options.output, settings, fresh=options.fresh))
            stops, keep = folder.stops, folder.append
        left = {key: trace for key, trace in wanted.items() if key not in stops}
        if len(left) < len(wanted):
            screen.say(f"{len(wanted) - len(left)} of {len(wanted)} answers are in {options.output} already.")
        try:
            if left:
                run_interruptible(_follow_all(accelerator, left, keep, options.concurrency, screen))
        finally:
            num_done = len(wanted.keys() & stops.keys())
            if 0 < num_done < len(wanted):
                screen.say(_after_a_stop(num_done, len(wanted), options))
    return [stops[answer_key(trace)] for trace in traces]


def _after_a_stop(num_done: int, num_wanted: int, options: ReplayOptions) -> str:
    done = f"{num_done} of {num_wanted} answers"
    if options.output is None:
        return f"{done} were replayed, and none is kept: --output FOLDER keeps them for the next run."
    command = "the same command without --fresh" if options.fresh else "the same command"
    return f"{done} are kept in {options.output}; {command} goes on from there."


async def _follow_all(
    accelerator: Accelerator,
    traces: Mapping[str, Trace],
    keep: Callable[[str, LiveStop], None],
    concurrency: int,
    screen: Screen,
) -> None:
    """Replay answers, and hand on where the rule stops each."""

    async def replay(key: str) -> None:
        keep(key, await follow(accelerator.generator, traces[key]))

    try:
        await start_engines(accelerator, accelerator.settings, screen)
        await screen.for_each([*traces], concurrency, replay, "Replaying", "answers")
    finally:
        await accelerator.close()
