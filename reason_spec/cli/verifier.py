"""The commands of ``verifier``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reason_spec.cli.options import FreshOption, JsonOption, QuietOption

if TYPE_CHECKING:
    from reason_spec.lab.verifier_training.recipe import TrainedVerifier

verifier_app = typer.Typer(no_args_is_help=True, help="Train the encoder of the verifier `semantic`.")


@verifier_app.command(
    "train",
    help="Train the verifier `semantic` on steps of your own domain.\n\n"
    "FILES are jsonl, one object a line: a question with its solutions by writer, of which pairs of steps "
    'are made by machine ({"question": ..., "solutions": {"model": "text", ...}}), or labelled pairs '
    '({"question": ..., "a": ..., "b": ..., "same": true}). Every fifth problem is only '
    "reported on, one of twenty sets the threshold, the others train. A stopped training continues with the "
    "same command. Use the folder with --set verifier.semantic_model=DIR.",
)
def verifier_train(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Solutions or labelled pairs.")],
    output: Annotated[Path, typer.Option(help="Folder for the encoder.", show_default=False)],
    epochs: Annotated[float, typer.Option(min=0.01, help="Times that all pairs are trained on.")] = 1.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the processor.")] = 1,
    risk: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of changed steps that the threshold may accept.")
    ] = 0.003,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="WRITER", help="Solutions not to use; several times for several."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            help="What to begin with: packaged (trained on mathematics), minilm, or a folder that this wrote."
        ),
    ] = "packaged",
    seed: Annotated[int, typer.Option(help="Of the choice of pairs and the training.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unusable lines out.")] = False,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    import shutil

    from reason_spec.cli.screen import Screen
    from reason_spec.lab.verifier_training.recipe import train_verifier
    from reason_spec.lab.verifier_training.source import read_pairs
    from reason_spec.lab.verifier_training.training import TrainingPlan
    from reason_spec.verifiers.pair_encoder import PACKAGED, check_folder

    trained = PACKAGED if start == "packaged" else None if start == "minilm" else Path(start)
    if trained is not None:
        # Before the pairs are made, which takes a minute.
        check_folder(trained)
    screen = Screen(as_json=as_json, quiet=quiet)
    screen.say("Making pairs of steps")
    with screen.counting("Making pairs of steps", None, "lines") as each:
        pairs = read_pairs(files, seed=seed, leave_out=leave_out or (), skip_bad=skip_bad, each=each)
    if fresh:
        shutil.rmtree(output / "checkpoints", ignore_errors=True)
    screen.say(f"Training the encoder; {len(pairs)} pairs were made")
    with screen.bar("batches") as bar:
        task = bar.add_task("Training", total=None)

        def show(step: int, steps: int) -> None:
            bar.update(task, completed=step, total=steps)
            if bar.disable and step % max(1, steps // 10) == 0:
                screen.say(f"  {step} of {steps} batches")

        found = train_verifier(
            pairs,
            output,
            TrainingPlan(epochs, threads, seed),
            trained=trained,
            risk=risk,
            on_step=show,
        )
    if as_json:
        typer.echo(json.dumps({"output": str(output), **asdict(found)}))
    else:
        typer.echo(trained_line(found, output))


def trained_line(found: TrainedVerifier, output: Path) -> str:
    """Return what a training came to, in two sentences."""
    same, changed = found.same_interval, found.changed_interval
    return (
        f"{output}: trained on {found.num_trained} pairs. On problems left out, {found.num_same_accepted} of "
        f"{found.num_same} same steps were accepted ({same.low:.1%} to {same.high:.1%}) and "
        f"{found.num_changed_accepted} of {found.num_changed} changed ones ({changed.low:.2%} to "
        f"{changed.high:.2%}), at a threshold of {found.calibration.threshold:.3f}."
    )
