"""Accuracy against speed: every strategy across its thresholds.

    python benchmarks/frontier.py [--models real --draft FOLDER] [--problems 60] [--accuracy 500]
        [--grades FILE] [--json [FILE]] [--png FILE]

Every row solves the same fresh problems. For each problem the rows take turns in an order shuffled with
the seed, caches are emptied before each, and nothing else runs: stop other work first. Seconds are those of
one problem at a time. Accuracy is measured on more problems, many at once; rows that write the target's own
tokens have its accuracy. ``target_tokens`` are those that the target wrote, ``prefilled_tokens`` those of
prompts and of drafted steps that it had to read before it wrote, ``scored_tokens`` those that it only read to
judge them, each over the tokens of the answers, counted on the problems that are graded. ``loss_upper95`` is
of the net loss; ``num_lost`` counts answers that the target alone has right and the row wrong,
``lost_upper95`` is the exact bound of their share (both one-sided, 95 %).

Grading takes most of the time and minds no other work. ``--grades`` keeps it in a file: a stopped run goes on
where it was, ``--problems 0`` only grades, and a later run on a quiet machine has only the times to take.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arms import Arm, Ours, Run, cpu_seconds_of_engines, printer, settings_of, time_rows, write_measured
from embedded import parser_of
from grades import Graded, Grades, grade
from models import Models, Task, models_of, needs_draft
from table_columns import FRONTIER
from table_forms import Column, number, percent, text

from reason_spec.accelerator import Accelerator
from reason_spec.evaluation.estimates import estimate_gain
from reason_spec.evaluation.statistics import clopper_pearson_upper, exact_interval
from reason_spec.settings import Settings, load_settings
from reason_spec.strategies.factory import strategy_class

BASELINE = "autoregressive"
LIKELIHOODS = (0.9, 0.95)
REWARDS = (0.7, 0.9)
SCORES = (0.05, 0.2)
DOUBTS = (0.1,)
CHANCES = (0.5,)
ALPHAS = (0.5, 0.8, 0.95)
LENIENT = ((0.3, 6), (0.05, 6), (0.05, 2), (0.05, 0))
"""Entropies from which on draft tokens are accepted, and windows."""
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (BASELINE, BASELINE, {}),
    ("speculative", "speculative", {}),
    *(
        (
            f"cascade {alpha:g}",
            "speculative",
            {"strategy.acceptance": "cascade", "strategy.acceptance_threshold": alpha},
        )
        for alpha in ALPHAS
    ),
    *(
        (
            f"lenient {theta:g}, window {window}",
            "speculative",
            {
                "strategy.acceptance": "lenient",
                "strategy.acceptance_threshold": theta,
                "strategy.acceptance_window": window,
            },
        )
        for theta, window in LENIENT
    ),
    ("judge", "speculative", {"strategy.acceptance": "judge"}),
    ("lookahead", "lookahead", {}),
    ("lookahead, depth 4", "lookahead", {"strategy.planner": False}),
    *(
        (
            f"{strategy} {threshold:g}",
            strategy,
            {"verifier.thresholds": {"likelihood": threshold}, "strategy.planner": False},
        )
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
    ("scot", "scot", {}),
    ("atts", "atts", {}),
    ("ssr", "ssr", {}),
    ("speculative_thinking", "speculative_thinking", {}),
    ("oracle", "oracle", {}),
)
"""Name, strategy and settings of each row. The number is the threshold of its verifier, router or rule."""
EXACT = (BASELINE, "speculative")


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row of a strategy at one threshold; None if not measured."""

    name: str
    tokens_per_s: float | None
    s_per_problem: float | None
    speedup: float | None
    target_tokens: float
    prefilled_tokens: float
    scored_tokens: float
    passes_per_token: float
    drafted_steps: float | None
    alpha_step: float | None
    num_graded: int
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None
    loss_upper95: float | None
    num_lost: int | None
    num_won: int | None
    lost_upper95: float | None


