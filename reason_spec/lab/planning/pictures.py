"""Predictions as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reason_spec.lab.planning.prediction import Prediction
from reason_spec.lab.planning.published import PublishedPair, Reproduced
from reason_spec.lab.planning.workload import Workload


def draw_depths(workload: Workload, found: Prediction, file: Path) -> None:
    """Plot the speed-up of the step level against its depth: both formulas, the simulation, the ceiling."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    depths = [row.depth for row in found.rows]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(depths, [row.asynchronous for row in found.rows], marker="o", label="asynchronous (theorem 2)")
    axes.plot(depths, [row.synchronous for row in found.rows], marker="s", label="in rounds (theorem 1)")
    simulated = [row.simulated for row in found.rows]
    axes.plot(depths, simulated, marker="x", linestyle="--", label="simulated")
    if found.ceiling < 10 * max(simulated):
        axes.axhline(found.ceiling, color="gray", linestyle=":", label="a draft that costs nothing")
    axes.axhline(1.0, color="black", linewidth=0.8)
    if found.step.depth:
        axes.plot(
            [found.step.depth], [found.step.simulated], "o", ms=14, mfc="none", color="green", label="chosen"
        )
    axes.set_xlabel("steps that the draft runs ahead")
    axes.set_ylabel("speed-up over the target alone")
    axes.set_title(
        f"alpha_step {workload.alpha_step:g}, c_step {workload.c_step:g}, verdict {workload.verification:g}"
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_paper(found: Sequence[tuple[PublishedPair, Sequence[Reproduced]]], file: Path) -> None:
    """Plot measured speed-ups against acceptance with the fitted curves, and both levels with both laws."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    for (pair, rows), color in zip(found, ("tab:blue", "tab:orange"), strict=False):
        ordered = sorted(rows, key=lambda item: item.row.alpha_step)
        alphas = [item.row.alpha_step for item in ordered]
        left.plot(alphas, [item.ideal for item in ordered], ":", color=color, label=f"{pair.name}, c by size")
        left.plot(
            alphas, [item.fitted for item in ordered], "-", color=color, label=f"{pair.name}, c of GSM8K"
        )
        left.plot(
            alphas, [item.row.lookahead for item in ordered], "o", color=color, label=f"{pair.name}, paper"
        )
        both = [item.row.both for item in rows]
        right.plot(both, [item.product for item in rows], "^", color=color, label=f"{pair.name}, product")
        right.plot(
            both,
            [item.relative for item in rows],
            "v",
            color=color,
            mfc="none",
            label=f"{pair.name}, relative",
        )
    left.set_xlabel("acceptance rate")
    left.set_ylabel("speed-up of the step level")
    right.plot([1.2, 2.5], [1.2, 2.5], color="gray", linewidth=0.8)
    right.set_xlabel("both levels, in the paper")
    right.set_ylabel("both levels, predicted")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    pyplot.close(figure)
