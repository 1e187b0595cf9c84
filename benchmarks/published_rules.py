"""Rules of other papers beside ours on the same problems: seconds, all tokens of the target, lost answers.

    python benchmarks/published_rules.py [--models real --draft FOLDER] [--problems 60]
        [--reward-model MODEL] [--router FILE] [--cpu-time] [--json [FILE]]

Rows:

- ``hybrid`` and ``specreason``: the target's probabilities judge a drafted step (`likelihood`), at its
  default;
- ``specreason, one digit``: SpecReason's own rule (arXiv 2504.07891): the target is asked for a digit, and
  accepts from 7 on; beside the demonstration target its judge model is asked, which alone can answer;
- ``rsd 0.7``: a reward model judges (arXiv 2501.19324); needs one, the demonstration pair's reward head or
  ``--reward-model``;
- ``random``: accepts by chance as many of the drafted steps as ``specreason`` did: a verifier has to lose
  fewer answers than this;
- ``learned``: the router of `arbitrage`, beside ``threshold`` at several thresholds, which is the confidence
  of the draft. Learned routers belong to a pair; another pair's needs ``--router``.

The rows take turns on each problem, and the same answers are timed and graded. ``target_tokens`` are those
that the target wrote, ``prefilled_tokens`` those of prompts and drafted steps that it read, ``scored_tokens``
those that it only read to judge, each over the tokens of the answers. ``num_lost``: answers that the target
alone has right and the row wrong; ``num_won``: the reverse; ``lost_upper95``: the exact upper bound of the
share of lost answers (one-sided, 95 %).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from arms import Arm, Ours, cpu_seconds_of_engines, printer, time_rows, write_measured
from frontier import BASELINE, arms_of
from models import Models, add_models_arguments, models_of
from table_columns import RULES

from reason_spec.accelerator import Accelerator
from reason_spec.evaluation.statistics import clopper_pearson_upper, median_interval
from reason_spec.settings import load_settings

JUDGED: Final = "specreason"
"""The row whose acceptance ``random`` has."""
DOUBTS: Final = (0.05, 0.1, 0.2, 0.4)
"""Thresholds of the draft's confidence as a router."""
RowSpec = tuple[str, str, dict[str, Any]]


