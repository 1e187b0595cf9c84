"""The commands of ``verifier``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from reason_spec.cli.command import run_interruptible
from reason_spec.cli.flags import GENERATE_FLAGS, PROBLEM_FLAGS, Flags, takes_flags
from reason_spec.cli.options import FreshOption, JsonOption, QuietOption
from reason_spec.errors import SettingsError

if TYPE_CHECKING:
    from reason_spec.cli.screen import Screen
    from reason_spec.lab.verifier_training.mining import StepPair
    from reason_spec.lab.verifier_training.recipe import TrainedVerifier
    from reason_spec.lab.verifier_training.token_training import TrainedJudge
    from reason_spec.lab.verifier_training.training import TrainingPlan


class Level(Enum):
    """What a training is for."""

    step = "step"
    token = "token"


_EPOCHS, _RISK, _START = 1.0, 0.003, "packaged"
_TOKEN_FLAGS: Final = ("limit", "sample", "generate", "prompt", "target", "draft", "max_tokens")

verifier_app = typer.Typer(
    no_args_is_help=True, help="Train the encoder of the verifier `semantic`, or a judge of draft tokens."
)


@verifier_app.command(
    "train",
    help="Train the verifier `semantic` on steps of your own domain.\n\n"
    "FILES are jsonl, one object a line: a question with its solutions by writer, of which pairs of steps "
    'are made by machine ({"question": ..., "solutions": {"model": "text", ...}}), or labelled pairs '
    '({"question": ..., "a": ..., "b": ..., "same": true}). Every fifth problem is only '
    "reported on, one of twenty sets the threshold, the others train. A stopped training continues with the "
    "same command. Use the folder with --set verifier.semantic_model=DIR.\n\n"
    "With --level token it trains the judge of strategy.acceptance: FILES are then problems. The target "
    "answers them, and continues after draft tokens that it would refuse; a token is right if the answer "
    "stays the same. Use the folder with --acceptance judge --set target.torch.judge=DIR.",
)
@takes_flags(*PROBLEM_FLAGS, *GENERATE_FLAGS, "prompt", "target", "draft", "max_tokens")
def verifier_train(
    flags: Flags,
    output: Annotated[Path, typer.Option(help="Folder for what is trained.", show_default=False)],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILES", help="Solutions, labelled pairs or problems.")
    ] = None,
    level: Annotated[
        Level, typer.Option(help="step: the encoder of `semantic`; token: the judge of draft tokens.")
    ] = Level.step,
    labels: Annotated[int, typer.Option(min=1, help="token: labelled draft tokens of a problem.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, help="token: problems at once.")] = 8,
    epochs: Annotated[
        float, typer.Option(min=0, help="Times that all pairs are trained on; 0: only calibrate.")
    ] = _EPOCHS,
    hard_pairs: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="step: draw N pairs, more often those that --start has wrong; 0: each pair once.",
        ),
    ] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the processor.")] = 1,
    risk: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.5,
            help="Share of changed steps to accept in calibration; on other problems it is more.",
        ),
    ] = _RISK,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="WRITER", help="Solutions not to use; several times for several."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            help="What to begin with: packaged (trained on mathematics), minilm, or a folder that this wrote."
        ),
    ] = _START,
    seed: Annotated[int, typer.Option(help="Of the choice of pairs and the training.")] = 0,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli.screen import Screen
    from reason_spec.lab.verifier_training.training import TrainingPlan

    screen = Screen(as_json=as_json, quiet=quiet)
    found: TrainedVerifier | TrainedJudge
    if level is Level.token:
        changed = {
            "epochs": epochs != _EPOCHS,
            "hard-pairs": hard_pairs > 0,
            "threads": threads != 1,
            "risk": risk != _RISK,
            "leave-out": leave_out,
            "start": start != _START,
        }
        _refuse_options(changed, Level.step)
        found = _train_judge(flags, files, output, (labels, concurrency, seed, fresh), screen)
        line = judged_line(found, output)
    else:
        _refuse_options({name.replace("_", "-"): flags.given[name] for name in _TOKEN_FLAGS}, Level.token)
        pairs_of = partial(_read_pairs, flags, files or (), seed, leave_out or (), screen)
        plan = TrainingPlan(epochs, threads, seed, hard_pairs)
        found = _train_encoder(pairs_of, output, plan, start, risk, screen, fresh=fresh)
        line = trained_line(found, output)
    typer.echo(json.dumps({"output": str(output), **asdict(found)}) if as_json else line)


def _refuse_options(given: Mapping[str, object], level: Level) -> None:
    """Raise SettingsError where an option of the other level is given: it would do nothing."""
    if named := next((name for name, value in given.items() if value), None):
        raise SettingsError(f"--{named} is of --level {level.value}: leave it out, or train that level")


def _train_judge(
    flags: Flags,
    files: list[str] | None,
    output: Path,
    labelling: tuple[int, int, int, bool],
    screen: Screen,
) -> TrainedJudge:
    from reason_spec.cli.token_judge_screens import LabellingOptions, train_token_judge
    from reason_spec.evaluation.sources import generate_problems, read_sources

    settings = flags.resolve({"sampling.temperature": 0.0})
    chosen = flags.problems(settings, files, read_sources, partial(generate_problems, "train"))
    options = LabellingOptions(*labelling)
    return run_interruptible(train_token_judge(settings, chosen, options, output, screen))


def _read_pairs(
    flags: Flags, files: Sequence[str], seed: int, leave_out: Sequence[str], screen: Screen
) -> list[StepPair]:
    from reason_spec.lab.verifier_training.source import read_pairs

    if not files:
        raise SettingsError("verifier train needs FILES of solutions or labelled pairs")
    screen.say("Making pairs of steps")
    with screen.counting("Making pairs of steps", None, "lines") as each:
        return read_pairs(
            list(map(Path, files)),
            seed=seed,
            leave_out=leave_out,
            skip_bad=flags.given["skip_bad"],
            each=each,
        )


def _train_encoder(
    read: Callable[[], list[StepPair]],
    output: Path,
    plan: TrainingPlan,
    start: str,
    risk: float,
    screen: Screen,
    *,
    fresh: bool,
) -> TrainedVerifier:
    import shutil

    from reason_spec.evaluation.records import writing
    from reason_spec.lab.verifier_training.recipe import train_verifier
    from reason_spec.shipped import shipped_weights
    from reason_spec.verifiers.pair_encoder import check_folder

    trained = (
        shipped_weights("semantic") if start == "packaged" else None if start == "minilm" else Path(start)
    )
    # Before the pairs are made, which takes a minute.
    if trained is not None:
        check_folder(trained)
    if plan.hard_pairs and (trained is None or not plan.epochs):
        raise SettingsError(
            "--hard-pairs needs a trained encoder to begin with (--start) and --epochs above 0"
        )
    is_new = not output.exists()
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    try:
        pairs = read()
    except BaseException:
        if is_new:
            output.rmdir()
        raise
    if fresh:
        shutil.rmtree(output / "checkpoints", ignore_errors=True)
    screen.say(f"Training the encoder; {len(pairs)} pairs were made")
    with screen.bar("") as bar:
        scored = bar.add_task("Reading pairs", total=None, visible=False)
        task = bar.add_task("Training", total=None, visible=not plan.hard_pairs)

        def show_scored(done: int, number: int) -> None:
            bar.update(scored, completed=done, total=number, visible=True)
            if bar.disable and done == number:
                screen.say(f"  read {number} pairs to find the hard ones")

        def show(step: int, steps: int) -> None:
            bar.update(task, completed=step, total=steps, visible=True)
            if bar.disable and step % max(1, steps // 10) == 0:
                screen.say(f"  {step} of {steps} batches")

        return train_verifier(
            pairs, output, plan, trained=trained, risk=risk, on_step=show, on_scored=show_scored
        )


def trained_line(found: TrainedVerifier, output: Path) -> str:
    """Return what a training came to, in two sentences."""
    same, changed = found.same_interval, found.changed_interval
    return (
        f"{output}: trained on {found.num_trained} pairs. On problems left out, {found.num_same_accepted} of "
        f"{found.num_same} same steps were accepted ({same.low:.1%} to {same.high:.1%}) and "
        f"{found.num_changed_accepted} of {found.num_changed} changed ones ({changed.low:.2%} to "
        f"{changed.high:.2%}), at a threshold of {found.calibration.threshold:.3f}."
    )


def judged_line(found: TrainedJudge, output: Path) -> str:
    """Return what the training of a judge came to, in two sentences."""
    right, wrong = found.right_interval, found.wrong_interval
    return (
        f"{output}: trained on {found.num_trained} refused draft tokens; {found.num_problems} problems had "
        f"some. On problems left out, {found.num_right_accepted} of {found.num_right} right ones were "
        f"accepted ({right.low:.1%} to {right.high:.1%}) and {found.num_wrong_accepted} of {found.num_wrong} "
        f"wrong ones ({wrong.low:.1%} to {wrong.high:.1%})."
    )
