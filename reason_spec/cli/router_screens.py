"""`reason-spec router` on the screen: labelling, training and measuring."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from reason_spec.accelerator import Accelerator
from reason_spec.cli.screen import Screen
from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.record_folder import problem_key
from reason_spec.evaluation.records import write_text, writing
from reason_spec.evaluation.sources import Sources
from reason_spec.lab.router_training.advantage import Labeller, LabelOptions
from reason_spec.lab.router_training.label_store import About, LabelFolder, Labels, read_all_labels
from reason_spec.lab.router_training.measuring import RouterReport, measure
from reason_spec.lab.router_training.training import ModelKind, train
from reason_spec.routers.base import create_router
from reason_spec.routers.learned import RouterModel
from reason_spec.settings import RouterSettings, Settings
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

_REWARDED = "rsd"
"""Strategy whose verifier is the reward model of the settings."""
_REWARD_SECONDS = 600.0


# Labels --------------------------------------------------------------------------------------


async def collect_labels(
    settings: Settings,
    sources: Sources,
    options: LabelOptions,
    output: Path,
    *,
    concurrency: int,
    fresh: bool,
    screen: Screen,
) -> Labels:
    """Label the steps of all problems into a folder; labelled problems are skipped.

    Raises:
        DataError: a problem has no answer to grade rollouts by.
        SettingsError: labels by reward are wanted, and there is no reward model.
    """
    if options.label == "rollouts" and sources.num_without_answer:
        raise DataError(
            f"{sources.num_without_answer} of {len(sources.problems)} problems have no answer to grade "
            "rollouts by: leave them out, or label with a reward model (--label reward)"
        )
    about = About.of(settings, options)
    with LabelFolder(output, about, fresh=fresh) as folder:
        left = [problem for problem in sources.problems if problem_key(problem) not in folder.problems]
        if len(left) < len(sources.problems):
            screen.say(f"{len(sources.problems) - len(left)} problems are labelled in {output} already.")
        try:
            if left:
                await _label(settings, left, options, folder, concurrency, screen)
        except asyncio.CancelledError:
            screen.say(f"{len(folder.problems)} problems are kept in {output}; the same command goes on.")
            raise
        return Labels(about, dict(folder.problems))


async def _label(
    settings: Settings,
    problems: Sequence[Problem],
    options: LabelOptions,
    folder: LabelFolder,
    concurrency: int,
    screen: Screen,
) -> None:
    accelerator = _with_reward(settings, needed=options.label == "reward")
    reward = accelerator.verifier_for(_REWARDED) if _REWARDED in accelerator.strategies else None
    screen.say("Starting the models")
    async with accelerator:
        with Grader() as grader:
            labeller = Labeller(accelerator, options, grader, reward)

            async def label(problem: Problem) -> None:
                folder.append(problem_key(problem), await labeller.label(problem))

            await screen.for_each(problems, concurrency, label, "Labelling", "problems")


def _with_reward(settings: Settings, *, needed: bool) -> Accelerator:
    """Make an accelerator with the reward model of the settings, where there is one.

    Raises:
        SettingsError: there is none, and it is needed.
    """
    # Many verdicts wait for one thread, so a late one is not an error.
    named: dict[str, Any] = {
        "name": "reward",
        "threshold": None,
        "thresholds": {},
        "deadline": _REWARD_SECONDS,
    }
    rewarded = settings.model_copy(update={"verifier": settings.verifier.model_copy(update=named)})
    try:
        return Accelerator.from_settings(rewarded, strategies=(_REWARDED,))
    except SettingsError:
        if needed:
            raise
        return Accelerator.from_settings(settings, strategies=("speculative",))


def labels_record(labels: Labels) -> dict[str, int]:
    """Count the labelled steps."""
    steps = labels.steps
    return {
        "problems": len(labels.problems),
        "steps": len(steps),
        "different": sum(step.value_own is not None for step in steps),
        "better_by_target": sum(step.advantage > 0 for step in steps),
        "worse_by_target": sum(step.advantage < 0 for step in steps),
    }


def labels_line(labels: Labels, output: Path) -> str:
    """Describe the content of a folder of labels."""
    counts = labels_record(labels)
    return (
        f"{counts['problems']} problems, {counts['steps']} drafted steps. {counts['different']} differ from "
        f"the target's own, which is better in {counts['better_by_target']} and worse in "
        f"{counts['worse_by_target']}. "
        f"Labels in {output}"
    )


# Training and measuring -------------------------------------------------------------------------


def train_router(folders: Sequence[Path], output: Path, kind: ModelKind | None, loss: float) -> RouterModel:
    """Train a router on folders of labels and write its file."""
    model = train(read_all_labels(folders), kind=kind, loss=loss)
    remedy = "Name another file with --output."
    with writing(output, remedy):
        output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, model.to_json(), remedy)
    return model


def trained_line(model: RouterModel, output: Path) -> str:
    """Describe the trained router."""
    trained = model.trained
    aucs = ", ".join(f"{name} {auc:.3f}" for name, auc in trained["held_out_auc"].items())
    return (
        f"{model.model.kind}, on {trained['steps']} steps of {trained['problems']} problems; held-out area "
        f"under the curve: {aucs}. At its threshold of {model.threshold:.3g} it escalates "
        f"{trained['held_out_escalated']:.0%} of the steps and is expected to lose at most "
        f"{trained['loss']:g} answers in a hundred. Written to {output}"
    )


def measure_router(folders: Sequence[Path], settings: RouterSettings) -> RouterReport:
    """Measure a router on folders of labels that it was not trained on.

    Raises:
        SettingsError: the router belongs to other models than the labels.
        DataError: a file is damaged, or there are too few labels.
    """
    labels = read_all_labels(folders)
    return measure(create_router(settings, labels.about.pair), labels)


def print_report(report: RouterReport) -> None:
    """Print a report as tables."""
    console = Console(highlight=False)
    table = RichTable(title=f"{report.num_steps} steps of {report.num_problems} problems")
    for heading in ("order", "AUC", "Spearman", "oracle's area", "won at 10 %", "30 %", "50 %", "all"):
        table.add_column(heading, justify="left" if heading == "order" else "right")
    for curve in report.curves:
        table.add_row(
            curve.name,
            "-" if curve.auc is None else f"{curve.auc:.3f}",
            "-" if curve.spearman is None else f"{curve.spearman:.3f}",
            f"{curve.share_of_oracle:.0%}",
            *(f"{value_at(curve.escalated, curve.won, share):.1f}" for share in (0.1, 0.3, 0.5, 1.0)),
        )
    console.print(table)
    low, high = report.auc_interval
    share_low, share_high = report.share_interval
    console.print(
        f"AUC {low:.3f}-{high:.3f}, oracle's area {share_low:.0%}-{share_high:.0%} (95 %, problems "
        "resampled). "
        f"Calibration error {report.calibration_error:.3f}, Brier {report.brier:.3f}.\n"
        f"Threshold {report.threshold:.3g}: {report.escalated:.0%} escalated, "
        f"{100 * report.missed:.1f} answers in a hundred missed, {report.accuracy:.0%} of the steps as their "
        "label.",
        soft_wrap=True,
    )


def value_at(x: Sequence[float], y: Sequence[float], place: float) -> float:
    """Read a curve between its points."""
    import numpy as np

    return float(np.interp(place, x, y))
