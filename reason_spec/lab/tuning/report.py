"""A search as it is shown and stored: a table of its rungs, settings to use, numbers and a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.segment import Segments
from rich.table import Table

from reason_spec.evaluation.console import RunOptions, Screen
from reason_spec.evaluation.report import NONE
from reason_spec.evaluation.store import writing
from reason_spec.evaluation.summary import BASELINE
from reason_spec.lab.tuning.candidates import Ways
from reason_spec.lab.tuning.halving import Choice, Plan, Rung, Standing, trial_of
from reason_spec.lab.tuning.store import write_text
from reason_spec.settings import Settings

SETTINGS = "tuned.yaml"
NUMBERS = "tuning.json"
NOISY = 0.1
"""A machine whose speed changes by more than this share is too busy to compare small differences on."""
MIN_FOR_DRIFT = 8
MAX_SHOWN = 8
"""Rows of a rung in the table; the file of numbers has all."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen, and how.

    ``drift``: how much slower the target alone was in the second half of the search, None where that is not
    known.
    """

    choice: Choice
    settings: Settings
    drift: float | None
    left_out: Mapping[str, str]
    output: Path
    png: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it; shares are not in points."""
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
    """Return by what share the median of the second half is above that of the first, in order of time."""
    if len(pace) < MIN_FOR_DRIFT:
        return None
    half = len(pace) // 2
    return median(pace[half:]) / median(pace[:half]) - 1


def announce(ways: Ways, plan: Plan, screen: Screen) -> None:
    """Say what is compared, on how many problems, and what cannot be."""
    num_lossy = sum(not candidate.is_exact for candidate in ways.candidates)
    rungs = f" in rungs of {', '.join(map(str, plan.rungs))}" if plan.rungs else ""
    selection = f"{len(plan.selection)} problems to choose on{rungs}, " if plan.selection else ""
    compared = len(ways.candidates) if plan.tests_loss else len(ways.candidates) - num_lossy
    screen.say(
        f"{compared} candidates beside the target alone; {selection}{len(plan.final)} for the final test"
    )
    for strategy, reason in ways.left_out.items():
        screen.say(f"left out: {strategy}: {reason}")
    if num_lossy and not plan.tests_loss:
        screen.say(_too_few(plan, num_lossy))


