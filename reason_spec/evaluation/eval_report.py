"""The metrics of an evaluation as tables and sentences for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.segment import Segments
from rich.table import Table

from reason_spec.evaluation.amounts import counted
from reason_spec.evaluation.metrics import ALL_TASKS, Estimate, Metrics, PairedMetrics, StrategyMetrics
from reason_spec.evaluation.report import NONE, at_full_width, percent, ratio_text, seconds_text


def print_metrics(metrics: Metrics, console: Console) -> None:
    """Print a table for each task; on a terminal too narrow for one, strategy by strategy."""
    tasks = tuple(dict.fromkeys(item.task for item in metrics.strategies))
    for number, task in enumerate(tasks):
        if number:
            console.print()
        if len(tasks) > 1:
            console.print("all tasks together" if task == ALL_TASKS else f"task {task}", style="bold")
        rows = [item for item in metrics.strategies if item.task == task]
        pairs = {item.strategy: item for item in metrics.pairs if item.task == task}
        tables = [metrics_table(rows, pairs)]
        if console.is_terminal and at_full_width(tables[0], console).max_width > console.width:
            tables = [metrics_table([item], pairs) for item in rows]
        for place, table in enumerate(tables):
            if place:
                console.print()
            console.print(Segments(console.render(table, at_full_width(table, console))), soft_wrap=True)


def metrics_table(rows: Sequence[StrategyMetrics], pairs: dict[str, PairedMetrics]) -> Table:
    """Return one column for each strategy of a task, and one row for each measure that there is."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for item in rows:
        table.add_column(item.strategy, justify="right", no_wrap=True)
    for name, cell in (*_quality_rows(rows), *_SPEED_ROWS):
        table.add_row(name, *map(cell, rows))
    for name, estimate in _PAIRED_ROWS if pairs else ():
        found = (pairs.get(item.strategy) for item in rows)
        table.add_row(name, *("1.00x" if pair is None else _times(estimate(pair)) for pair in found))
    for name, cell in (*_WORK_ROWS, *_rows_where_any(rows)):
        table.add_row(name, *map(cell, rows))
    return table


def paired_lines(metrics: Metrics) -> Iterator[str]:
    """Yield what the paired comparisons say, with what they are too small for."""
    several = len({item.task for item in metrics.pairs}) > 1
    for item in metrics.pairs:
        where = f" on {'all tasks' if item.task == ALL_TASKS else item.task}" if several else ""
        yield f"{item.strategy} against {item.baseline}{where}: {_same(item)}{_difference(item)}"
        if item.warning:
            yield f"  {item.warning}"


def metrics_notes(metrics: Metrics) -> Iterator[str]:
    """Yield what a reader of the tables has to know about how their numbers were made."""
    yield "Intervals are for 95 %, and count problems, not samples."
    sizes = sorted({size for item in metrics.strategies for size in item.concurrency} - {1})
    if sizes:
        shown = ", ".join(map(str, sizes))
        yield f"Seconds are the wall time of a batch of {shown} problems divided by its size."
    undecided = sum(item.num_undecided for item in metrics.strategies if item.task != ALL_TASKS)
    if undecided:
        yield f"{undecided} answers could not be compared with their reference and count as wrong."


def _quality_rows(rows: Sequence[StrategyMetrics]) -> Iterator[tuple[str, Callable[[StrategyMetrics], str]]]:
    yield "loss class", lambda item: item.loss_class
    yield "problems x samples", _size
    samples = max(item.num_samples for item in rows)
    yield f"accuracy (avg@{samples})" if samples > 1 else "accuracy", lambda item: _share(item.accuracy)
    yield "  interval", lambda item: _interval(item.accuracy)
    for k in _several(item.pass_at for item in rows):
        yield f"pass@{k}", lambda item, k=k: _share_and_interval(item.pass_at.get(k))  # type: ignore[misc]
    for k in _several(item.majority_at for item in rows):
        yield f"majority@{k}", lambda item, k=k: _share_and_interval(item.majority_at.get(k))  # type: ignore[misc]


def _several(estimates: Iterable[Mapping[int, Estimate]]) -> list[int]:
    """Return the numbers of samples beyond one."""
    return sorted({k for by_k in estimates for k in by_k if k > 1})


