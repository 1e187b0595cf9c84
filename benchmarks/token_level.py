"""Compare what drafts tokens: by category of text, temperature and number of draft tokens.

    python benchmarks/token_level.py [--source spec_bench gsm8k FILE] [--methods NAME ...] [--budgets 4 16 64]
        [--problems 10] [--temperatures 0 0.6] [--max-tokens 128] [--engine torch|vllm]
        [--draft DIR] [--head DIR] [--json [FILE]]

Sources are ``spec_bench``, 60 prompts of Spec-Bench in its six categories (``SPEC_BENCH_SAMPLE.md``);
``gsm8k``, the real sample of the package; and any file of problems, such as MATH-500, or of the form of
Spec-Bench. Methods are the rows of `real.py` that speculate within a step, by default all that need no second
model and those of the given draft and head. The budget is the most draft tokens of a pass; ``auto`` is the
default of the strategy, and for the methods of vLLM the number that is fastest on three prompts. Tokens that
are likely right may exceed a budget (``strategy.num_draft_tokens``).

Rows and the target alone take turns on each prompt, as in `real.py`: caches are emptied, texts are stopped
where they begin to loop, and nothing else may run meanwhile. ``speedup`` is the median over prompts of the
ratio of seconds a token, prefill included, with the 95 % interval of the sign test. The category ``mean`` is
the mean over the categories of a source, with the interval of a bootstrap of prompts within them.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from arms import Arm, Run, printer, time_rows, token_seconds, write_measured
from models import Task, needs_draft
from real_engines import add_engine_arguments, draft_tokens
from real_rows import ROWS, TRANSFORMERS, RowSpec, open_bench
from table_columns import SHAPES, TEMPERATURE
from table_forms import Column, number, text

from reason_spec.errors import DataError
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.statistics import TAIL, Interval, median_interval
from reason_spec.jsonl import BadLine, read_records
from reason_spec.tasks import REAL_SAMPLE_PATH
from reason_spec.tasks.base import get_task
from reason_spec.tasks.loading import load_problems

SPEC_BENCH: Final = Path(__file__).resolve().parent / "spec_bench_sample.jsonl"
SOURCES: Final[Mapping[str, Path]] = {"spec_bench": SPEC_BENCH, "gsm8k": REAL_SAMPLE_PATH}
MEAN: Final = "mean"
_MT_BENCH: Final = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
_AUTO: Final = "auto"
_STEP_STRATEGIES: Final = ("lookahead", "hybrid")
_BOOTSTRAPS: Final = 2000


class Prompt(NamedTuple):
    """A prompt, with the name of its source and its category there."""

    source: str
    category: str
    question: str


class Key(NamedTuple):
    """What a row is about, and with its name what an arm runs."""

    name: str
    budget: int | None
    temperature: float


@dataclass(frozen=True, slots=True)
class Row:
    """A method on one category; ``budget`` is None for the default, and None is also what has no measure."""

    name: str
    needs_draft: bool
    engine: str
    target: str
    source: str
    category: str
    temperature: float
    budget: int | None
    num_problems: int
    num_draft_tokens: int | None
    tokens_per_pass: float | None
    drafts_per_pass: float | None
    ms_per_token: float
    tokens_per_s: float
    speedup: float
    low: float | None
    high: float | None
    same_tokens: float
    looped: float


# Prompts -------------------------------------------------------------------------------------


def read_prompts(source: str, per_category: int) -> list[Prompt]:
    """Read up to so many prompts of each category.

    Raises:
        DataError: the file cannot be read, or holds no prompt.
    """
    path = SOURCES.get(source, Path(source))
    name = source if source in SOURCES else path.name.split(".")[0]
    records = read_records(path, "prompts, one JSON object a line")
    first = next((item.value for item in records if not isinstance(item, BadLine)), None)
    if first is not None and "turns" in first:
        found = [Prompt(name, *pair) for pair in _spec_bench(path)]
    else:
        problems = load_problems(path, "auto", None, require_answer=False).problems
        found = [
            Prompt(name, problem.task, get_task(problem.task).prompt(problem.question, "boxed"))
            for problem in problems
        ]
    if not found:
        raise DataError(f"{path}: holds no prompt")
    chosen: list[Prompt] = []
    by_category: dict[str, int] = {}
    for prompt in found:
        by_category[prompt.category] = by_category.get(prompt.category, 0) + 1
        if by_category[prompt.category] <= per_category:
            chosen.append(prompt)
    return chosen


def _spec_bench(path: Path) -> list[tuple[str, str]]:
    """Return category and first turn of each prompt; MT-Bench's eight categories count as one."""
    found: list[tuple[str, str]] = []
    for item in read_records(path, "prompts of Spec-Bench"):
        if isinstance(item, BadLine):
            raise DataError(item.message(path, can_skip=False))
        category, turns = item.value.get("category"), item.value.get("turns")
        if not isinstance(category, str) or not isinstance(turns, list) or not turns:
            raise DataError(f"{path}, line {item.line}: needs `category` (text) and `turns` (list of texts)")
        found.append(("mt_bench" if category in _MT_BENCH else category, str(turns[0])))
    return found


