"""Time a real target with every source of drafts, beside transformers' and vLLM's own speculation.

    python benchmarks/real.py --draft DIR [--engine torch|vllm] [--target MODEL] [--head DIR]
        [--problems 60] [--problems-file FILE] [--accuracy N] [--temperatures 0 0.6] [--json [FILE]]
        [--grades FILE] [--set NAME=VALUE ...] [--over ROW]

``--engine torch`` runs our rows on the torch engine, and ``generate`` of transformers: alone, with the draft
as its assistant model, and with its prompt lookup. ``--engine vllm`` runs in the environment of ``make cpu``:
our rows on vLLM, and vLLM's own methods with the number of draft tokens that is fastest on three problems.
These are two passes, since the environments differ: ratios are over ``autoregressive`` of the same pass, on
the number of cores that suits it best. ``torch:autoregressive`` in the vLLM pass compares the two.

Each problem is solved by all rows in an order shuffled with the seed; prefix caches are emptied before each;
a first problem warms up. Nothing else may run meanwhile.

``model``, ``head`` and ``self`` also draft by prompt lookup; ``:alone`` leaves it out.
``model:recycling``, as ``speculative`` is by default, drafts what earlier passes predicted, too. Rows
with ``:fixed`` draft two steps ahead in every answer (``hybrid:fixed`` four); the others leave it to the
planner. Rows with ``:head`` have the head for tokens and the draft model for steps. ``suffix`` is our suffix
cache, ``suffix:published`` SuffixDecoding as published. ``--rows`` names rows, also variants that are else
left out: ``stand``, ``model:recycling``, ``head:recycling``, ``hybrid:head``, shapes of trees with the head,
and relaxed acceptance with head or draft model (`judge` with `--set target.torch.judge=DIR`).

Small models often end in a loop, which flatters drafts. Each text is stopped where the same 20 tokens begin
for the third time (`evaluation.loops`). Only the tokens before that place count, and the seconds that they
took; within a step these are interpolated. ``looped`` is the share of texts that were stopped.

``speedup`` is the median over problems of the ratio of seconds a token, with the 95 % interval of the sign
test: lossy rows, and samples of transformers, write other texts. ``over_speedup`` is the same over the row
that ``--over`` names, such as the fastest one without steps. ``ms a verdict`` is wall time beside the
engines; under ``hybrid`` the target reads the step, and that is its pass. Accuracy is measured for the
target and lossy rows, on texts that are stopped in the same way.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from arms import Arm, printer, time_rows, token_seconds, write_measured
from grades import Grades, grade
from models import Task
from real_engines import add_engine_arguments
from real_rows import LOSSY, ROWS, TRANSFORMERS, Bench, open_bench, wanted_rows
from table_columns import CORES, DRAFTS, REAL, TEMPERATURE
from table_forms import Column, number, percent

from reason_spec.engines.pruned import find_pruned
from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.estimates import estimate_gain
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.prompts import prompt_style
from reason_spec.evaluation.statistics import median_interval
from reason_spec.settings import load_settings
from reason_spec.tasks import REAL_SAMPLE_PATH
from reason_spec.tasks.base import get_task
from reason_spec.tasks.grading import Grader
from reason_spec.tasks.loading import load_problems
from reason_spec.types import Problem

TARGET: Final = "models:smollm2-gsm8k"


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row of an arm; None if it does not apply or was not measured."""

    model: str
    draft: str | None
    engine: str
    name: str
    temperature: float
    num_problems: int
    num_cores: int | None
    num_draft_tokens: int | None
    tokens_per_s: float
    s_per_problem: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    over: str | None
    over_speedup: float | None
    over_low: float | None
    over_high: float | None
    same_tokens: float
    looped: float
    accuracy: float | None
    loss_upper95: float | None
    passes_per_token: float | None
    alpha_step: float | None
    alpha_token: float | None
    ms_per_verdict: float | None


