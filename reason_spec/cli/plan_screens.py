"""Predictions and diagnoses as the command line shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from reason_spec.cli.screen import Screen
from reason_spec.control.costs import PassCost
from reason_spec.evaluation.amounts import counted, times_text
from reason_spec.evaluation.records import writing
from reason_spec.lab.planning.diagnosis import Diagnosis, diagnose
from reason_spec.lab.planning.measured import measured_runs
from reason_spec.lab.planning.prediction import DepthRow, Prediction, last_depth, predict
from reason_spec.lab.planning.published import (
    FITTED_ON,
    PAIRS,
    PAPER_DEPTH,
    Agreement,
    PublishedPair,
    Reproduced,
    agreement,
    reproduce,
)
from reason_spec.lab.planning.splits import best_split
from reason_spec.lab.planning.workload import Workload

_BAR_WIDTH = 24
_ROWS_AHEAD = 10
"""Least number of depths in the table."""


# Predictions ----------------------------------------------------------------------------------


def show_prediction(
    screen: Screen,
    workload: Workload,
    *,
    depth: int,
    width: int,
    num_drafts: int | None,
    budget: int,
    seed: int,
    png: Path | None,
) -> None:
    """Print the prediction from rates and costs; ``num_drafts`` defaults to that of the best split.

    Raises:
        DataError: the picture cannot be written.
    """
    if num_drafts is None:
        num_drafts = best_split(workload, budget).num_drafts
    total = last_depth(depth, width, _ROWS_AHEAD) + 2 + (workload.identical > 0)
    with screen.counting("Simulating", total) as advance:
        found = predict(
            workload,
            depth=depth,
            width=width,
            max_width=width,
            num_drafts=num_drafts,
            budget=budget,
            max_depth=_ROWS_AHEAD,
            seed=seed,
            advance=advance,
        )
    if png is not None:
        from reason_spec.lab.planning.figures import draw_depths

        with writing(png, "Name another file with --png."):
            draw_depths(workload, found, png)
    if screen.as_json:
        screen.write_json(
            {
                "workload": asdict(workload),
                "depth": depth,
                "width": width,
                "num_drafts": num_drafts,
                "budget": budget,
                **_prediction_dict(found),
            }
        )
        return
    _print_prediction(screen, workload, found, num_drafts, budget)
    if png is not None:
        screen.say(f"Picture: {png}")


def _prediction_dict(found: Prediction) -> dict[str, Any]:
    content = asdict(found)
    if content["ceiling"] == float("inf"):
        content["ceiling"] = None
    content["best"] |= {"depth": found.best.depth, "num_drafts": found.best.num_drafts}
    return content


def _print_prediction(
    screen: Screen, workload: Workload, found: Prediction, num_drafts: int, budget: int
) -> None:
    step, best = found.step, found.best
    screen.out.print(_summary_table(workload, found, num_drafts))
    drafts = f", {best.width} drafts a step" if best.width > 1 else ""
    split = (
        f"Best split of {budget} tokens a pass: the draft {_steps(best.depth)} ahead{drafts}, "
        f"{counted(best.tokens_per_branch, 'token')} per branch: "
        f"{best.speedup:.2f}x expected, {found.best_simulated:.2f}x simulated."
    )
    screen.print(split)
    if found.best_simulated < 1.0:
        screen.print("That is slower than the target alone: do not speculate here.")
    screen.out.print(_depth_table(found.rows, step.depth))
    if workload.requests > 1:
        screen.print(
            f"Speed-ups are those of {workload.requests} answers at once, over as many without speculation."
        )


def _summary_table(workload: Workload, found: Prediction, num_drafts: int) -> Table:
    step = found.step
    table = _table("Expected speed-up over the target alone")
    for name in ("", "formula", "simulated", ""):
        table.add_column(name, justify="right" if name else "left")
    ahead = f"{_steps(step.depth)} ahead, {counted(step.parallel, 'target step')} at once"
    ceiling = f"at most {found.ceiling:.2f}x at any depth" if found.ceiling < 1e6 else "no ceiling but depth"
    table.add_row(
        "step level", times_text(step.asynchronous), times_text(step.simulated), f"{ahead}; {ceiling}"
    )
    table.add_row("  in rounds", times_text(step.synchronous), "", "all drafts, then all checks")
    if workload.alpha_token > 0:
        table.add_row("token level", times_text(found.token), "", f"{counted(num_drafts, 'draft')} a pass")
        table.add_row("both", times_text(found.both), times_text(found.simulated), "")
        table.add_row(
            "  product law", times_text(found.product), "", "as if the draft got faster with the target"
        )
    if found.hinted is not None:
        alike = f"{100 * workload.identical:.0f} % of steps written alike are confirmed, not written"
        table.add_row("with hints", "", times_text(found.hinted), alike)
    if workload.alpha_token == 0 and (workload.requests > 1 or len(workload.pass_cost.points) > 1):
        table.add_row("with T(n)", times_text(found.both), times_text(found.simulated), "")
    return table


def _depth_table(rows: Sequence[DepthRow], chosen: int) -> Table:
    table = _table("The step level alone, by depth")
    for name in ("depth", "k1", "in rounds", "asynchronous", "simulated"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    largest = max(1.0, *(row.simulated for row in rows))
    for row in rows:
        bar = "█" * max(1, round(_BAR_WIDTH * row.simulated / largest))
        numbers = (times_text(value) for value in (row.synchronous, row.asynchronous, row.simulated))
        mark = " <" if row.depth == chosen else ""
        table.add_row(str(row.depth), str(row.parallel), *numbers, bar + mark)
    return table


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def _steps(number: int) -> str:
    return counted(number, "step")


# Runs -----------------------------------------------------------------------------------------


def show_run(
    screen: Screen, folder: Path, *, c_step: float | None, pass_cost: PassCost | None, seed: int
) -> None:
    """Print, for each strategy of a run, the measured speed-up and the terms that reduce the ideal one.

    Raises:
        DataError: the folder lacks measurements.
    """
    runs = measured_runs(folder, c_step=c_step, pass_cost=pass_cost)
    with screen.counting("Simulating", 7 * len(runs)) as advance:
        found = [diagnose(run, seed=seed, advance=advance) for run in runs]
    if screen.as_json:
        screen.write_json([_diagnosis_dict(item) for item in found])
        return
    for item in found:
        _print_diagnosis(screen, item)


def _diagnosis_dict(found: Diagnosis) -> dict[str, Any]:
    return {**asdict(found), "measured": found.measured, "simulated": found.simulated}


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
    table = _table(f"{run.strategy}: {counted(run.num_answers, 'answer')}")
    for name in ("", "speed-up", "share", ""):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("ideal", times_text(found.ideal), "", "the formulas, with the rates of the run")
    for term in found.terms:
        table.add_row(f"+ {term.name}", times_text(term.speedup), _share(term.share), term.meaning)
    over = "over the run's own target alone" if run.has_baseline else "over T(1): the run has no target alone"
    table.add_row("measured", times_text(found.measured), "", over)
    table.add_row("not explained", "", _share(found.unexplained), "between the last simulation and the run")
    screen.print(", ".join(rates))
    screen.out.print(table)
    screen.print(_blame(found) + "\n")


def _share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _blame(found: Diagnosis) -> str:
    if found.unexplained is None:
        return "The run is as fast as the formulas predict."
    if found.measured > found.ideal:
        return "The run is faster than the formulas predict; their assumptions do not hold for it."
    worst = found.worst
    if worst is None or (worst.share or 0.0) < found.unexplained:
        return "No term explains most of the difference: other work on the machine, or waiting."
    return f"Largest effect: {worst.name} ({worst.meaning})."


# The paper's table ------------------------------------------------------------------------------


def show_paper(screen: Screen, png: Path | None) -> None:
    """Print table 1 of Lookahead Reasoning and the predictions from its acceptance rates.

    Raises:
        DataError: the picture cannot be written.
    """
    found = [(pair, reproduce(pair)) for pair in PAIRS]
    sums = [agreement(pair, rows) for pair, rows in found]
    if png is not None:
        from reason_spec.lab.planning.figures import draw_paper

        with writing(png, "Name another file with --png."):
            draw_paper(found, png)
    if screen.as_json:
        screen.write_json(
            {
                "depth": PAPER_DEPTH,
                "rows": [asdict(row) for _, rows in found for row in rows],
                "agreement": [asdict(item) for item in sums],
            }
        )
        return
    for (pair, rows), item in zip(found, sums, strict=True):
        screen.out.print(_paper_table(pair, rows, item))
        screen.print(_paper_sentence(item) + "\n")


def _paper_table(pair: PublishedPair, rows: Sequence[Reproduced], item: Agreement) -> Table:
    table = _table(f"{pair.name}, {PAPER_DEPTH} steps ahead")
    names = ("alpha", "paper", f"c {item.ideal_cost:.2f}", f"c {item.fitted_cost:.2f}", "own c")
    table.add_column("", no_wrap=True)
    for name in (*names, "both", "product", "relative"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for line in rows:
        row = line.row
        steps = (row.alpha_step, row.lookahead, line.ideal, line.fitted, line.own_cost)
        both = (row.both, line.product, line.relative)
        table.add_row(row.dataset, *(f"{value:.2f}" for value in (*steps, *both)))
    return table


def _paper_sentence(item: Agreement) -> str:
    return (
        f"Rank correlation {item.rank:.2f}. Mean error {100 * item.ideal_error:.0f} % with c by the models' "
        f"sizes, {100 * item.fitted_error:.0f} % with the c of {FITTED_ON}. Both levels: the product law is "
        f"{100 * item.product_bias:+.0f} % off on average, with the draft's cost over the shorter step "
        f"{100 * item.relative_bias:+.0f} %."
    )