# Methods -------------------------------------------------------------------------------------


def methods_of(engine: str) -> dict[str, RowSpec]:
    """Return the rows that speculate within steps alone."""
    return {
        spec.name: spec
        for spec in ROWS[engine]
        if spec.strategy not in _STEP_STRATEGIES and spec.name not in (BASELINE, "torch:autoregressive")
    }


def needs_second_model(spec: RowSpec) -> bool:
    """Return whether a method needs weights beside the target's: a draft model or a head."""
    return (needs_draft(spec.strategy) and spec.group != "self") or spec.group in (
        "head",
        "eagle3",
        "draft_model",
    )


def with_budgets(specs: Sequence[RowSpec], budgets: Sequence[int | None]) -> list[tuple[RowSpec, int | None]]:
    """Return each method at each budget; vLLM's own methods have the number of tokens that is searched."""
    made: list[tuple[RowSpec, int | None]] = []
    for spec, budget in itertools.product(specs, budgets):
        if spec.name.startswith("vllm:"):
            if (spec, None) not in made:
                made.append((spec, None))
        elif budget is None:
            made.append((spec, None))
        else:
            own = {**spec.own, "strategy.num_draft_tokens": budget}
            made.append((spec._replace(name=f"{spec.name}@{budget}", own=own), budget))
    return made


# Rows ----------------------------------------------------------------------------------------


def rows_of(
    arms: Mapping[Key, Arm], prompts: Sequence[Prompt], row: Mapping[str, Any], options: argparse.Namespace
) -> list[Row]:
    """Return a row for each method, budget, temperature, source and category, and the means of sources.

    Args:
        row: of each method, whether it needs a second model, and vLLM's number of draft tokens.
    """
    rows: list[Row] = []
    for key, arm in arms.items():
        base = arms[Key(BASELINE, None, key.temperature)]
        for source in dict.fromkeys(prompt.source for prompt in prompts):
            made: dict[str, Row] = {}
            ratios: list[list[float]] = []
            places = [place for place, prompt in enumerate(prompts) if prompt.source == source]
            for category in dict.fromkeys(prompts[place].category for place in places):
                chosen = [place for place in places if prompts[place].category == category]
                pairs = [(base.runs[place], arm.runs[place]) for place in chosen]
                ratios.append([token_seconds(before) / token_seconds(run) for before, run in pairs])
                speedup = statistics.median(ratios[-1])
                made[category] = _row(
                    key, source, category, pairs, speedup, median_interval(ratios[-1]), row[key.name], options
                )
            rows += made.values()
            if len(made) > 1:
                pairs = [(base.runs[place], arm.runs[place]) for place in places]
                mean = statistics.fmean(one.speedup for one in made.values())
                interval = bootstrap_of_mean(ratios, options.seed)
                rows.append(_row(key, source, MEAN, pairs, mean, interval, row[key.name], options))
    return rows


def bootstrap_of_mean(ratios: Sequence[Sequence[float]], seed: int) -> Interval:
    """Return the 95 % interval of the mean over categories of the median of a category."""
    rng = random.Random(seed)
    means = sorted(
        statistics.fmean(statistics.median(rng.choices(group, k=len(group))) for group in ratios)
        for _ in range(_BOOTSTRAPS)
    )
    cut = int(TAIL * _BOOTSTRAPS)
    return Interval(means[cut], means[-1 - cut])