def read_tasks(options: argparse.Namespace, grader: Grader) -> list[Task]:
    """Read the problems as the target is asked them.

    Raises:
        DataError: the file cannot be read, or accuracy is wanted and an answer is missing.
        SettingsError: the target is a base model, which `generate` of transformers cannot ask.
    """
    style = prompt_style(load_settings(flags={"target.model": options.target}))
    if style == "examples":
        raise SettingsError(f"target {options.target!r} has no chat template; name one that has")
    number = max(options.problems, options.accuracy)
    file = options.problems_file or REAL_SAMPLE_PATH
    problems = load_problems(file, "auto", number, require_answer=options.accuracy > 0).problems
    if not problems:
        raise DataError(f"{file}: holds no problem")
    if len(problems) < number:
        sys.stderr.write(f"{file} has {len(problems)} problems; all of them are used\n")
    return [_task_of(problem, style, grader) for problem in problems]


def _task_of(problem: Problem, style: Any, grader: Grader) -> Task:
    def is_right(text: str) -> bool:
        if problem.answer is None:
            return False
        return grader.grade(text, problem.answer, problem.task).correct is True

    return Task(get_task(problem.task).prompt(problem.question, style), is_right)


# Rows ----------------------------------------------------------------------------------------


class Speedup(NamedTuple):
    """The median over problems of the ratio of seconds per token, with its 95 % interval."""

    median: float
    low: float | None
    high: float | None


def speedup_of(arm: Arm, rival: Arm) -> Speedup:
    """Compare two arms problem by problem."""
    pairs = zip(rival.runs, arm.runs, strict=True)
    ratios = [token_seconds(base) / token_seconds(run) for base, run in pairs]
    interval = median_interval(ratios)
    return Speedup(statistics.median(ratios), interval and interval.low, interval and interval.high)


def row_of(
    arm: Arm,
    baseline: Arm,
    over: Arm | None,
    accuracies: Mapping[tuple[str, float], list[bool]],
    bench: Bench,
    options: argparse.Namespace,
) -> Row:
    """Summarise an arm beside the target alone, and beside the arm ``over``, at its temperature."""
    alone = speedup_of(arm, baseline)
    other = None if over is None else speedup_of(arm, over)
    known = accuracies.get((BASELINE, arm.temperature))
    own = accuracies.get((arm.name, arm.temperature))
    recorders = [run.solution.recorder for run in arm.runs if run.solution is not None]
    verdicts = [verdict for recorder in recorders for verdict in recorder.verdicts]
    drafted = sum(recorder.target_usage.num_drafted_tokens for recorder in recorders)
    accepted = sum(recorder.target_usage.num_accepted_draft_tokens for recorder in recorders)
    written = sum(len(step.tokens) for run in arm.runs if run.solution for step in run.solution.steps)
    opened = bench.opened.get(arm.name)
    strategy = "" if opened is None else bench.settings[arm.name, arm.temperature].strategy.name
    differences = [after - before for before, after in zip(known or (), own or (), strict=False)]
    return Row(
        model=options.target,
        draft=options.draft,
        engine=options.engine,
        name=arm.name,
        temperature=arm.temperature,
        num_problems=len(arm.runs),
        num_cores=bench.num_threads if opened is None else opened.num_cores(strategy),
        num_draft_tokens=None if opened is None else opened.group.num_draft_tokens,
        tokens_per_s=sum(run.num_tokens for run in arm.runs) / sum(run.seconds for run in arm.runs),
        s_per_problem=statistics.median(run.seconds for run in arm.runs),
        speedup=alone.median,
        speedup_low=alone.low,
        speedup_high=alone.high,
        over=None if over is None else over.name,
        over_speedup=other and other.median,
        over_low=other and other.low,
        over_high=other and other.high,
        same_tokens=statistics.fmean(
            base.tokens == run.tokens for base, run in zip(baseline.runs, arm.runs, strict=True)
        ),
        looped=statistics.fmean(run.looped for run in arm.runs),
        accuracy=statistics.fmean(own) if own else None,
        loss_upper95=estimate_gain(differences).loss_upper if differences and arm.name != BASELINE else None,
        passes_per_token=sum(recorder.target_usage.num_passes for recorder in recorders) / max(1, written)
        if recorders
        else None,
        alpha_step=statistics.fmean(one.accepted for one in verdicts) if verdicts else None,
        alpha_token=accepted / drafted if drafted else None,
        ms_per_verdict=1e3 * statistics.fmean(one.cost_seconds for one in verdicts) if verdicts else None,
    )


