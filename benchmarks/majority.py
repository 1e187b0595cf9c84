"""Time a real target to the answer that most of eight samples give.

    python benchmarks/majority.py [--draft models:smollm2-gsm8k-draft] [--head models:smollm2-gsm8k-head]
        [--problems 12] [--problems-file FILE] [--samples 8] [--temperature 0.6] [--max-tokens 256]
        [--rows NAME ...] [--json [FILE]] [--cpu-time] [--set NAME=VALUE ...]

Torch engine. The baseline ``batched`` is the target alone: all samples of a problem in one batch, with their
prompt computed once, until the last one ends. Rows with ``stop`` end when the vote is decided (`eval
--stop-samples`): with ``stop:1`` the samples left could not change it, so its answer is that of all samples;
with ``stop:0.95`` it is likely to last. Rows with ``drafts`` use prompt lookup and the predictions of the
other samples (`strategy.share_samples`), those with ``model`` the draft model too, or with ``head`` the head.

Each problem is solved by all rows in an order shuffled with the seed; prefix caches are emptied before each.
A first problem warms up. ``speedup`` is the ratio of total seconds; the interval is that of the median of the
ratios of single problems (sign test). ``same`` is the share of problems with an answer of the baseline's,
where that is a tie one of several; ``right`` is the share of right answers, a tie of m counted 1 / m.
Nothing else may run meanwhile, except with ``--cpu-time``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from arms import cpu_seconds_of_engines, settings_of, write_measured
from real_engines import Opened, groups_of, open_group

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.batch import answer_batch, work_items
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.repeated import normal_form
from reason_spec.evaluation.statistics import median_interval
from reason_spec.evaluation.voting import SampleVotes, StopRule
from reason_spec.settings import Settings
from reason_spec.tasks import REAL_SAMPLE_PATH
from reason_spec.tasks.base import get_task
from reason_spec.tasks.grading import Grader
from reason_spec.tasks.loading import load_problems
from reason_spec.types import Problem

TARGET: Final = "models:smollm2-gsm8k"
BASELINE: Final = "batched"


class RowSpec(NamedTuple):
    """A row: its strategy, settings, and the certainty that ends its votes; None: all samples are drawn."""

    name: str
    strategy: str = "autoregressive"
    own: Mapping[str, Any] = {}
    certainty: float | None = None


_SHARED: Final = {"strategy.share_samples": True}
ROWS: Final = (
    RowSpec(BASELINE),
    RowSpec("drafts", "prompt_lookup", _SHARED),
    RowSpec("model", "speculative", _SHARED),
    RowSpec("head", "self_speculative", _SHARED),
    RowSpec("stop:1", certainty=1.0),
    RowSpec("stop:0.95", certainty=0.95),
    RowSpec("drafts:stop:1", "prompt_lookup", _SHARED, 1.0),
    RowSpec("drafts:stop:0.95", "prompt_lookup", _SHARED, 0.95),
    RowSpec("head:stop:1", "self_speculative", _SHARED, 1.0),
)


class Vote(NamedTuple):
    """The samples that were drawn of a problem, and the seconds that this took."""

    drawn: list[Outcome]
    seconds: float


@dataclass(slots=True)
class Arm:
    """A row and its votes, one for each problem."""

    spec: RowSpec
    opened: Opened
    settings: Settings
    votes: list[Vote] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row of an arm; numbers are means over problems."""

    name: str
    model: str
    draft: str | None
    num_problems: int
    num_samples: int
    temperature: float
    num_cores: int
    seconds: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    samples_drawn: float
    samples_cancelled: float
    tokens: float
    prefilled_tokens: float
    passes_per_token: float
    same: float
    right: float


