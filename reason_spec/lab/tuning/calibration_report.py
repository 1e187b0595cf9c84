"""The files of a threshold search: settings to use, numbers, and curves."""

from __future__ import annotations

import json
from pathlib import Path

from reason_spec.evaluation.amounts import points_text
from reason_spec.evaluation.records import writing
from reason_spec.lab.tuning.calibration import ThresholdTrials, Trial
from reason_spec.settings import Settings

SETTINGS = "calibrated.yaml"
NUMBERS = "calibration.json"
CURVES = "calibration.png"


def drop_earlier(folder: Path) -> None:
    """Remove the files of an earlier search, so that outdated settings are not used.

    Raises:
        DataError: the folder cannot be written.
    """
    with writing(folder):
        for name in (SETTINGS, NUMBERS, CURVES):
            (folder / name).unlink(missing_ok=True)


def write(found: ThresholdTrials, usable: Settings | None, folder: Path, *, plot: bool) -> None:
    """Write the numbers, the curves, and the settings where a threshold was chosen.

    Raises:
        DataError: the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NUMBERS).write_text(json.dumps(found.to_dict(), indent=2) + "\n", encoding="utf-8")
        if usable is not None:
            (folder / SETTINGS).write_text(_heading(found) + usable.to_yaml(), encoding="utf-8")
        if plot:
            draw(found, folder / CURVES)


def conclusion(found: ThresholdTrials) -> str:
    """Return which threshold holds the loss, or why none does, in a sentence or two."""
    test, chosen = found.test, found.chosen
    confidence = f"with {100 * test.confidence:g} % confidence"
    if chosen is not None:
        return (
            f"{found.verifier} {chosen.threshold:g} under {found.strategy} loses at most "
            f"{points_text(test.loss)} of answers, {confidence}: {_lost(chosen)}."
        )
    strictest = found.trials[0]
    needed = test.problems_needed(strictest)
    hope = (
        f"With the same share lost, {needed} problems would show it."
        if needed is not None
        else "More problems would not show it: try stricter thresholds, another verifier, or a higher --loss."
    )
    return (
        f"No threshold of {found.verifier} is shown to lose at most {points_text(test.loss)} of answers, "
        f"{confidence}. At {strictest.threshold:g}, {_lost(strictest)}. {hope}"
    )


def _heading(found: ThresholdTrials) -> str:
    assert found.chosen is not None, "settings are written where a threshold was chosen"
    return (
        f"# {conclusion(found)}\n"
        "# It holds for problems like those it was measured on, and for these settings as a whole.\n"
    )


def _lost(trial: Trial) -> str:
    return f"{trial.num_lost} of {trial.num_problems} were lost"


def draw(found: ThresholdTrials, file: Path) -> None:
    """Plot the loss with its bound, and how much the draft writes, against the threshold."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    test, trials = found.test, found.trials
    thresholds = [trial.threshold for trial in trials]
    figure, (risk, acceptance) = pyplot.subplots(2, 1, figsize=(7, 6), sharex=True)
    lost = [100 * trial.num_lost / trial.num_problems for trial in trials]
    bounds = [100 * test.bound(trial) for trial in trials]
    risk.plot(thresholds, lost, marker="o", label="answers lost")
    risk.fill_between(thresholds, lost, bounds, alpha=0.2, label=f"{100 * test.confidence:g} % bound")
    risk.axhline(100 * test.loss, color="black", linestyle="--", label="allowed")
    risk.set_ylabel("points of answers")
    curves = (
        ("steps by the draft", [trial.drafted_steps for trial in trials]),
        ("verdicts that accept", [trial.accepted for trial in trials]),
    )
    for label, shares in curves:
        percents = [float("nan") if value is None else 100 * value for value in shares]
        acceptance.plot(thresholds, percents, marker="o", label=label)
    acceptance.set_ylabel("%")
    acceptance.set_xlabel(f"threshold of {found.verifier} under {found.strategy}, strict to lax")
    acceptance.invert_xaxis()
    for axes in (risk, acceptance):
        axes.grid(alpha=0.3)
        if found.chosen is not None:
            axes.axvline(found.chosen.threshold, color="green", linestyle=":", label="chosen")
        axes.legend()
    risk.set_title(f"{trials[0].num_problems} problems")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
