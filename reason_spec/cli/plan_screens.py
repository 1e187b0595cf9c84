"""Predictions and diagnoses as the command line shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from reason_spec.cli.command import waiting
from reason_spec.cli.screen import Screen
from reason_spec.control.costs import PassCost
from reason_spec.evaluation.amounts import counted, times_text
from reason_spec.lab.planning.diagnosis import Diagnosis, diagnose
from reason_spec.lab.planning.measured import measured_runs
from reason_spec.lab.planning.prediction import DepthRow, Prediction, predict
from reason_spec.lab.planning.workload import Workload

_BAR_WIDTH = 24


def show_prediction(
    screen: Screen, workload: Workload, *, depth: int, num_drafts: int | None, budget: int
) -> None:
    """Print the prediction from rates and costs; ``num_drafts`` defaults to that of the best split."""
    with waiting("Simulating", screen.quiet):
        found = predict(workload, depth=depth, num_drafts=num_drafts, budget=budget)
    if screen.as_json:
        content = asdict(found) | {"workload": asdict(workload), "budget": budget}
        screen.write_json(content | {"ceiling": found.ceiling if isfinite(found.ceiling) else None})
        return
    best = found.best
    screen.out.print(_summary_table(workload, found))
    screen.print(
        f"Best split of {budget} tokens a pass: the draft {counted(best.depth, 'step')} ahead, "
        f"{counted(best.num_drafts + 1, 'token')} per branch: "
        f"{best.speedup:.2f}x expected, {found.best_simulated:.2f}x simulated."
    )
    if found.best_simulated < 1.0:
        screen.print("That is slower than the target alone: do not speculate here.")
    screen.out.print(_depth_table(found.rows, depth))
    if workload.requests > 1:
        screen.print(
            f"Speed-ups are those of {workload.requests} answers at once, over as many without speculation."
        )


def _summary_table(workload: Workload, found: Prediction) -> Table:
    step, both = found.step, found.both
    table = _table("Expected speed-up over the target alone", "", "formula", "simulated")
    table.add_column("")
    ceiling = f"at most {found.ceiling:.2f}x at any depth" if isfinite(found.ceiling) else "no ceiling"
    ahead = f"{counted(step.depth, 'step')} ahead; {ceiling}"
    drafts = f"{counted(both.num_drafts, 'draft')} a pass"
    table.add_row("step level", times_text(step.formula), times_text(step.simulated), ahead)
    if workload.alpha_token > 0:
        table.add_row("token level", times_text(found.token), "", drafts)
    if workload.alpha_token > 0 or workload.requests > 1 or len(workload.pass_cost.points) > 1:
        table.add_row("together", times_text(both.speedup), times_text(found.both_simulated), "with T(n)")
    return table


def _depth_table(rows: Sequence[DepthRow], chosen: int) -> Table:
    table = _table("The step level alone, by depth", "depth", "formula", "simulated")
    table.add_column("")
    largest = max(1.0, *(row.simulated for row in rows))
    for row in rows:
        bar = "█" * max(1, round(_BAR_WIDTH * row.simulated / largest))
        mark = " <" if row.depth == chosen else ""
        table.add_row(str(row.depth), times_text(row.formula), times_text(row.simulated), bar + mark)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name in columns:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table


# Runs -----------------------------------------------------------------------------------------


def show_run(screen: Screen, folder: Path, *, c_step: float | None, pass_cost: PassCost | None) -> None:
    """Print, for each strategy of a run, the measured speed-up and the terms that reduce the ideal one.

    Raises:
        DataError: the folder lacks measurements.
    """
    runs = measured_runs(folder, c_step=c_step, pass_cost=pass_cost)
    with waiting("Simulating", screen.quiet):
        found = [diagnose(run) for run in runs]
    if screen.as_json:
        screen.write_json([asdict(item) for item in found])
        return
    for item in found:
        _print_diagnosis(screen, item)


def _print_diagnosis(screen: Screen, found: Diagnosis) -> None:
    run, load = found.run, found.run.workload
    rates = [f"alpha_token {load.alpha_token:.3f}", f"{run.pass_tokens:.1f} tokens a pass"]
    if run.mode is not None:
        rates = [
            f"alpha_step {load.alpha_step:.3f}",
            f"c {load.c_step:.3f}",
            f"depth {run.depth}",
            f"verdict {load.verification:.3f} of a step",
            *rates,
        ]
    table = _table(f"{run.strategy}: {counted(run.num_answers, 'answer')}", "", "speed-up", "share")
    table.add_column("")
    table.add_row("ideal", times_text(found.ideal), "", "the formulas, with the rates of the run")
    for term in found.terms:
        table.add_row(f"+ {term.name}", times_text(term.speedup), _share(term.share), term.meaning)
    over = "over the run's own target alone" if run.has_baseline else "over T(1): the run has no target alone"
    table.add_row("measured", times_text(run.speedup), "", over)
    table.add_row("not explained", "", _share(found.unexplained), "between the last simulation and the run")
    screen.print(", ".join(rates))
    screen.out.print(table)
    screen.print(_blame(found) + "\n")


def _share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _blame(found: Diagnosis) -> str:
    if found.unexplained is None:
        return "The run is as fast as the formulas predict."
    if found.run.speedup > found.ideal:
        return "The run is faster than the formulas predict; their assumptions do not hold for it."
    worst = found.worst
    if worst is None or (worst.share or 0.0) < found.unexplained:
        return "No term explains most of the difference: other work on the machine, or waiting."
    return f"Largest effect: {worst.name} ({worst.meaning})."
