"""`reason-spec exit eval` on the screen, under rules that ask a model for trial answers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reason_spec.accelerator import Accelerator
from reason_spec.cli.command import run_interruptible
from reason_spec.cli.exit_screens import REMEDY, answers_table, warn_of_seen
from reason_spec.cli.flags import Flags
from reason_spec.cli.screen import Screen
from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.amounts import counted
from reason_spec.evaluation.job import start_engines
from reason_spec.evaluation.records import write_text
from reason_spec.lab.exit.live_rules import LiveStop, follow
from reason_spec.lab.exit.replay import Replay, num_tokens, report_dict
from reason_spec.lab.exit.traces import ReadTrace, Trace, read_traces
from reason_spec.settings import Settings
from reason_spec.strategies.early_exit import policy_of
from reason_spec.tasks.grading import Grader


def settings_for_trials(flags: Flags, rule: str, policy: Path | None, threshold: float | None) -> Settings:
    """Return the settings of a replay.

    Raises:
        SettingsError: no target is named, or the rule has no policy.
    """
    if rule != "probes" and (policy is not None or threshold is not None):
        named = "--policy" if policy is not None else "--threshold"
        raise SettingsError(
            f"{named} is for --rule policy and probes, and {rule} reads no policy: leave it out; settings of "
            "trials are given with --set, such as --set exit.confidence=0.9"
        )
    settings = flags.resolve({"exit.rule": rule, "exit.policy": policy, "exit.threshold": threshold})
    target = settings.target
    if flags.given["target"] is None and target.kind != "remote" and target.model == "embedded":
        raise SettingsError(
            f"--rule {rule} asks a model for trial answers: name the one that wrote the answers with "
            "--target, or its server with --target-url"
        )
    changed: dict[str, Any] = {
        # No answer waits for a trial here: a slow one must not become unknown.
        "exit": settings.exit.model_copy(update={"deadline": math.inf}),
        "strategy": settings.strategy.model_copy(update={"planner": False}),
    }
    return settings.model_copy(update=changed)


def evaluate_with_trials(
    file: Path,
    settings: Settings,
    *,
    groups: Sequence[str],
    limit: int | None,
    concurrency: int,
    json_file: Path | None,
    screen: Screen,
) -> None:
    """Replay a file under the rule of the settings, print a table, and write the numbers where wanted.

    Raises:
        DataError: the file has no usable answers, one has no thinking, or an output cannot be written.
        EngineError: a model cannot be loaded, or a trial answer fails.
    """
    rule, task = settings.exit.rule, settings.task.name
    traces = read_traces(file, task, groups=groups)[:limit]
    if empty := next((trace for trace in traces if not trace.thinking.strip()), None):
        raise DataError(
            f"{file}: the response of answer {empty.id!r} has no thinking to shorten; leave this answer out"
        )
    if rule == "probes":
        warn_of_seen(file, policy_of(settings.exit), traces, screen)
    by = ("speculative",) if settings.exit.probe_by == "draft_first" else ("autoregressive",)
    accelerator = Accelerator.from_settings(settings, strategies=by)
    with Grader() as grader:
        replay = Replay([ReadTrace(trace, (), (), ()) for trace in traces], grader, task)
        with screen.counting("Grading", len(traces), "answers") as advance:
            replay.prepare(advance)
        stops = run_interruptible(_follow_all(accelerator, traces, concurrency, screen))
        sizes = [sum(map(num_tokens, found.trials)) for found in stops]
        cuts = zip(stops, sizes, strict=True)
        answers = [replay.cut(place, found.stop, found.end, size) for place, (found, size) in enumerate(cuts)]
    num_trials = sum(len(found.trials) for found in stops)
    screen.print_table(answers_table(answers))
    screen.say(
        f"Rule {rule}. Tokens are those of thinking and of {counted(num_trials, 'trial answer')} "
        f"({sum(sizes):,} tokens)."
    )
    if json_file is not None:
        about = {"file": str(file), "rule": rule, "target": settings.target.model}
        content = report_dict(answers, **about, num_trials=num_trials, num_trial_tokens=sum(sizes))
        write_text(json_file, json.dumps(content, indent=2) + "\n", REMEDY)


async def _follow_all(
    accelerator: Accelerator, traces: Sequence[Trace], concurrency: int, screen: Screen
) -> list[LiveStop]:
    """Return where the rule stops each answer; warn of those for which the target has no room."""
    found: dict[int, LiveStop] = {}

    async def ask(place: int) -> None:
        found[place] = await follow(accelerator.generator, traces[place])

    try:
        await start_engines(accelerator, accelerator.settings, screen)
        await screen.for_each(range(len(traces)), concurrency, ask, "Replaying", "answers")
        room = accelerator.target.max_context
    finally:
        await accelerator.close()
    if num_longer := sum(not stop.fits for stop in found.values()):
        screen.warn(
            f"no trial answer is asked for beyond the target's context of {room:,} tokens; "
            f"{counted(num_longer, 'answer')} went on beyond it"
        )
    return [found[place] for place in range(len(traces))]
