"""Accuracy against speed: every strategy across its thresholds, on the embedded pair.

    python benchmarks/frontier.py [--problems 60] [--accuracy 500] [--json [FILE]] [--png FILE]

Every row solves the same fresh problems. For each problem the rows take turns in an order shuffled with
the seed, caches are emptied before each, and nothing else runs: stop other work first. Seconds are those of
one problem at a time. Accuracy is measured on more problems, many at once; rows that write the target's own
tokens have its accuracy. ``target_tokens`` are those that the target wrote, ``scored_tokens`` those that it
only read to judge them, each over the tokens of the answers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from embedded import (
    Arm,
    Ours,
    Run,
    measure_accuracy,
    parse,
    parser_of,
    settings_of,
    time_rows,
    write_rows,
)

from reason_spec.accelerator import Accelerator
from reason_spec.evaluation.statistics import compare_accuracy, wilson_interval
from reason_spec.pair.generator import Example, problems
from reason_spec.settings import Settings, load_settings

BASELINE = "autoregressive"
LIKELIHOODS = (0.7, 0.8, 0.9, 0.95)
REWARDS = (0.5, 0.7, 0.9, 0.95)
SCORES = (0.05, 0.1, 0.3)
DOUBTS = (0.02, 0.1, 0.3)
CHANCES = (0.25, 0.5, 0.75)
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (BASELINE, BASELINE, {}),
    ("speculative", "speculative", {}),
    ("lookahead", "lookahead", {}),
    ("lookahead, depth 4", "lookahead", {"strategy.planner": False}),
    *(
        (f"{strategy} {threshold:g}", strategy, {"verifier.thresholds": {"likelihood": threshold}})
        for strategy in ("specreason", "hybrid")
        for threshold in LIKELIHOODS
    ),
    ("specreason, utility", "specreason", {"verifier.name": "utility"}),
    *((f"rsd {threshold:g}", "rsd", {"verifier.thresholds": {"reward": threshold}}) for threshold in REWARDS),
    ("arbitrage, default", "arbitrage", {}),
    *((f"arbitrage {threshold:g}", "arbitrage", {"router.threshold": threshold}) for threshold in SCORES),
    *(
        (
            f"arbitrage, threshold {doubt:g}",
            "arbitrage",
            {"router.name": "threshold", "router.threshold": doubt},
        )
        for doubt in DOUBTS
    ),
    *(
        (f"arbitrage, random {chance:g}", "arbitrage", {"router.name": "random", "router.threshold": chance})
        for chance in CHANCES
    ),
)
"""Name, strategy and settings of each row. The number is the threshold of its verifier or router."""
EXACT = (BASELINE, "speculative")


@dataclass(frozen=True, slots=True)
class Row:
    """What is printed of a strategy at one threshold; None where it was not measured."""

    name: str
    tokens_per_s: float
    s_per_problem: float
    speedup: float
    target_tokens: float
    scored_tokens: float
    passes_per_token: float
    drafted_steps: float
    alpha_step: float | None
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None
    loss_upper95: float | None


def row_of(arm: Arm, baseline: Arm, graded: dict[str, list[bool]]) -> Row:
    """Summarise an arm beside the baseline."""
    recorders = [run.solution.recorder for run in arm.runs if run.solution is not None]
    steps = [step for recorder in recorders for step in recorder.steps]
    verdicts = [verdict.accepted for recorder in recorders for verdict in recorder.verdicts]
    usages = [recorder.target_usage for recorder in recorders]
    num_tokens = sum(run.num_tokens for run in arm.runs)
    own = graded.get(BASELINE if arm.name in EXACT else arm.name)
    known = graded.get(BASELINE)
    seconds = [run.seconds for run in arm.runs]
    return Row(
        name=arm.name,
        tokens_per_s=num_tokens / sum(seconds),
        s_per_problem=statistics.median(seconds),
        speedup=statistics.median(
            base.seconds / run.seconds for base, run in zip(baseline.runs, arm.runs, strict=True)
        ),
        target_tokens=sum(usage.num_generated_tokens for usage in usages) / num_tokens,
        scored_tokens=sum(usage.num_scored_tokens for usage in usages) / num_tokens,
        passes_per_token=sum(usage.num_passes for usage in usages) / num_tokens,
        drafted_steps=sum(step.origin == "draft" for step in steps) / len(steps),
        alpha_step=statistics.mean(verdicts) if verdicts else None,
        accuracy=statistics.mean(own) if own else None,
        accuracy_interval=wilson_interval(sum(own), len(own)) if own else None,
        loss_upper95=compare_accuracy([*map(float, known)], [*map(float, own)]).loss_upper
        if known and own
        else None,
    )


def print_rows(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    headings = "row|tokens/s|s/problem|speed-up|written|scored|passes|drafted steps|α step|right|95 %|loss ≤"
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading == "row" else "right", no_wrap=True)
    for row in rows:
        low_high = row.accuracy_interval
        table.add_row(
            row.name,
            f"{row.tokens_per_s:.1f}",
            f"{row.s_per_problem:.2f}",
            f"{row.speedup:.2f}x",
            f"{row.target_tokens:.2f}",
            f"{row.scored_tokens:.2f}",
            f"{row.passes_per_token:.3f}",
            f"{row.drafted_steps:.0%}",
            "-" if row.alpha_step is None else f"{row.alpha_step:.2f}",
            "-" if row.accuracy is None else f"{row.accuracy:.1%}",
            "-" if low_high is None else f"{low_high[0]:.1%}-{low_high[1]:.1%}",
            "-" if row.loss_upper95 is None else f"{row.loss_upper95:.1%}",
        )
    Console(width=140).print(table)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Plot accuracy, with its interval, against the speed-up; rows of one strategy are joined."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    strategies = dict.fromkeys(row.name.split(" ")[0].rstrip(",") for row in rows)
    for strategy in strategies:
        own = [row for row in rows if row.name.split(" ")[0].rstrip(",") == strategy]
        points = [(row.speedup, row.accuracy, row.accuracy_interval, row.name) for row in own]
        drawn = [point for point in points if point[1] is not None and point[2] is not None]
        if not drawn:
            continue
        x = [speedup for speedup, *_ in drawn]
        y = [100 * (accuracy or 0.0) for _, accuracy, *_ in drawn]
        below = [100 * ((accuracy or 0.0) - (span or (0, 0))[0]) for _, accuracy, span, _ in drawn]
        above = [100 * ((span or (0, 0))[1] - (accuracy or 0.0)) for _, accuracy, span, _ in drawn]
        axes.errorbar(x, y, yerr=[below, above], marker="o", capsize=3, label=strategy)
        for speedup, accuracy, (*_, name) in zip(x, y, drawn, strict=True):
            axes.annotate(name.removeprefix(strategy).strip(" ,"), (speedup, accuracy), fontsize=7)
    axes.set_xlabel("speed-up over the target alone (median over problems)")
    axes.set_ylabel("right answers, % (95 % interval)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def arms_of(ours: Ours, chosen: Sequence[str], max_tokens: int) -> tuple[list[Arm], dict[str, Settings]]:
    arms: list[Arm] = []
    settings: dict[str, Settings] = {}
    for name, strategy, own in ROWS:
        if chosen and name != BASELINE and not any(name.startswith(wanted) for wanted in chosen):
            continue
        row_settings = settings_of(own, strategy, 0.0, max_tokens)
        settings[name] = row_settings

        async def solve(problem: Example, index: int, row_settings: Settings = row_settings) -> Run:
            await ours.prepare(row_settings)
            return await ours.solve(row_settings, problem, index)

        arms.append(Arm(name, 0.0, solve))
    return arms, settings


async def measure(options: argparse.Namespace) -> list[Row]:
    chosen = list(islice(problems("test", options.seed), max(options.problems, options.accuracy)))
    strategies = tuple(dict.fromkeys(strategy for _, strategy, _ in ROWS))
    async with Accelerator.from_settings(load_settings(), strategies=strategies) as accelerator:
        await accelerator.calibrate()
        ours = Ours(accelerator)
        arms, settings = arms_of(ours, options.rows, options.max_tokens)
        await time_rows(arms, chosen[: options.problems], options.seed)
        graded: dict[str, list[bool]] = {}
        for name, row_settings in settings.items():
            if options.accuracy and (name == BASELINE or name not in EXACT):
                graded[name] = await measure_accuracy(
                    ours, row_settings, chosen[: options.accuracy], options.at_once
                )
    return [row_of(arm, arms[0], graded) for arm in arms]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", nargs="+", default=[], help="only rows whose names begin so")
    parser.add_argument("--png", type=Path, help="plot accuracy against speed; needs the extra plots")
    options = parse(parser)
    rows = asyncio.run(measure(options))
    write_rows(rows, options.json, print_rows)
    if options.png is not None:
        draw(rows, options.png)
        sys.stderr.write(f"{options.png} drawn\n")


if __name__ == "__main__":
    main()
