"""Time the torch engine: each layer, both, and transformers' generate.

    python benchmarks/embedded.py [--models real] [--problems 60] [--accuracy 500] [--temperatures 0 0.6]
        [--grades FILE] [--json [FILE]]

Every row solves the same fresh problems. For each problem the rows take turns in an order shuffled
with the seed, prefix caches are emptied before each, and nothing else runs: stop other work first.
Seconds are those of one problem at a time. ``speedup`` is the median over problems of the seconds of
``autoregressive`` at the same temperature over those of the row. The rows ``suffix`` and
``suffix:published`` have an engine each, whose suffix cache holds what the row wrote before. Accuracy is
measured on more problems, solved together; rows with the baseline's tokens have the baseline's accuracy.
``--grades`` keeps the grades in a file, so that a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arms import Arm, Ours, Run, Transformers, printer, settings_of, time_rows, write_measured
from grades import Grades, grade
from models import Models, Task, add_models_arguments, models_of, needs_draft
from table_columns import EMBEDDED
from table_forms import Column, number

from reason_spec.accelerator import Accelerator
from reason_spec.control.costs import Costs
from reason_spec.evaluation.estimates import estimate_gain
from reason_spec.settings import Settings, load_settings

TEMPERATURES = (0.0, 0.6)
MAX_TOKENS = 448
STEP_ALONE = {
    "strategy.use_hint": False,
    "strategy.use_redraft": False,
    "strategy.token_drafter": "none",
    "strategy.planner": False,
}
FIXED = {"strategy.planner": False}
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("autoregressive", "autoregressive", {}),
    ("prompt_lookup", "prompt_lookup", {}),
    ("token:draft_model", "speculative", {}),
    ("step:exact", "lookahead", {"verifier.name": "exact", **STEP_ALONE}),
    ("step:semantic", "lookahead", {"verifier.name": "semantic", **STEP_ALONE}),
    ("both:exact", "lookahead", {"verifier.name": "exact"}),
    ("both:exact, depth 4", "lookahead", {"verifier.name": "exact", **FIXED}),
    ("both:semantic", "lookahead", {"verifier.name": "semantic"}),
    ("both:semantic, depth 4", "lookahead", {"verifier.name": "semantic", **FIXED}),
)
"""Name, strategy and settings of each row of our own; where no depth is named the planner chooses it."""
OWN_ENGINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("suffix", "prompt_lookup", {"suffix.use": "tokens"}),
    (
        "suffix:published",
        "prompt_lookup",
        {"suffix.use": "tokens", "suffix.rule": "published", "strategy.token_drafter": "none"},
    ),
)
"""Rows with an engine each, whose suffix cache holds the texts of the row so far: ours, and as published."""
LOSSY = ("step:semantic", "both:semantic", "both:semantic, depth 4")


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row of an arm; None if it does not apply or was not measured."""

    name: str
    temperature: float
    tokens_per_s: float
    s_per_problem: float
    speedup: float
    same_tokens: float
    accuracy: float | None
    loss_upper95: float | None
    passes_per_token: float | None
    alpha_step: float | None
    alpha_token: float | None
    depth: float | None
    c: float | None
    pass_ms: dict[int, float]


def row_of(
    arm: Arm, baseline: Arm, accuracies: dict[tuple[str, float], list[bool]], costs: Costs | None
) -> Row:
    """Summarise an arm beside the baseline of its temperature."""
    seconds = [run.seconds for run in arm.runs]
    ratios = [base.seconds / run.seconds for base, run in zip(baseline.runs, arm.runs, strict=True)]
    same = [base.tokens == run.tokens for base, run in zip(baseline.runs, arm.runs, strict=True)]
    known = accuracies.get(("autoregressive", arm.temperature))
    own = accuracies.get((arm.name, arm.temperature)) if arm.name in LOSSY else (known if all(same) else None)
    recorders = [run.solution.recorder for run in arm.runs if run.solution is not None]
    verdicts = [verdict.accepted for recorder in recorders for verdict in recorder.verdicts]
    drafted = sum(recorder.target_usage.num_drafted_tokens for recorder in recorders)
    accepted = sum(recorder.target_usage.num_accepted_draft_tokens for recorder in recorders)
    depths = [recorder.plan.depth for recorder in recorders if recorder.plan is not None]
    num_tokens = sum(run.num_tokens for run in arm.runs)
    passes = sum(recorder.target_usage.num_passes for recorder in recorders)
    differences = [after - before for before, after in zip(known or (), own or (), strict=False)]
    return Row(
        name=arm.name,
        temperature=arm.temperature,
        tokens_per_s=num_tokens / sum(seconds),
        s_per_problem=statistics.median(seconds),
        speedup=statistics.median(ratios),
        same_tokens=sum(same) / len(same),
        accuracy=sum(own) / len(own) if own else None,
        loss_upper95=estimate_gain(differences).loss_upper if differences else None,
        passes_per_token=passes / num_tokens if recorders else None,
        alpha_step=sum(verdicts) / len(verdicts) if verdicts else None,
        alpha_token=accepted / drafted if drafted else None,
        depth=statistics.mean(depths) if depths else None,
        c=None if costs is None else costs.c,
        pass_ms={size: 1000 * seconds for size, seconds in costs.target.points} if costs else {},
    )