def write(found: Tuning, folder: Path) -> None:
    """Write the settings, the numbers, and the picture where one is wanted.

    Raises:
        DataError: a file cannot be written.
    """
    write_text(found.output, heading(found) + found.settings.to_yaml())
    write_text(folder / NUMBERS, json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n")
    if found.png is not None:
        with writing(found.png, "Name another file with --png."):
            draw(found, found.png)


def show(found: Tuning, folder: Path, screen: Screen, options: RunOptions) -> None:
    """Print the table and what follows from it, or both as JSON."""
    if options.as_json:
        screen.write(json.dumps({**found.to_dict(), "run": str(folder)}, ensure_ascii=False))
        return
    if not options.quiet:
        for title, rung in _titled(found.choice):
            chosen = found.choice.chosen if rung is found.choice.final else None
            _print_whole(table(title, rung, chosen), screen)
            screen.out.print()
    screen.out.print(conclusion(found), soft_wrap=True)
    for warning in warnings(found):
        screen.warn(warning)
    screen.out.print(f"Use it with: --config {found.output}", soft_wrap=True)
    screen.say(f"Answers and numbers: {folder}")


def _print_whole(shown: Table, screen: Screen) -> None:
    """Print a table at its full width, whatever the console's: no number is ever cut."""
    unlimited = screen.out.options.update(max_width=sys.maxsize)
    width = screen.out.measure(shown, options=unlimited).maximum
    lines = screen.out.render(shown, screen.out.options.update(max_width=width))
    screen.out.print(Segments(lines), soft_wrap=True)


def table(title: str, rung: Rung, chosen: Standing | None = None) -> Table:
    """Return a row for each of the fastest candidates of a rung, and for those that went on."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown.add_column(f"{title}, {rung.num_problems} problems", no_wrap=True)
    for heading_ in ("speed-up", "95 %", "right", "lost", "points at most"):
        shown.add_column(heading_, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    num_problems = max(1, rung.num_problems)
    alone = f"{100 * rung.baseline_right / num_problems:.1f} %"
    shown.add_row(f"{BASELINE} (the target alone)", "1.00x", "", alone, "", "", "")
    rows = [item for place, item in enumerate(rung.standings) if place < MAX_SHOWN or not item.dropped]
    for item in rows:
        shown.add_row(*_cells(item), "chosen" if item is chosen else _why_dropped(item))
    if len(rows) < len(rung.standings):
        shown.add_row(f"and {len(rung.standings) - len(rows)} more, dropped", *[""] * 6)
    return shown


def _cells(item: Standing) -> tuple[str, ...]:
    speed = item.speedup
    return (
        item.candidate.name,
        NONE if speed is None else f"{speed.value:.2f}x",
        NONE if speed is None else f"{speed.low:.2f} to {speed.high:.2f}",
        f"{100 * item.num_right / max(1, item.num_problems):.1f} %",
        str(item.num_lost),
        "exact" if item.candidate.is_exact else f"{100 * item.loss_upper:.2f}",
    )


def _why_dropped(item: Standing) -> str:
    return f"dropped: {item.dropped}" if item.dropped else ""


def conclusion(found: Tuning) -> str:
    """Return what was chosen and why, in a few sentences."""
    choice, plan = found.choice, found.choice.plan
    chosen = choice.chosen
    sentences = []
    if chosen is None:
        sentences.append(
            f"Nothing is shown to be faster than the target alone: the settings name {BASELINE}."
        )
    else:
        speed = chosen.speedup
        assert speed is not None, "what has no speed-up is not chosen"
        sentences.append(
            f"{chosen.candidate.name}: {speed.value:.2f}x as fast as the target alone "
            f"({speed.low:.2f} to {speed.high:.2f}) on {chosen.num_problems} problems that had no part in "
            "the choice."
        )
        sentences.append(_about_loss(chosen, plan))
    sentences += _hopes(choice)
    return " ".join(sentences)


def _about_loss(chosen: Standing, plan: Plan) -> str:
    if chosen.candidate.is_exact:
        return "It writes the target's own tokens, so no answer is lost."
    return (
        f"It loses at most {_points(plan.test.loss)} of answers, with {100 * plan.test.confidence:g} % "
        f"confidence: {chosen.num_lost} of {chosen.num_problems} were lost."
    )


def _hopes(choice: Choice) -> list[str]:
    """Say what more problems would show of faster candidates whose loss is not shown to be small."""
    plan, final = choice.plan, choice.final
    if final is None:
        return []
    least = 1.0 if choice.chosen is None else choice.chosen.speed
    sentences = []
    for item in final.standings:
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
            f"{_points(plan.test.loss)}: {item.num_lost} of {item.num_problems} were lost; {hope}."
        )
    return sentences


def warnings(found: Tuning) -> list[str]:
    """Return what a reader should know before believing the numbers."""
    choice, plan = found.choice, found.choice.plan
    said = []
    if found.drift is not None and abs(found.drift) > NOISY:
        change = "slower" if found.drift > 0 else "faster"
        said.append(
            f"The machine is noisy: the target alone was {abs(found.drift):.0%} {change} in the second half "
            "of the search than in the first. Small differences of speed mean nothing; measure again when "
            "nothing else runs."
        )
    if plan.num_tested and not plan.tests_loss:
        said.append(_too_few(plan, None))
    finalists = () if choice.final is None else choice.final.standings
    differing = [item for item in finalists if item.candidate.is_exact and item.num_lost]
    said += [
        f"{item.candidate.name} should write the target's own tokens, and {item.num_lost} of "
        f"{item.num_problems} answers were lost: the engine's numbers depend on what else is in a pass."
        for item in differing
    ]
    return said


def _too_few(plan: Plan, num_lossy: int | None) -> str:
    others = "candidates" if num_lossy is None else f"{num_lossy} candidates"
    number = len(plan.selection) + len(plan.final)
    return (
        f"{number} problems are too few to show a loss of at most {_points(plan.test.loss)}: {others} that "
        f"may change answers were left out. Give {plan.num_needed} problems or more, or allow more with "
        "--loss."
    )


def heading(found: Tuning) -> str:
    """Return the comment above the settings: how they were chosen."""
    choice, plan = found.choice, found.choice.plan
    lines = [conclusion(found)]
    rungs = ", ".join(f"{rung.num_problems} problems: {len(rung.standings)}" for rung in choice.rungs)
    if rungs:
        lines.append(f"Chosen by successive halving. Candidates by rung: {rungs}.")
    if choice.final is not None:
        lines.append(
            f"Final test on {choice.final.num_problems} further problems, "
            f"{len(choice.final.standings)} candidates, each loss at {100 * plan.final_test.confidence:g} %."
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
    for title, rung in _titled(found.choice):
        items = [item for item in rung.standings if item.speedup is not None and item.num_problems]
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


def _titled(choice: Choice) -> list[tuple[str, Rung]]:
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
            for item in rung.standings
        ],
    }


def _points(share: float) -> str:
    points = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{points} point{'' if points == '1' else 's'}"
