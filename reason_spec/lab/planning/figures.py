"""Predictions as figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reason_spec.lab.pictures import new_figure
from reason_spec.lab.planning.prediction import Prediction
from reason_spec.lab.planning.published import PublishedPair, Reproduced
from reason_spec.lab.planning.workload import Workload


def draw_depths(workload: Workload, found: Prediction, file: Path) -> None:
    """Plot the speed-up of the step level against its depth: both formulas, the simulation, the ceiling."""
    depths = [row.depth for row in found.rows]
    simulated = [row.simulated for row in found.rows]
    figure, axes = new_figure(7, 4)
    axes.plot(depths, [row.asynchronous for row in found.rows], "o-", label="asynchronous (theorem 2)")
    axes.plot(depths, [row.synchronous for row in found.rows], "s-", label="in rounds (theorem 1)")
    axes.plot(depths, simulated, "x--", label="simulated")
    if found.ceiling < 10 * max(simulated):
        axes.axhline(found.ceiling, color="gray", linestyle=":", label="a draft without cost")
    axes.axhline(1.0, color="black", linewidth=0.8)
    if found.step.depth:
        axes.plot(
            found.step.depth, found.step.simulated, "o", ms=14, mfc="none", color="green", label="chosen"
        )
    axes.set(
        xlabel="steps that the draft runs ahead",
        ylabel="speed-up over the target alone",
        title=f"alpha_step {workload.alpha_step:g}, c_step {workload.c_step:g}, "
        f"verdict {workload.verification:g}",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=110)


def draw_paper(found: Sequence[tuple[PublishedPair, Sequence[Reproduced]]], file: Path) -> None:
    """Plot measured speed-ups against acceptance with the fitted curves, and both levels by both laws."""
    figure, (left, right) = new_figure(10, 4.2, ncols=2)
    for (pair, rows), color in zip(found, ("tab:blue", "tab:orange"), strict=False):
        ordered = sorted(rows, key=lambda item: item.row.alpha_step)
        alphas = [item.row.alpha_step for item in ordered]
        for style, name, values in (
            (":", "c by size", [item.ideal for item in ordered]),
            ("-", "c of GSM8K", [item.fitted for item in ordered]),
            ("o", "paper", [item.row.lookahead for item in ordered]),
        ):
            left.plot(alphas, values, style, color=color, label=f"{pair.name}, {name}")
        both = [item.row.both for item in rows]
        right.plot(both, [item.product for item in rows], "^", color=color, label=f"{pair.name}, product")
        relative = [item.relative for item in rows]
        right.plot(both, relative, "v", color=color, mfc="none", label=f"{pair.name}, relative")
    right.plot([1.2, 2.5], [1.2, 2.5], color="gray", linewidth=0.8)
    left.set(xlabel="acceptance rate", ylabel="speed-up of the step level")
    right.set(xlabel="both levels, in the paper", ylabel="both levels, predicted")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(file, dpi=100)