print_rows = printer(
    *EMBEDDED,
    Column("right", number("accuracy", 3)),
    Column("loss ≤", number("loss_upper95", 3)),
    Column("depth", number("depth", 1)),
)


async def measure(
    *,
    problems_timed: int = 60,
    problems_graded: int = 500,
    temperatures: Sequence[float] = TEMPERATURES,
    at_once: int = 16,
    max_tokens: int = MAX_TOKENS,
    seed: int = 0,
    flags: dict[str, Any] | None = None,
    models: Models,
    grades_file: Path | None = None,
) -> list[Row]:
    """Measure every row; ``flags`` are settings for all of them, such as a device.

    Raises:
        DataError: ``grades_file`` cannot be read or written, or a line of it is damaged.
    """
    grades = Grades(grades_file)
    # Under load the load controller lets the target write alone: its answers would be graded as every row's.
    flags = {"load_control.use": "off", **models.flags, **(flags or {})}
    chosen = models.tasks(max(problems_timed, problems_graded), seed)
    rows = models.usable(ROWS, lambda row: needs_draft(row[1]))
    base = load_settings(flags=flags)
    plain = Transformers(base.target, max_tokens)
    strategies = tuple(strategy for _, strategy, _ in rows)
    async with AsyncExitStack() as stack:
        accelerator = await _started(stack, base, strategies)
        threads = plain.calibrate(len(accelerator.bundle.cores.every))
        sys.stderr.write(f"transformers runs on {threads} threads\n")
        ours = Ours(accelerator)
        engines = {name: ours for name, _, _ in rows}
        for name, strategy, own in OWN_ENGINES:
            own_settings = load_settings(flags={**flags, **own, "strategy.name": strategy})
            engines[name] = Ours(await _started(stack, own_settings, (strategy,)))
        arms, settings = _arms(engines, plain, [*rows, *OWN_ENGINES], temperatures, max_tokens, flags)
        await time_rows(arms, chosen[:problems_timed], seed)
        accuracies: dict[tuple[str, float], list[bool]] = {}
        for name, temperature in settings:
            if problems_graded and name in ("autoregressive", *LOSSY):
                own_settings = settings[name, temperature]
                key = grades.key(own_settings, f"{models.name} {seed}")
                graded = await grade(ours, own_settings, chosen[:problems_graded], at_once, grades, key)
                accuracies[name, temperature] = [problem.right for problem in graded.values()]
    baselines = {arm.temperature: arm for arm in arms if arm.name == "autoregressive"}
    return [row_of(arm, baselines[arm.temperature], accuracies, ours.costs) for arm in arms]


async def _started(stack: AsyncExitStack, settings: Settings, strategies: Sequence[str]) -> Accelerator:
    accelerator = Accelerator.from_settings(settings, strategies=tuple(strategies))
    await stack.enter_async_context(accelerator)
    await accelerator.calibrate()
    return accelerator


def _arms(
    engines: Mapping[str, Ours],
    plain: Transformers,
    rows: Sequence[tuple[str, str, dict[str, Any]]],
    temperatures: Sequence[float],
    max_tokens: int,
    flags: dict[str, Any],
) -> tuple[list[Arm], dict[tuple[str, float], Settings]]:
    arms: list[Arm] = []
    settings: dict[tuple[str, float], Settings] = {}
    for temperature in temperatures:

        async def generate(problem: Task, index: int, temperature: float = temperature) -> Run:
            return plain.solve(problem, temperature, index)

        arms.append(Arm("transformers", temperature, generate))
        for name, strategy, own in rows:
            row_settings = settings_of({**flags, **own}, strategy, temperature, max_tokens)
            settings[name, temperature] = row_settings

            async def solve(
                problem: Task, index: int, row_settings: Settings = row_settings, ours: Ours = engines[name]
            ) -> Run:
                await ours.prepare(row_settings)
                return await ours.solve(row_settings, problem, index)

            arms.append(Arm(name, temperature, solve))
    return arms, settings


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of benchmarks that time and grade rows."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    add_models_arguments(parser)
    parser.add_argument("--problems", type=int, default=60, help="problems that are timed (default: 60)")
    parser.add_argument(
        "--accuracy", type=int, default=500, help="problems for accuracy; 0: none (default: 500)"
    )
    parser.add_argument("--at-once", type=int, default=16, help="problems solved together for accuracy")
    parser.add_argument("--grades", type=Path, help="keep what was graded in this file (JSON lines)")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, and refuse numbers of problems that cannot be."""
    arguments = parser.parse_args()
    if arguments.problems < 1 or arguments.accuracy < 0:
        parser.error("--problems must be at least 1 and --accuracy at least 0")
    return arguments


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(TEMPERATURES))
    arguments = parse(parser)
    measuring = measure(
        problems_timed=arguments.problems,
        problems_graded=arguments.accuracy,
        temperatures=arguments.temperatures,
        at_once=arguments.at_once,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
        models=models_of(arguments),
        grades_file=arguments.grades,
    )
    write_measured(measuring, arguments.json, print_rows)


if __name__ == "__main__":
    main()