def all_cpu_seconds() -> float:
    """Return the processor seconds of the engines and of this process, in which a reward model runs."""
    return cpu_seconds_of_engines() + time.process_time()


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row; what does not apply is None."""

    name: str
    num_problems: int
    s_per_problem: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    target_tokens: float
    prefilled_tokens: float
    scored_tokens: float
    drafted_steps: float
    acceptance: float | None
    num_correct: int
    num_lost: int
    num_won: int
    lost_upper95: float


def rules(models: Models, options: argparse.Namespace) -> list[RowSpec]:
    """Return the rows that these models and options allow; the others are named on standard error."""
    digit = {"verifier.name": "utility", "verifier.utility_score": "greedy"}
    rows: list[RowSpec] = [
        (BASELINE, BASELINE, {}),
        ("speculative", "speculative", {}),
        ("hybrid", "hybrid", {"strategy.planner": False}),
        (JUDGED, "specreason", {}),
        ("specreason, one digit", "specreason", digit),
    ]
    if models.is_embedded or options.reward_model:
        reward = {"verifier.reward_model": options.reward_model} if options.reward_model else {}
        rows.append(("rsd 0.7", "rsd", {"verifier.thresholds": {"reward": 0.7}, **reward}))
    else:
        sys.stderr.write("left out, there is no --reward-model: rsd 0.7\n")
    if models.is_embedded or options.router:
        router = {"router.file": str(options.router)} if options.router else {}
        rows.append(("learned", "arbitrage", {"router.name": "learned", **router}))
    else:
        sys.stderr.write("left out, there is no --router of this pair: learned\n")
    rows += [
        (f"threshold {doubt:g}", "arbitrage", {"router.name": "threshold", "router.threshold": doubt})
        for doubt in DOUBTS
    ]
    return rows


def acceptance_of(arm: Arm) -> float | None:
    """Return the share of accepted verdicts; None without any."""
    verdicts = [
        verdict.accepted for run in arm.runs if run.solution for verdict in run.solution.recorder.verdicts
    ]
    return statistics.fmean(verdicts) if verdicts else None


def row_of(arm: Arm, baseline: Arm) -> Row:
    """Summarise an arm beside the target alone on the same problems."""
    recorders = [run.solution.recorder for run in arm.runs if run.solution is not None]
    usages = [recorder.target_usage for recorder in recorders]
    steps = [step for recorder in recorders for step in recorder.steps]
    num_tokens = sum(run.num_tokens for run in arm.runs)
    ratios = [base.seconds / own.seconds for base, own in zip(baseline.runs, arm.runs, strict=True)]
    interval = median_interval(ratios)
    pairs = [(base.right, own.right) for base, own in zip(baseline.runs, arm.runs, strict=True)]
    num_lost = pairs.count((True, False))
    return Row(
        name=arm.name,
        num_problems=len(arm.runs),
        s_per_problem=statistics.fmean(run.seconds for run in arm.runs),
        speedup=statistics.median(ratios),
        speedup_low=None if interval is None else interval.low,
        speedup_high=None if interval is None else interval.high,
        target_tokens=sum(usage.num_generated_tokens for usage in usages) / num_tokens,
        prefilled_tokens=sum(usage.num_prefilled_tokens for usage in usages) / num_tokens,
        scored_tokens=sum(usage.num_scored_tokens for usage in usages) / num_tokens,
        drafted_steps=statistics.fmean(step.origin == "draft" for step in steps),
        acceptance=acceptance_of(arm),
        num_correct=sum(run.right for run in arm.runs),
        num_lost=num_lost,
        num_won=pairs.count((False, True)),
        lost_upper95=clopper_pearson_upper(num_lost, len(pairs), 0.95),
    )


async def measure(options: argparse.Namespace) -> list[Row]:
    models = models_of(options)
    chosen = models.tasks(options.problems, options.seed)
    rows = rules(models, options)
    flags = {**models.flags, "load_control.use": "off"}
    strategies = tuple(dict.fromkeys(strategy for _, strategy, _ in rows))
    clock = all_cpu_seconds if options.cpu_time else time.perf_counter
    base = load_settings(flags=flags)
    async with Accelerator.from_settings(base, strategies=strategies) as accelerator:
        await accelerator.calibrate()
        ours = Ours(accelerator, clock=clock)
        arms, _ = arms_of(ours, rows, flags, options.max_tokens)
        await time_rows(arms, chosen, options.seed)
        judged = next(arm for arm in arms if arm.name == JUDGED)
        done = [row_of(arm, arms[0]) for arm in arms]
        kept = acceptance_of(judged)
        if kept is not None:
            chance = {"router.name": "random", "router.threshold": kept}
            # Its share is known only now; the target alone takes turns with it again.
            again = [rows[0], ("random", "arbitrage", chance)]
            matched, _ = arms_of(ours, again, flags, options.max_tokens)
            await time_rows(matched, chosen, options.seed)
            done.append(row_of(matched[1], matched[0]))
    return done


print_rows = printer(*RULES)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models_arguments(parser)
    parser.add_argument("--problems", type=int, default=60, help="default: 60")
    parser.add_argument("--max-tokens", type=int, default=640, help="most tokens of an answer")
    parser.add_argument("--reward-model", metavar="MODEL", help="folder or id of a classifier, for rsd")
    parser.add_argument("--router", type=Path, metavar="FILE", help="a router trained for this pair")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time by the processor seconds of all models, for a machine that does other work",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    if options.problems < 1:
        parser.error("--problems must be at least 1")
    if models_of(options).draft is None:
        parser.error("all rules need a draft: give --draft")
    write_measured(measure(options), options.json, print_rows)


if __name__ == "__main__":
    main()