async def vote(arm: Arm, problem: Problem, position: int, samples: int, clock: Callable[[], float]) -> Vote:
    """Draw the samples of a problem at once.

    Raises:
        DataError: a sample failed.
    """
    await arm.opened.ours.prepare(arm.settings)
    certainty = arm.spec.certainty
    votes = None if certainty is None else SampleVotes(StopRule(samples, certainty))
    items = [item._replace(position=position) for item in work_items([problem], samples)]
    # What samples predicted is kept by tenant: rows, and the warm-up, must not draft for each other.
    tenant = {"tenant": f"{position} {arm.spec.name}"}
    settings = arm.settings.model_copy(update={"suffix": arm.settings.suffix.model_copy(update=tenant)})
    generator = replace(arm.opened.accelerator.generator, settings=settings)
    started = clock()
    results = await answer_batch(
        generator, items, settings, strategy=arm.spec.strategy, concurrency=samples, votes=votes
    )
    seconds = clock() - started
    drawn = [result for result in results if isinstance(result, Outcome)]
    if len(drawn) < len(results):
        raise DataError(f"a sample of problem {problem.id!r} failed")
    return Vote(drawn, seconds)


def answers_of(drawn: Sequence[Outcome]) -> list[object]:
    """Return the answers that most samples give: several in a tie, none without an answer."""
    predictions = [get_task(outcome.task).extract(outcome.response) for outcome in drawn]
    counts = Counter(normal_form(prediction) for prediction in predictions if prediction is not None)
    most = max(counts.values(), default=0)
    return [answer for answer, count in counts.items() if count == most]


def is_right(drawn: Sequence[Outcome], grader: Grader) -> float:
    """Return the share of right answers among those of `answers_of`."""
    won = answers_of(drawn)
    right = set()
    for outcome in drawn:
        prediction = get_task(outcome.task).extract(outcome.response)
        if prediction is None or outcome.answer is None or normal_form(prediction) not in won:
            continue
        if grader.grade_prediction(prediction, outcome.answer, outcome.task).correct:
            right.add(normal_form(prediction))
    return len(right) / len(won) if won else 0.0


def row_of(arm: Arm, baseline: Arm, options: argparse.Namespace, grader: Grader) -> Row:
    """Summarise an arm beside the baseline."""
    pairs = list(zip(baseline.votes, arm.votes, strict=True))
    ratios = [before.seconds / after.seconds for before, after in pairs]
    interval = median_interval(ratios)
    number = len(arm.votes)
    every = [outcome for vote in arm.votes for outcome in vote.drawn]
    ends = [outcome.vote_end for outcome in every if outcome.vote_end is not None]
    usages = [*(outcome.usage.target for outcome in every), *(end.target for end in ends)]
    tokens = sum(usage.num_generated_tokens for usage in usages)
    same = [
        not set(answers_of(before.drawn)).isdisjoint(answers_of(after.drawn)) or not answers_of(before.drawn)
        for before, after in pairs
    ]
    return Row(
        name=arm.spec.name,
        model=options.target,
        draft=options.draft,
        num_problems=number,
        num_samples=options.samples,
        temperature=options.temperature,
        num_cores=arm.opened.num_cores(arm.spec.strategy),
        seconds=statistics.fmean(after.seconds for _, after in pairs),
        speedup=sum(before.seconds for before, _ in pairs) / sum(after.seconds for _, after in pairs),
        speedup_low=None if interval is None else interval.low,
        speedup_high=None if interval is None else interval.high,
        samples_drawn=len(every) / number,
        samples_cancelled=sum(end.num_cancelled for end in ends) / number,
        tokens=tokens / number,
        prefilled_tokens=sum(usage.num_prefilled_tokens for usage in usages) / number,
        passes_per_token=sum(usage.num_passes for usage in usages) / max(1, tokens),
        same=statistics.fmean(same),
        right=statistics.fmean(is_right(vote.drawn, grader) for vote in arm.votes),
    )