def _rows_where_any(
    rows: Sequence[StrategyMetrics],
) -> Iterator[tuple[str, Callable[[StrategyMetrics], str]]]:
    """Yield rows that are left out where they say nothing."""
    if any(item.cost is not None for item in rows):
        yield "cost of all answers", lambda item: NONE if item.cost is None else f"{item.cost:.4g}"
    if any(item.num_cut for item in rows):
        yield "cut at the token limit", lambda item: str(item.num_cut)
    if any(item.num_retried for item in rows):
        yield "answered after a failure", lambda item: str(item.num_retried)


_SPEED_ROWS: tuple[tuple[str, Callable[[StrategyMetrics], str]], ...] = (
    ("tokens/s", lambda item: f"{item.tokens_per_second:.1f}"),
    ("seconds per problem", lambda item: seconds_text(item.seconds_per_problem.value)),
    ("  interval", lambda item: _range(item.seconds_per_problem, seconds_text)),
    ("  p50, p95", lambda item: f"{seconds_text(item.seconds.p50)}, {seconds_text(item.seconds.p95)}"),
    ("first step, p50", lambda item: seconds_text(item.first_step_seconds.p50)),
)
_PAIRED_ROWS: tuple[tuple[str, Callable[[PairedMetrics], Estimate]], ...] = (
    ("speed-up", lambda item: item.speedup),
    ("speed-up, paired", lambda item: item.paired_speedup),
)
_WORK_ROWS: tuple[tuple[str, Callable[[StrategyMetrics], str]], ...] = (
    ("tokens per problem", lambda item: f"{item.tokens_per_problem.value:.1f}"),
    ("tokens saved", lambda item: percent(item.tokens_saved)),
    ("target tokens written", lambda item: ratio_text(item.target_tokens)),
    ("target tokens prefilled", lambda item: ratio_text(item.target_prefilled_tokens)),
    ("target tokens scored", lambda item: ratio_text(item.target_scored_tokens)),
    ("alpha_step", lambda item: ratio_text(item.alpha_step)),
    ("alpha_step, late drafts too", lambda item: ratio_text(item.alpha_step_of_all)),
    ("alpha_token", lambda item: ratio_text(item.alpha_token)),
)


def _size(item: StrategyMetrics) -> str:
    return f"{item.num_problems} x {item.num_samples}"


def _share(estimate: Estimate | None) -> str:
    return NONE if estimate is None else percent(estimate.value)


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.interval is None:
        return NONE
    return f"{_range(estimate, lambda value: f'{100 * value:.1f}')} %"


def _share_and_interval(estimate: Estimate | None) -> str:
    return NONE if estimate is None else f"{_share(estimate)} ({_interval(estimate)})"


def _range(estimate: Estimate, text: Callable[[float], str]) -> str:
    if estimate.interval is None:
        return NONE
    return f"{text(estimate.interval.low)}-{text(estimate.interval.high)}"


def _times(estimate: Estimate) -> str:
    return f"{estimate.value:.2f}x ({_range(estimate, lambda value: f'{value:.2f}')})"


def _same(item: PairedMetrics) -> str:
    return f"{item.num_identical} of {item.num_pairs} answers have the same tokens"


def _difference(item: PairedMetrics) -> str:
    if item.accuracy_difference is None:
        return "."
    points = 100 * item.accuracy_difference.value
    change = "no difference of accuracy"
    if points:
        change = f"{abs(points):.1f} points of accuracy {'gained' if points > 0 else 'lost'}"
    details = []
    if item.accuracy_difference.interval is not None:
        low, high = (100 * end for end in item.accuracy_difference.interval)
        details.append(f"interval {low:+.1f} to {high:+.1f} points")
    if item.p_value is not None:
        details.append(f"exact McNemar p = {item.p_value:.2g}")
    in_brackets = f" ({', '.join(details)})" if details else ""
    text = f"; {change} on {counted(item.num_problems, 'problem')}{in_brackets}"
    if item.loss_upper is not None:
        text += f"; the loss is at most {100 * item.loss_upper:.1f} points with 95 % confidence"
    return text + "."