print_table = printer(
    REAL[0],
    TEMPERATURE,
    *REAL[1:],
    Column("looped", percent("looped")),
    Column("right", number("accuracy")),
    Column("loss ≤", number("loss_upper95")),
    Column("ms a verdict", number("ms_per_verdict")),
    CORES,
    DRAFTS,
)


def print_rows(rows: Sequence[Row]) -> None:
    print_table(rows)
    sys.stdout.write(f"{exactness(rows)}\n")
    for row in rows:
        if row.over not in (None, row.name) and row.name != BASELINE:
            ends = "" if row.over_low is None else f" ({row.over_low:.2f}-{row.over_high:.2f})"
            sys.stdout.write(
                f"{row.name}, T = {row.temperature}: {row.over_speedup:.2f}x{ends} over {row.over}\n"
            )


def exactness(rows: Sequence[Row]) -> str:
    """Say whether the exact rows wrote the tokens of the target alone at temperature 0."""
    exact = [row for row in rows if not row.temperature and row.name not in (BASELINE, *LOSSY)]
    others = [f"{row.name} {row.same_tokens:.0%}" for row in exact if row.same_tokens < 1.0]
    if others:
        return (
            f"Exact rows that are not the target's own at T = 0, with the share that is: {', '.join(others)}"
        )
    return f"Exact rows that always write the target's tokens at T = 0: {len(exact)} of {len(exact)}."


async def measure(options: argparse.Namespace) -> list[Row]:
    """Measure every row that can be had."""
    with ExitStack() as graders:
        chosen = read_tasks(options, graders.enter_context(Grader()))
        async with AsyncExitStack() as stack:
            bench = await open_bench(wanted_rows(options), options, chosen, stack)
            await time_rows(bench.arms, chosen[: options.problems], options.seed)
            accuracies: dict[tuple[str, float], list[bool]] = {}
            grades = Grades(options.grades)
            problems_file = options.problems_file or REAL_SAMPLE_PATH
            hash_of_problems = hashlib.sha256(problems_file.read_bytes()).hexdigest()
            for (name, temperature), settings in bench.settings.items():
                if options.accuracy and name in (BASELINE, *LOSSY):
                    key = grades.key(settings, hash_of_problems)
                    problems = chosen[: options.accuracy]
                    ours = bench.opened[name].ours
                    graded = await grade(ours, settings, problems, options.at_once, grades, key)
                    accuracies[name, temperature] = [problem.right for problem in graded.values()]
    baselines = {arm.temperature: arm for arm in bench.arms if arm.name == BASELINE}
    rivals = {arm.temperature: arm for arm in bench.arms if arm.name == options.over}
    return [
        row_of(arm, baselines[arm.temperature], rivals.get(arm.temperature), accuracies, bench, options)
        for arm in bench.arms
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_engine_arguments(parser)
    parser.add_argument(
        "--target", help=f"a model with a chat template (default: that of the draft, else {TARGET})"
    )
    parser.add_argument("--problems", type=int, default=60, help="problems that are timed (default: 60)")
    parser.add_argument(
        "--problems-file", type=Path, help="questions, jsonl (default: the 24 of the package)"
    )
    parser.add_argument("--accuracy", type=int, default=0, help="problems for accuracy (default: none)")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument(
        "--grades", type=Path, help="keep what was graded in this file: a stopped run goes on"
    )
    parser.add_argument("--at-once", type=int, default=16, help="problems solved together for accuracy")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows, beside autoregressive")
    parser.add_argument("--over", metavar="NAME", help="compare with this row, too, problem by problem")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    if min(options.problems, options.max_tokens, options.at_once) < 1 or options.accuracy < 0:
        parser.error("--problems, --max-tokens and --at-once must be at least 1, and --accuracy at least 0")
    known = {*TRANSFORMERS, *(spec.name for specs in ROWS.values() for spec in specs)}
    if unknown := {*(options.rows or ()), *([options.over] if options.over else ())} - known:
        parser.error(f"no row is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if options.over and options.rows and options.over not in (*options.rows, BASELINE):
        parser.error(f"--over {options.over}: name it with --rows, too")
    if options.target is None:
        pruned = None if options.draft is None else find_pruned(options.draft)
        options.target = TARGET if pruned is None else pruned.config.base
    return options


def main() -> None:
    options = parse()
    write_measured(measure(options), options.json, print_rows)


if __name__ == "__main__":
    main()