def row_of(arm: Arm, baseline: Arm, graded: dict[str, dict[int, Graded]]) -> Row:
    """Summarise an arm beside the baseline."""
    recorders = [run.solution.recorder for run in arm.runs if run.solution is not None]
    steps = [step for recorder in recorders for step in recorder.steps]
    verdicts = [verdict.accepted for recorder in recorders for verdict in recorder.verdicts]
    # What is exact writes the target's tokens: its work is what was timed, its answers are the target's.
    work = list(graded.get(arm.name, {}).values()) or [Graded.of(run) for run in arm.runs]
    answers = graded.get(BASELINE if arm.name in EXACT else arm.name, {})
    known = graded.get(BASELINE, {})
    own = [problem.right for problem in answers.values()]
    both = sorted(answers.keys() & known.keys())
    lost = sum(known[i].right and not answers[i].right for i in both)
    num_tokens = sum(problem.num_tokens for problem in work)
    seconds = [run.seconds for run in arm.runs]
    return Row(
        name=arm.name,
        tokens_per_s=sum(run.num_tokens for run in arm.runs) / sum(seconds) if seconds else None,
        s_per_problem=statistics.median(seconds) if seconds else None,
        speedup=statistics.median(
            base.seconds / run.seconds for base, run in zip(baseline.runs, arm.runs, strict=True)
        )
        if seconds
        else None,
        target_tokens=sum(problem.target_tokens for problem in work) / num_tokens,
        prefilled_tokens=sum(problem.prefilled_tokens for problem in work) / num_tokens,
        scored_tokens=sum(problem.scored_tokens for problem in work) / num_tokens,
        passes_per_token=sum(problem.passes for problem in work) / num_tokens,
        drafted_steps=sum(step.origin == "draft" for step in steps) / len(steps) if steps else None,
        alpha_step=statistics.mean(verdicts) if verdicts else None,
        num_graded=len(own),
        accuracy=statistics.mean(own) if own else None,
        accuracy_interval=exact_interval(sum(own), len(own)) if own else None,
        loss_upper95=estimate_gain([answers[i].right - known[i].right for i in both]).loss_upper
        if both
        else None,
        num_lost=lost if both else None,
        num_won=sum(answers[i].right and not known[i].right for i in both) if both else None,
        lost_upper95=clopper_pearson_upper(lost, len(both), 0.95) if both else None,
    )


