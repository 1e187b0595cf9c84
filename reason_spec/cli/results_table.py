"""The result of a run as tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeAlias, TypeVar

from rich.table import Table

from reason_spec.cli.screen import Screen, plain_table
from reason_spec.evaluation.amounts import (
    NONE,
    counted,
    percent,
    percent_range,
    range_text,
    ratio_text,
    seconds_text,
    times_text,
)
from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.job import RunResult
from reason_spec.evaluation.metrics import ALL_TASKS, RunMetrics, StrategyMetrics, VoteMetrics
from reason_spec.evaluation.paired import PairedMetrics
from reason_spec.evaluation.rounding import Rounding

EXIT_SOME_FAILED = 1
_K = TypeVar("_K")
_T = TypeVar("_T")
_Row: TypeAlias = tuple[str, Callable[[StrategyMetrics], str]]


def show_result(result: RunResult, screen: Screen) -> int:
    """Print the result of a run, as JSON where that is wanted; return the exit code."""
    metrics = result.metrics
    if screen.as_json:
        screen.write_json(result.to_dict())
    elif metrics.strategies:
        print_metrics(metrics, screen, result.rounding)
        for line in (*paired_lines(metrics), *rounding_lines(result.rounding), *notes(metrics)):
            screen.out.print(line)
    for failure in result.failures:
        key, tries = failure.key, counted(len(failure.failed_tries), "try", "tries")
        screen.warn(
            f"problem {key.problem_id!r}, {key.strategy}: not answered after {tries}: {failure.error}"
        )
    if metrics.strategies:
        screen.say(f"Results: {result.path}. As a page: reason-spec report {result.path}")
    else:
        screen.say("No answer was written.")
    return EXIT_SOME_FAILED if result.failures else 0


def print_metrics(metrics: RunMetrics, screen: Screen, rounding: Rounding | None = None) -> None:
    """Print a table for each task; on a terminal too narrow for one, strategy by strategy."""
    tasks = tuple(dict.fromkeys(item.task for item in metrics.strategies))
    for number, task in enumerate(tasks):
        if number:
            screen.out.print()
        if len(tasks) > 1:
            screen.out.print("all tasks together" if task == ALL_TASKS else f"task {task}", style="bold")
        rows = [item for item in metrics.strategies if item.task == task]
        pairs = {item.strategy: item for item in metrics.pairs if item.task == task}
        tables = [metrics_table(rows, pairs, rounding)]
        if not screen.fits(tables[0]):
            tables = [metrics_table([item], pairs, rounding) for item in rows]
        for place, table in enumerate(tables):
            if place:
                screen.out.print()
            screen.print_table(table)


def metrics_table(
    rows: Sequence[StrategyMetrics], pairs: Mapping[str, PairedMetrics], rounding: Rounding | None = None
) -> Table:
    """Return one column for each strategy of a task, and one row for each measure that is known."""
    table = plain_table("", *(item.strategy for item in rows))
    for name, cell in (*_quality_rows(rows), *_SPEED_ROWS):
        table.add_row(name, *map(cell, rows))
    for name, estimate in _PAIRED_ROWS if pairs else ():
        found = (pairs.get(item.strategy) for item in rows)
        table.add_row(name, *("1.00x" if pair is None else _times(estimate(pair)) for pair in found))
    if rounding is not None:
        table.add_row(f"flips by {rounding.dtype}", *(_flips(rounding, item.strategy) for item in rows))
    for name, cell in (*_WORK_ROWS, *_rows_where_any(rows)):
        table.add_row(name, *map(cell, rows))
    return table


def paired_lines(metrics: RunMetrics) -> Iterator[str]:
    """Yield the paired comparisons as sentences, with warnings about small samples."""
    several = len({item.task for item in metrics.pairs}) > 1
    for item in metrics.pairs:
        where = f" on {'all tasks' if item.task == ALL_TASKS else item.task}" if several else ""
        same = f"{item.num_identical} of {item.num_pairs} answers have the same tokens"
        yield f"{item.strategy} against {item.baseline}{where}: {same}{_difference(item)}"
        if item.warning:
            yield f"  {item.warning}"


def rounding_lines(rounding: Rounding | None) -> Iterator[str]:
    """Yield a sentence for each strategy about its flips."""
    if rounding is None:
        return
    for strategy, num_pairs in rounding.num_pairs.items():
        flips = rounding.of(strategy)
        gaps = [flip.gap for flip in flips if flip.gap is not None]
        line = f"{strategy} in {rounding.dtype}: {len(flips)} of {num_pairs} answers differ from {BASELINE}"
        if gaps:
            line += f", at tokens {median(gaps):.3f} nats apart in the median and {max(gaps):.3f} at the most"
        yield f"{line}."


def notes(metrics: RunMetrics) -> Iterator[str]:
    """Yield how the numbers of the tables were made."""
    yield "Intervals are for 95 %, and count problems, not samples. Discarded: the target's + the draft's."
    sizes = sorted({size for item in metrics.strategies for size in item.concurrency} - {1})
    if sizes:
        shown = ", ".join(map(str, sizes))
        yield (
            f"Seconds are the wall time of a batch of {shown} problems divided by its size; "
            "their intervals count batches."
        )
    undecided = sum(item.num_undecided for item in metrics.strategies if item.task != ALL_TASKS)
    if undecided:
        yield f"{undecided} answers could not be compared with their reference and count as wrong."


def _quality_rows(rows: Sequence[StrategyMetrics]) -> Iterator[_Row]:
    yield "loss class", lambda item: item.loss_class
    yield "problems x samples", lambda item: f"{item.num_problems} x {item.num_samples}"
    samples = max(item.num_samples for item in rows)
    yield "correct", lambda item: f"{item.num_correct} of {item.num_graded}" if item.num_graded else NONE
    yield f"accuracy (avg@{samples})" if samples > 1 else "accuracy", lambda item: _share(item.accuracy)
    yield "  interval", lambda item: percent_range(item.accuracy.interval if item.accuracy else None)
    for k in _several(item.pass_at for item in rows):
        yield f"pass@{k}", _share_at(k, lambda item: item.pass_at)
    for k in _several(item.majority_at for item in rows):
        yield f"majority@{k}", _share_at(k, lambda item: item.majority_at)
    yield from _vote_rows(rows)


def _vote_rows(rows: Sequence[StrategyMetrics]) -> Iterator[_Row]:
    if all(item.vote is None for item in rows):
        return

    def of(vote: Callable[[VoteMetrics], str]) -> Callable[[StrategyMetrics], str]:
        return lambda item: NONE if item.vote is None else vote(item.vote)

    if any(item.vote and item.vote.num_stopped for item in rows):
        yield "vote of the samples drawn", of(lambda vote: _share_and_interval(vote.accuracy))
        yield "  votes decided early", of(lambda vote: str(vote.num_stopped))
        yield "  samples drawn, cancelled", of(_samples_drawn)
    for share in sorted({share for item in rows if item.vote for share in item.vote.weighted}, reverse=True):
        name = "vote by confidence" if share == 1 else f"  of the surest {share:.0%}"
        yield name, of(_share_at(share, lambda vote: vote.weighted))
    yield "seconds to the vote", of(lambda vote: seconds_text(vote.seconds.value))
    yield "tokens to the vote", of(lambda vote: f"{vote.tokens.value:.1f}")


def _samples_drawn(vote: VoteMetrics) -> str:
    return f"{vote.num_samples.value:.1f} a problem, {vote.num_cancelled} in all"


def _several(estimates: Iterable[Mapping[int, Estimate]]) -> list[int]:
    """Return the numbers of samples beyond one."""
    return sorted({k for by_k in estimates for k in by_k if k > 1})


def _rows_where_any(rows: Sequence[StrategyMetrics]) -> Iterator[_Row]:
    """Yield rows that are left out where no strategy has a value."""
    if any(item.planned_depth is not None for item in rows):
        yield "planned depth", lambda item: ratio_text(item.planned_depth)
    if any(item.alpha_step_of_cache is not None for item in rows):
        yield "steps from the cache", lambda item: percent(item.cached_steps)
        yield "alpha_step of the cache", lambda item: ratio_text(item.alpha_step_of_cache)
    if any(item.num_ended_early or item.probe_tokens for item in rows):
        yield "ended early", lambda item: f"{item.num_ended_early} of {item.num_answers}"
        yield "tokens of trial answers", lambda item: ratio_text(item.probe_tokens)
    if any(item.num_cut for item in rows):
        yield "cut at the token limit", lambda item: str(item.num_cut)
    if any(item.num_retried for item in rows):
        yield "answered after a failure", lambda item: str(item.num_retried)


_SPEED_ROWS: tuple[_Row, ...] = (
    ("tokens/s", lambda item: f"{item.tokens_per_second:.1f}"),
    ("seconds per problem", lambda item: seconds_text(item.seconds_per_problem.value)),
    ("  interval", lambda item: range_text(item.seconds_per_problem.interval, seconds_text)),
    ("  p50, p95", lambda item: f"{seconds_text(item.seconds.p50)}, {seconds_text(item.seconds.p95)}"),
    ("first step, p50", lambda item: seconds_text(item.first_step_seconds.p50)),
)
_PAIRED_ROWS: tuple[tuple[str, Callable[[PairedMetrics], Estimate]], ...] = (
    ("speed-up", lambda item: item.speedup),
    ("speed-up, paired", lambda item: item.paired_speedup),
)
_WORK_ROWS: tuple[_Row, ...] = (
    ("tokens per problem", lambda item: f"{item.tokens_per_problem.value:.1f}"),
    ("tokens saved", lambda item: percent(item.tokens_saved)),
    ("target passes per token", lambda item: ratio_text(item.target_passes)),
    ("target tokens written", lambda item: ratio_text(item.target_tokens)),
    ("target tokens prefilled", lambda item: ratio_text(item.target_prefilled_tokens)),
    ("target tokens scored", lambda item: ratio_text(item.target_scored_tokens)),
    (
        "discarded tokens",
        lambda item: f"{item.target.num_discarded_tokens} + {item.draft.num_discarded_tokens}",
    ),
    ("alpha_step", lambda item: ratio_text(item.alpha_step)),
    ("alpha_step, late drafts too", lambda item: ratio_text(item.alpha_step_of_all)),
    ("alpha_token", lambda item: ratio_text(item.alpha_token)),
    ("steps by the draft", lambda item: percent(item.drafted_steps)),
)


def _share(estimate: Estimate | None) -> str:
    return NONE if estimate is None else percent(estimate.value)


def _share_at(key: _K, estimates: Callable[[_T], Mapping[_K, Estimate]]) -> Callable[[_T], str]:
    return lambda item: _share_and_interval(estimates(item).get(key))


def _share_and_interval(estimate: Estimate | None) -> str:
    return NONE if estimate is None else f"{percent(estimate.value)} ({percent_range(estimate.interval)})"


def _times(estimate: Estimate) -> str:
    return f"{times_text(estimate.value)} ({range_text(estimate.interval, ratio_text)})"


def _flips(rounding: Rounding, strategy: str) -> str:
    if strategy not in rounding.num_pairs:
        return NONE
    return f"{len(rounding.of(strategy))} of {rounding.num_pairs[strategy]}"


def _difference(item: PairedMetrics) -> str:
    if item.accuracy_difference is None:
        return "."
    points = 100 * item.accuracy_difference.value
    change = "no difference of accuracy"
    if points:
        change = f"{abs(points):.1f} points of accuracy {'gained' if points > 0 else 'lost'}"
    details = [f"{item.num_better} better, {item.num_worse} worse"]
    if item.accuracy_difference.interval is not None:
        low, high = (100 * end for end in item.accuracy_difference.interval)
        details.append(f"interval {low:+.1f} to {high:+.1f} points")
    if item.p_value is not None:
        details.append(f"exact McNemar p = {item.p_value:.2g}")
    text = f"; {change} on {counted(item.num_problems, 'problem')} ({', '.join(details)})"
    if item.loss_upper is not None:
        text += f"; the loss is at most {100 * item.loss_upper:.1f} points with 95 % confidence"
    return text + "."