def print_rows(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    headings = "row|s/problem|speed-up|95 % of median|drawn|cancelled|tokens|prefilled|passes|same|right"
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading == "row" else "right", no_wrap=heading == "row")
    for row in rows:
        interval = "-" if row.speedup_low is None else f"{row.speedup_low:.2f}-{row.speedup_high:.2f}"
        table.add_row(
            row.name,
            f"{row.seconds:.2f}",
            f"{row.speedup:.2f}x",
            interval,
            f"{row.samples_drawn:.1f}",
            f"{row.samples_cancelled:.1f}",
            f"{row.tokens:.0f}",
            f"{row.prefilled_tokens:.0f}",
            f"{row.passes_per_token:.2f}",
            f"{row.same:.0%}",
            f"{row.right:.0%}",
        )
    Console(width=130).print(table)


async def measure(options: argparse.Namespace) -> list[Row]:
    """Measure all rows.

    Raises:
        DataError: there is no problem, or the engines do not start.
    """
    file = options.problems_file or REAL_SAMPLE_PATH
    problems = load_problems(file, "auto", options.problems, require_answer=True).problems
    if not problems:
        raise DataError(f"{file}: holds no problem")
    wanted = [
        spec
        for spec in ROWS
        if spec.name == BASELINE or (spec.name in options.rows if options.rows else _can_run(spec, options))
    ]
    async with AsyncExitStack() as stack:
        opened: dict[str, Opened] = {}
        for group in groups_of(options):
            if any(_group_of(spec) == group.name for spec in wanted):
                # As in use: with eight answers live, the load bounds the draft tokens of each.
                in_use = replace(group, flags={**group.flags, "load_control.use": "on"})
                running = await open_group(in_use, options, [], stack)
                if running is None:
                    raise SettingsError("the engines do not start")
                opened[group.name] = running
        arms = [_arm_of(spec, opened[_group_of(spec)], options) for spec in wanted]
        clock = cpu_seconds_of_engines if options.cpu_time else time.perf_counter
        rng = random.Random(options.seed)
        for index, problem in enumerate([problems[0], *problems]):
            for arm in rng.sample(arms, len(arms)):
                voted = await vote(arm, problem, index, options.samples, clock)
                if index:
                    arm.votes.append(voted)
            sys.stderr.write(f"\r{index} of {len(problems)} problems timed")
        sys.stderr.write("\n")
        with Grader() as grader:
            return [row_of(arm, arms[0], options, grader) for arm in arms]


def _arm_of(spec: RowSpec, opened: Opened, options: argparse.Namespace) -> Arm:
    flags = {**opened.group.flags, **spec.own}
    return Arm(spec, opened, settings_of(flags, spec.strategy, options.temperature, options.max_tokens))


def _group_of(spec: RowSpec) -> str:
    return "head" if spec.strategy == "self_speculative" else "ours"


def _can_run(spec: RowSpec, options: argparse.Namespace) -> bool:
    needed = {"speculative": options.draft, "self_speculative": options.head}
    return needed.get(spec.strategy, "") is not None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default=TARGET, help=f"default: {TARGET}")
    parser.add_argument("--draft", help="draft model, for the row model")
    parser.add_argument("--head", help="draft head, for the rows with head")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--problems-file", type=Path, help="questions with answers (default: the package's)")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--rows", nargs="+", choices=[spec.name for spec in ROWS], metavar="NAME")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the processor time of the engines: for a machine that does other work, on one core",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of all rows")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    # Read by `groups_of`, which also opens what other scripts compare.
    parser.set_defaults(engine="torch")
    options = parser.parse_args()
    if min(options.problems, options.max_tokens) < 1 or options.samples < 2 or options.temperature <= 0:
        parser.error("--problems and --max-tokens are at least 1, --samples 2, and --temperature above 0")
    if missing := [
        row.name for row in ROWS if row.name in (options.rows or ()) and not _can_run(row, options)
    ]:
        parser.error(f"{', '.join(missing)}: give --draft or --head")
    return options


def main() -> None:
    options = parse()
    write_measured(measure(options), options.json, print_rows)


if __name__ == "__main__":
    main()