print_rows = printer(
    *FRONTIER,
    Column("seconds a problem", number("s_per_problem")),
    Column("alpha_step", number("alpha_step")),
    Column("graded", text("num_graded")),
    Column("95 %", lambda row: "-".join(f"{end:.1%}" for end in row["accuracy_interval"] or ()) or "-"),
    Column("loss ≤", percent("loss_upper95", 1)),
)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Plot accuracy, with its interval, against the speed-up; rows of one kind are joined."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    axes.set_prop_cycle(color=[pyplot.get_cmap("tab20")(number) for number in range(20)])
    kinds = [row.name.removesuffix(", default").rstrip("0123456789. ") for row in rows]
    for strategy in dict.fromkeys(kinds):
        own = [row for row, kind in zip(rows, kinds, strict=True) if kind == strategy]
        x, y, below, above, names = [], [], [], [], []
        for row in own:
            if row.speedup is None or row.accuracy is None or row.accuracy_interval is None:
                continue
            x.append(row.speedup)
            y.append(100 * row.accuracy)
            below.append(100 * (row.accuracy - row.accuracy_interval[0]))
            above.append(100 * (row.accuracy_interval[1] - row.accuracy))
            names.append(row.name.removeprefix(strategy).strip(" ,"))
        if x:
            axes.errorbar(x, y, yerr=[below, above], marker="o", capsize=3, label=strategy)
        for place, name in zip(zip(x, y, strict=True), names, strict=True):
            axes.annotate(name, place, fontsize=7)
    axes.set_xlabel("speed-up over the target alone (median over problems)")
    axes.set_ylabel("right answers, % (95 % interval)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def rows_for(models: Models, chosen: Sequence[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the chosen rows, or all, that can run with these models."""
    rows = [row for row in ROWS if not chosen or row[0] == BASELINE or row[0] in chosen]
    usable = models.usable(rows, lambda row: needs_draft(row[1]))
    if models.is_embedded:
        return usable
    rewarded = [name for name, strategy, _ in usable if strategy_class(strategy).default_verifier == "reward"]
    if rewarded:
        sys.stderr.write(f"left out, only the demonstration pair has a reward head: {'; '.join(rewarded)}\n")
    return [row for row in usable if row[0] not in rewarded]


def arms_of(
    ours: Ours, rows: Sequence[tuple[str, str, dict[str, Any]]], flags: dict[str, Any], max_tokens: int
) -> tuple[list[Arm], dict[str, Settings]]:
    arms: list[Arm] = []
    settings: dict[str, Settings] = {}
    for name, strategy, own in rows:
        row_settings = settings_of({**flags, **own}, strategy, 0.0, max_tokens)
        settings[name] = row_settings

        async def solve(problem: Task, index: int, row_settings: Settings = row_settings) -> Run:
            await ours.prepare(row_settings)
            return await ours.solve(row_settings, problem, index)

        arms.append(Arm(name, 0.0, solve))
    return arms, settings


async def measure(options: argparse.Namespace) -> list[Row]:
    models = models_of(options)
    chosen = models.tasks(max(options.problems, options.accuracy), options.seed)
    rows = [row for row in rows_for(models, options.rows) if row[0] != "judge" or options.judge]
    flags = {**models.flags, **({"target.torch.judge": options.judge} if options.judge else {})}
    strategies = tuple(dict.fromkeys(strategy for _, strategy, _ in rows))
    grades = Grades(options.grades)
    # Under load the load controller lets the target write alone: its answers would be graded as every row's.
    base = load_settings(flags={"load_control.use": "off", **flags})
    async with Accelerator.from_settings(base, strategies=strategies) as accelerator:
        await accelerator.calibrate()
        ours = Ours(accelerator, clock=cpu_seconds_of_engines if options.cpu_time else time.perf_counter)
        arms, settings = arms_of(ours, rows, flags, options.max_tokens)
        if options.problems:
            await time_rows(arms, chosen[: options.problems], options.seed)
        graded: dict[str, dict[int, Graded]] = {}
        for name, row_settings in settings.items():
            if options.accuracy and (name == BASELINE or name not in EXACT):
                key = grades.key(row_settings, options.models if options.models == "real" else options.seed)
                if options.as_graded:
                    graded[name] = grades.of(key)
                    continue
                problems = chosen[: options.accuracy]
                graded[name] = await grade(ours, row_settings, problems, options.at_once, grades, key)
    measured = [arm for arm in arms if arm.runs or arm.name in graded]
    rows_done = [row_of(arm, arms[0], graded) for arm in measured]
    if options.png is not None:
        draw(rows_done, options.png)
        sys.stderr.write(f"{options.png} drawn\n")
    return rows_done


def main() -> None:
    parser = parser_of(__doc__)
    names = [name for name, *_ in ROWS]
    parser.add_argument("--rows", nargs="+", default=[], choices=names, metavar="ROW", help=", ".join(names))
    parser.add_argument("--as-graded", action="store_true", help="grade nothing, take what --grades has")
    parser.add_argument(
        "--judge", metavar="DIR", help="folder of verifier train --level token, for row judge"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time by the processor seconds of both models, for a machine that does other work",
    )
    parser.add_argument("--png", type=Path, help="plot accuracy against speed; needs the extra plots")
    options = parser.parse_args()
    if options.as_graded and options.grades is None:
        parser.error("--as-graded needs --grades FILE")
    if options.problems < 0 or options.accuracy < 0 or not options.problems + options.accuracy:
        parser.error("--problems and --accuracy must not be negative, nor both 0")
    write_measured(measure(options), options.json, print_rows)


if __name__ == "__main__":
    main()
