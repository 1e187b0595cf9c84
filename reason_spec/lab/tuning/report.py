"""The result of a search: sentences, settings to use, numbers and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from reason_spec.evaluation.amounts import points_text
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.records import write_text, writing
from reason_spec.evaluation.view import RunView
from reason_spec.lab.tuning.candidates import SearchSpace
from reason_spec.lab.tuning.halving import CandidateResult, Choice, Rung, SearchPlan, trial_of
from reason_spec.settings import Settings

SETTINGS = "tuned.yaml"
NUMBERS = "tuning.json"
NOISY = 0.1
"""Change of the machine's speed, as a share, above which small differences are not comparable."""
MIN_FOR_DRIFT = 8
"""Least number of baseline answers for a drift."""
_OTHER_FILE = "Name another place."


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search.

    ``drift`` is the relative slow-down of the target alone in the second half of the search, None if unknown.
    ``run`` is the folder of the answers, ``output`` the settings file.
    """

    choice: Choice
    settings: Settings
    drift: float | None
    left_out: Mapping[str, str]
    run: Path
    output: Path
    png: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; shares are between 0 and 1."""
        choice, plan = self.choice, self.choice.plan
        return {
            "strategy": self.settings.strategy.name,
            "chosen": None if choice.chosen is None else choice.chosen.candidate.name,
            "conclusion": conclusion(self),
            "warnings": warnings(self),
            "loss": plan.test.loss,
            "confidence": plan.test.confidence,
            "loss_tested": plan.tests_loss,
            "confidence_of_one_test": plan.final_test.confidence,
            "drift": self.drift,
            "left_out": dict(self.left_out),
            "rungs": [_rung_record(rung) for rung in choice.rungs],
            "final": None if choice.final is None else _rung_record(choice.final),
            "settings_file": str(self.output),
        }


def drift_of(pace: Sequence[float]) -> float | None:
    """Return the relative rise of the median from the first half to the second, in order of time."""
    if len(pace) < MIN_FOR_DRIFT:
        return None
    half = len(pace) // 2
    return median(pace[half:]) / median(pace[:half]) - 1


def announce(space: SearchSpace, plan: SearchPlan, view: RunView) -> None:
    """Print the numbers of candidates and problems, and the strategies that are left out."""
    num_lossy = sum(not candidate.is_exact for candidate in space.candidates)
    rungs = f" in rungs of {', '.join(map(str, plan.rungs))}" if plan.rungs else ""
    selection = f"{len(plan.selection)} problems to choose on{rungs}, " if plan.selection else ""
    compared = len(space.candidates) if plan.tests_loss else len(space.candidates) - num_lossy
    view.say(
        f"{compared} candidates beside the target alone; {selection}{len(plan.final)} for the final test"
    )
    for strategy, reason in space.left_out.items():
        view.say(f"left out: {strategy}: {reason}")
    if num_lossy and not plan.tests_loss:
        view.say(_too_few(plan, num_lossy))


def write(found: Tuning) -> None:
    """Write the settings, the numbers, and the picture where one is wanted.

    Raises:
        DataError: a file cannot be written.
    """
    write_text(found.output, heading(found) + found.settings.to_yaml(), _OTHER_FILE)
    numbers = json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n"
    write_text(found.run / NUMBERS, numbers, _OTHER_FILE)
    if found.png is not None:
        with writing(found.png, "Name another file with --png."):
            draw(found, found.png)


def conclusion(found: Tuning) -> str:
    """Return the choice and its reason, in a few sentences."""
    choice, plan = found.choice, found.choice.plan
    chosen = choice.chosen
    sentences = []
    if chosen is None:
        sentences.append(
            f"Nothing is shown to be faster than the target alone: the settings name {BASELINE}."
        )
    else:
        speed = chosen.speedup
        assert speed is not None, "a candidate without a speed-up is not chosen"
        sentences.append(
            f"{chosen.candidate.name}: {speed.value:.2f}x as fast as the target alone "
            f"({speed.low:.2f} to {speed.high:.2f}) on {chosen.num_problems} problems that had no part in "
            "the choice."
        )
        sentences.append(_about_loss(chosen, plan))
    sentences += _unproven(choice)
    return " ".join(sentences)


def _about_loss(chosen: CandidateResult, plan: SearchPlan) -> str:
    if chosen.candidate.is_exact:
        return "It writes the target's own tokens, so no answer is lost."
    return (
        f"It loses at most {points_text(plan.test.loss)} of answers, with {100 * plan.test.confidence:g} % "
        f"confidence: {chosen.num_lost} of {chosen.num_problems} were lost."
    )


