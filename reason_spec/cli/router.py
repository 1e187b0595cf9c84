"""The commands of ``router``."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from reason_spec.cli.command import run_interruptible, waiting
from reason_spec.cli.flags import GENERATE_FLAGS, PROBLEM_FLAGS, Flags, takes_flags
from reason_spec.cli.options import FreshOption, JsonOption, QuietOption, SourcesArgument
from reason_spec.errors import unknown_name

router_app = typer.Typer(
    no_args_is_help=True,
    help="Train and measure a router, which chooses the steps that the target writes.",
)

LabelsArgument = Annotated[list[Path], typer.Argument(metavar="LABELS", help="Folders of router collect.")]


@router_app.command(
    "collect",
    help="Label drafted steps: how much better is the target's step at the same position?\n\n"
    "Both models write each step. Where the steps differ, the target continues each several times and the "
    "answers are graded, or a reward model rates them. A stopped run continues with the same command.",
)
@takes_flags(*PROBLEM_FLAGS, *GENERATE_FLAGS, "prompt", "target", "draft", "engine", "seed", "max_tokens")
def router_collect(
    output: Annotated[Path, typer.Option(help="Folder for the labels.", show_default=False)],
    flags: Flags,
    sources: SourcesArgument = None,
    label: Annotated[str, typer.Option(help="Value of a step: rollouts or reward.")] = "rollouts",
    rollouts: Annotated[int, typer.Option(min=1, help="Continuations of each step.")] = 4,
    rollout_temperature: Annotated[
        float, typer.Option(min=0, help="Temperature of the continuations.")
    ] = 0.7,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at once.")] = 16,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli import router_screens
    from reason_spec.cli.screen import Screen
    from reason_spec.evaluation.sources import generate_problems, read_sources
    from reason_spec.lab.router_training.advantage import LabelOptions

    if label not in ("rollouts", "reward"):
        raise unknown_name("label", label, ("rollouts", "reward"))
    settings = flags.resolve()
    chosen = flags.problems(settings, sources, read_sources, partial(generate_problems, "train"))
    screen = Screen(as_json=as_json, quiet=quiet)
    options = LabelOptions(label, rollouts, rollout_temperature)  # type: ignore[arg-type]
    work = router_screens.collect_labels(
        settings, chosen, options, output, concurrency=concurrency, fresh=fresh, screen=screen
    )
    labels = run_interruptible(work)
    if as_json:
        typer.echo(json.dumps({"output": str(output), **router_screens.labels_record(labels)}))
    else:
        typer.echo(router_screens.labels_line(labels, output))


@router_app.command("train")
def router_train(
    labels: LabelsArgument,
    output: Annotated[Path, typer.Option(help="File for the router.", show_default=False)],
    model: Annotated[
        str, typer.Option(help="logistic, boosting, mean (of both), or auto: the best.")
    ] = "auto",
    loss: Annotated[
        float, typer.Option(min=0, help="Loss of the threshold in percentage points of answers.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Train a router on labelled steps."""
    from reason_spec.cli import router_screens
    from reason_spec.lab.router_training.training import MODEL_KINDS

    if model not in ("auto", *MODEL_KINDS):
        raise unknown_name("model", model, ("auto", *MODEL_KINDS))
    with waiting("Training", as_json):
        trained = router_screens.train_router(
            labels, output, next((kind for kind in MODEL_KINDS if kind == model), None), loss
        )
    if as_json:
        typer.echo(json.dumps({"output": str(output), "threshold": trained.threshold, **trained.trained}))
    else:
        typer.echo(router_screens.trained_line(trained, output))


@router_app.command("eval")
@takes_flags("router")
def router_eval(
    labels: LabelsArgument,
    flags: Flags,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="A trained router. Default: the demonstration pair's.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a router on labelled steps that it was not trained on."""
    from reason_spec.cli import router_screens

    settings = flags.resolve({"router.name": flags.given["router"] or "learned", "router.file": file})
    with waiting("Measuring", as_json):
        report = router_screens.measure_router(labels, settings.router)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        router_screens.print_report(report)