def _row(
    key: Key,
    source: str,
    category: str,
    pairs: Sequence[tuple[Run, Run]],
    speedup: float,
    interval: Interval | None,
    method: tuple[bool, int | None],
    options: argparse.Namespace,
) -> Row:
    runs = [run for _, run in pairs]
    seconds, tokens = sum(run.seconds for run in runs), sum(run.num_tokens for run in runs)
    usages = [run.solution.recorder.target_usage for run in runs if run.solution is not None]
    written = sum(len(step.tokens) for run in runs if run.solution for step in run.solution.steps)
    passes = sum(usage.num_passes for usage in usages)
    return Row(
        name=key.name,
        needs_draft=method[0],
        engine=options.engine,
        target=options.target,
        source=source,
        category=category,
        temperature=key.temperature,
        budget=key.budget,
        num_problems=len(runs),
        num_draft_tokens=method[1],
        tokens_per_pass=written / passes if passes else None,
        drafts_per_pass=sum(usage.num_drafted_tokens for usage in usages) / passes if passes else None,
        ms_per_token=1000 * seconds / max(1, tokens),
        tokens_per_s=tokens / seconds,
        speedup=speedup,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        same_tokens=statistics.fmean(before.tokens == run.tokens for before, run in pairs),
        looped=statistics.fmean(run.looped for run in runs),
    )


print_rows = printer(
    SHAPES[0],
    Column("source", text("source")),
    Column("category", text("category")),
    TEMPERATURE,
    Column("budget", lambda row: str(row["budget"] or row["num_draft_tokens"] or "-")),
    *SHAPES[1:],
    Column("ms a token", number("ms_per_token", 1)),
)


async def measure(options: argparse.Namespace) -> list[Row]:
    """Measure every wanted method on every prompt."""
    prompts = [prompt for source in options.source for prompt in read_prompts(source, options.problems)]
    tasks = [Task(prompt.question, lambda _: False) for prompt in prompts]
    known = methods_of(options.engine)
    budgeted = with_budgets([known[name] for name in options.methods if name in known], options.budgets)
    baseline = next(spec for spec in ROWS[options.engine] if spec.name == BASELINE)
    options.rows = [BASELINE, *options.methods]
    async with AsyncExitStack() as stack:
        bench = await open_bench([baseline, *(spec for spec, _ in budgeted)], options, tasks, stack)
        await time_rows(bench.arms, tasks, options.seed)
    budgets = {spec.name: budget for spec, budget in budgeted}
    arms = {Key(arm.name.split("@")[0], budgets.get(arm.name), arm.temperature): arm for arm in bench.arms}
    methods: dict[str, tuple[bool, int | None]] = {
        name: ((name in known and needs_second_model(known[name])) or name.endswith("assistant_model"), None)
        for name in (BASELINE, *known, *TRANSFORMERS)
    }
    for name, opened in bench.opened.items():
        if opened.group.num_draft_tokens is not None:
            methods[name] = methods[name][0], opened.group.num_draft_tokens
    return rows_of(arms, prompts, methods, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_engine_arguments(parser)
    parser.add_argument("--target", default="models:smollm2-gsm8k", help="a model with a chat template")
    parser.add_argument(
        "--source",
        nargs="+",
        default=["spec_bench"],
        metavar="NAME|FILE",
        help=f"{', '.join(SOURCES)}, or files of prompts (default: spec_bench)",
    )
    parser.add_argument("--problems", type=int, default=10, help="prompts of each category (default: 10)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all whose models are given")
    parser.add_argument(
        "--budgets",
        type=budget,
        nargs="+",
        default=[None],
        metavar="N",
        help=f"draft tokens of a pass, or {_AUTO} for the default of the strategy",
    )
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    if min(options.problems, options.max_tokens) < 1:
        parser.error("--problems and --max-tokens must be at least 1")
    known = methods_of(options.engine)
    names = [*known, *(TRANSFORMERS if options.engine == "torch" else ())]
    if unknown := set(options.methods or ()) - set(names):
        parser.error(f"no method is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    options.methods = options.methods or names
    return options


def budget(text: str) -> int | None:
    """Return the draft tokens of a pass; None for the default.

    Raises:
        ArgumentTypeError: it is no number of at least 1.
    """
    if text == _AUTO:
        return None
    try:
        return draft_tokens(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {_AUTO} for the default") from None


def main() -> None:
    options = parse()
    write_measured(measure(options), options.json, print_rows)


if __name__ == "__main__":
    main()