def _unproven(choice: Choice) -> list[str]:
    """Return, for faster candidates whose loss is not shown to be small, the number of problems needed."""
    plan, final = choice.plan, choice.final
    if final is None:
        return []
    least = 1.0 if choice.chosen is None else choice.chosen.speed
    sentences = []
    for item in final.results:
        if item.candidate.is_exact or item.speed <= least or plan.final_test.passes(trial_of(item)):
            continue
        needed = plan.final_test.problems_needed(trial_of(item)) if item.num_problems else None
        hope = (
            f"with the same share lost, it takes {needed} problems for the final test to show it"
            if needed is not None
            else "more problems would not show it"
        )
        sentences.append(
            f"{item.candidate.name} ({item.speed:.2f}x) is not shown to lose at most "
            f"{points_text(plan.test.loss)}: {item.num_lost} of {item.num_problems} were lost; {hope}."
        )
    return sentences


def warnings(found: Tuning) -> list[str]:
    """Return reasons to doubt the numbers."""
    choice, plan = found.choice, found.choice.plan
    notes = []
    if found.drift is not None and abs(found.drift) > NOISY:
        change = "slower" if found.drift > 0 else "faster"
        notes.append(
            f"The machine is noisy: the target alone was {abs(found.drift):.0%} {change} in the second half "
            "of the search than in the first. Small differences of speed mean nothing; measure again when "
            "nothing else runs."
        )
    if plan.num_tested and not plan.tests_loss:
        notes.append(_too_few(plan, None))
    finalists = () if choice.final is None else choice.final.results
    differing = [item for item in finalists if item.candidate.is_exact and item.num_lost]
    notes += [
        f"{item.candidate.name} should write the target's own tokens, and {item.num_lost} of "
        f"{item.num_problems} answers were lost: the engine's numbers depend on what else is in a pass."
        for item in differing
    ]
    return notes


def _too_few(plan: SearchPlan, num_lossy: int | None) -> str:
    others = "candidates" if num_lossy is None else f"{num_lossy} candidates"
    number = len(plan.selection) + len(plan.final)
    return (
        f"{number} problems are too few to show a loss of at most {points_text(plan.test.loss)}: {others} "
        f"that may change answers were left out. Give {plan.num_needed} problems or more, or allow more "
        "with --loss."
    )


def heading(found: Tuning) -> str:
    """Return the comment above the settings: how they were chosen."""
    choice, plan = found.choice, found.choice.plan
    lines = [conclusion(found)]
    rungs = ", ".join(f"{rung.num_problems} problems: {len(rung.results)}" for rung in choice.rungs)
    if rungs:
        lines.append(f"Chosen by successive halving. Candidates by rung: {rungs}.")
    if choice.final is not None:
        lines.append(
            f"Final test on {choice.final.num_problems} further problems, "
            f"{len(choice.final.results)} candidates, each loss at {100 * plan.final_test.confidence:g} %."
        )
    lines += warnings(found)
    lines.append("It holds for problems like those it was measured on, on this machine, with these models.")
    return "".join(f"# {line}\n" for line in lines)


def draw(found: Tuning, file: Path) -> None:
    """Plot the share of lost answers, with its bound, against the speed-up; one colour for each rung."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for title, rung in titled(found.choice):
        items = [item for item in rung.results if item.speedup is not None and item.num_problems]
        speeds = [item.speed for item in items]
        lost = [100 * item.num_lost / item.num_problems for item in items]
        label = f"{title}, {rung.num_problems} problems"
        if rung is not found.choice.final:
            axes.plot(speeds, lost, "o", alpha=0.35, label=label)
            continue
        bounds = [
            0.0 if item.candidate.is_exact else 100 * item.loss_upper - share
            for item, share in zip(items, lost, strict=True)
        ]
        axes.errorbar(speeds, lost, yerr=[[0.0] * len(items), bounds], fmt="o", capsize=4, label=label)
        for item, share, bound in zip(items, lost, bounds, strict=True):
            axes.annotate(
                item.candidate.name,
                (item.speed, share + bound),
                xytext=(4, 4),
                textcoords="offset points",
                rotation=35,
                fontsize=8,
            )
    test = found.choice.plan.test
    axes.axhline(100 * test.loss, color="black", linestyle="--", label="allowed")
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_ylim(bottom=-20 * test.loss, top=max(10.0, 500 * test.loss))
    axes.margins(x=0.15)
    axes.set_xlabel("speed-up over the target alone")
    axes.set_ylabel("answers lost, points (upper bound)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def titled(choice: Choice) -> list[tuple[str, Rung]]:
    """Return the rungs and the final test with their titles."""
    titled = [(f"rung {number}", rung) for number, rung in enumerate(choice.rungs, start=1)]
    return titled if choice.final is None else [*titled, ("final test", choice.final)]


def _rung_record(rung: Rung) -> dict[str, Any]:
    return {
        "num_problems": rung.num_problems,
        "baseline_right": rung.baseline_right,
        "candidates": [
            {
                "name": item.candidate.name,
                "settings_hash": item.candidate.key,
                "exact": item.candidate.is_exact,
                "num_problems": item.num_problems,
                "speedup": None if item.speedup is None else item.speedup._asdict(),
                "num_right": item.num_right,
                "num_lost": item.num_lost,
                "loss_upper": item.loss_upper,
                "dropped": item.dropped or None,
            }
            for item in rung.results
        ],
    }
