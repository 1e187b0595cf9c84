"""The commands of ``exit``, and ``tune exit``: where the thinking of stored answers may end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from reason_spec.cli.flags import MODEL_FLAGS, Flags, takes_flags
from reason_spec.cli.options import FreshOption, JsonOption, QuietOption
from reason_spec.errors import SettingsError

exit_app = typer.Typer(
    no_args_is_help=True, help="Train and replay a policy that ends the thinking early, on stored answers."
)

TracesArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TRACES",
        help="Stored answers: jsonl with question, answer and response (and group or model), or with "
        "solutions by model.",
    ),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group", metavar="NAME", help="Read answers of this group only; several times for several."
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="The policy. Default: one that ships; a small model reads along where it is installed.",
    ),
]
TextOnlyOption = Annotated[
    bool, typer.Option("--text-only", help="Without --policy: the one for which no model reads along.")
]


@exit_app.command(
    "eval",
    help="Replay stored answers: what would be kept of the thinking, and what would be answered.\n\n"
    "Each thinking is cut where the rule would have stopped it, and the answer that it expects is graded. "
    "Rule policy reads the question and the text so far, by itself or with a small model that reads along. "
    "The others ask the model that wrote the answers (--target) for trial answers, whose tokens count as "
    "kept; with --output a stopped "
    "replay continues with the same command.",
)
@takes_flags("task", "prompt", *MODEL_FLAGS)
def exit_eval(
    traces: TracesArgument,
    flags: Flags,
    rule: Annotated[
        Literal["policy", "probes", "deer", "dynasor"],
        typer.Option(metavar="NAME", help="Ends the thinking: policy, probes, deer or dynasor."),
    ] = "policy",
    policy: PolicyOption = None,
    text_only: TextOnlyOption = False,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Chance to stop at. Default: that of the policy.")
    ] = None,
    group: GroupsOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay at most this many answers.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="With --target: answers at once.")] = 16,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With --target: keep what is replayed, and go on from there."),
    ] = None,
    fresh: FreshOption = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers into this file.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Rule policy: draw loss against saving into this file; needs the extra plots."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli.screen import Screen

    groups, screen = tuple(group or ()), Screen(quiet=quiet)
    if rule == "policy":
        from reason_spec.cli import exit_screens

        _refuse_for_policy({**flags.given, "output": output, "fresh": fresh})
        task, at = (
            flags.resolve().task.name,
            exit_screens.policy_at(policy, threshold, screen, text_only=text_only),
        )
        exit_screens.evaluate(traces, task, at, groups, limit, json_file, png, screen)
        return
    from reason_spec.cli import exit_trial_screens

    if png is not None:
        raise SettingsError(f"--png draws a curve of policies, which --rule {rule} has not: leave it out")
    if fresh and output is None:
        raise SettingsError("--fresh needs --output: without it nothing is kept")
    exit_trial_screens.evaluate_with_trials(
        traces,
        exit_trial_screens.settings_for_trials(flags, rule, policy, threshold),
        exit_trial_screens.ReplayOptions(concurrency, output, fresh),
        groups=groups,
        limit=limit,
        json_file=json_file,
        screen=screen,
    )


def _refuse_for_policy(given: Mapping[str, Any]) -> None:
    """Raise SettingsError where an option is given that only rules with trial answers have."""
    names = ("prompt", *MODEL_FLAGS, "output", "fresh")
    if named := next((name for name in names if given[name]), None):
        raise SettingsError(
            f"--{named.replace('_', '-')} is for rules that ask a model for trial answers, and --rule policy "
            "asks none: leave it out, or add --rule probes, deer or dynasor"
        )


@exit_app.command(
    "train",
    help="Train a policy on stored answers with thinking.\n\n"
    "A value that a step states is a right stop if the answer ends with it. The threshold is the lowest that "
    "loses at most --loss points of the answers to held-out problems (five folds): an estimate, which tune "
    "exit turns into a bound on other answers.",
)
@takes_flags("task")
def exit_train(
    traces: TracesArgument,
    output: Annotated[Path, typer.Option(help="File for the policy.", show_default=False)],
    flags: Flags,
    solved: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Problems with worked solutions in GSM8K's form, which teach what a question asks for. "
            "Default: this part of the policy that ships.",
        ),
    ] = None,
    loss: Annotated[float, typer.Option(min=0, max=100, help="Loss of the threshold in points.")] = 1.0,
    group: GroupsOption = None,
    reading_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A small model that reads along, such as models:smollm2-gsm8k. Default: the text alone.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the folds and the fit.")] = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli import exit_screens
    from reason_spec.cli.screen import Screen

    exit_screens.train_policy(
        traces,
        flags.resolve().task.name,
        output,
        solved=solved,
        loss=loss / 100,
        groups=tuple(group or ()),
        reading_model=reading_model,
        seed=seed,
        screen=Screen(quiet=quiet, as_json=as_json),
    )


@takes_flags("task")
def tune_exit(
    traces: TracesArgument,
    flags: Flags,
    loss: Annotated[
        float, typer.Option(help="Allowed loss in points of answers: right in full, wrong when shortened.")
    ] = 1.0,
    confidence: Annotated[float, typer.Option(help="Confidence that the loss is no higher.")] = 0.95,
    policy: PolicyOption = None,
    text_only: TextOnlyOption = False,
    thresholds: Annotated[
        str | None, typer.Option(metavar="A,B", help="Thresholds to try. Default: 20 from 0.995 to 0.5.")
    ] = None,
    group: GroupsOption = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the policy with the chosen threshold.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the lowest threshold of an exit policy that keeps a stated loss of answers."""
    from reason_spec.cli import exit_screens
    from reason_spec.cli.screen import Screen
    from reason_spec.cli.tune import comma_values
    from reason_spec.lab.exit.tuning import THRESHOLDS
    from reason_spec.lab.tuning.calibration import LossTest

    screen = Screen(quiet=quiet, as_json=as_json)
    found = exit_screens.tune(
        traces,
        flags.resolve().task.name,
        exit_screens.policy_at(policy, None, screen, text_only=text_only),
        LossTest(loss / 100, confidence),
        comma_values("--thresholds", thresholds, float) or THRESHOLDS,
        groups=tuple(group or ()),
        output=output,
        screen=screen,
    )
    raise typer.Exit(found)
