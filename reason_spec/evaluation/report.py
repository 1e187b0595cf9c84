"""Summaries as text and tables for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions
from rich.segment import Segments
from rich.table import Table

from reason_spec.evaluation.outcome import DECISIONS, Outcome
from reason_spec.evaluation.rounding import Rounding, flip_cell
from reason_spec.evaluation.statistics import wilson_interval
from reason_spec.evaluation.summary import Comparison, StrategySummary, Summary
from reason_spec.tasks.regrade import GradeCounts
from reason_spec.verifiers.pairs import VerifySummary

NONE = "-"


def print_summary(summary: Summary, console: Console, rounding: Rounding | None = None) -> None:
    """Print the table; on a terminal too narrow for it, strategy by strategy. No number is ever cut."""
    tables = [summary_table(summary, rounding=rounding)]
    if console.is_terminal and at_full_width(tables[0], console).max_width > console.width:
        tables = [summary_table(summary, [item], rounding) for item in summary.strategies]
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(Segments(console.render(table, at_full_width(table, console))), soft_wrap=True)


def at_full_width(table: Table, console: Console) -> ConsoleOptions:
    """Return the options under which a table is as wide as its content, whatever the console's width."""
    unlimited = console.options.update(max_width=sys.maxsize)
    return console.options.update(max_width=console.measure(table, options=unlimited).maximum)


def summary_table(
    summary: Summary, shown: Sequence[StrategySummary] | None = None, rounding: Rounding | None = None
) -> Table:
    """Return one column for each strategy, or for those ``shown``, and one row for each measure."""
    strategies = summary.strategies if shown is None else shown
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for item in strategies:
        table.add_column(item.strategy, justify="right", no_wrap=True)
    compared = {item.strategy: item for item in summary.comparisons}
    for name, cell in _QUALITY_ROWS:
        table.add_row(name, *(cell(item) for item in strategies))
    for name, ratio in _SPEEDUP_ROWS if compared else ():
        ratios = (compared.get(item.strategy) for item in strategies)
        table.add_row(name, *("1.00x" if item is None else f"{ratio(item):.2f}x" for item in ratios))
    if rounding is not None:
        cells = (flip_cell(rounding, item.strategy) for item in strategies)
        table.add_row(f"parted by {rounding.dtype}", *cells)
    for name, cell in _WORK_ROWS:
        table.add_row(name, *(cell(item) for item in strategies))
    for name, cell in _CACHE_ROWS if any(_asked_the_cache(item) for item in strategies) else ():
        table.add_row(name, *(cell(item) for item in strategies))
    if any(item.num_cut for item in strategies):
        table.add_row("cut at the token limit", *(str(item.num_cut) for item in strategies))
    return table


def comparison_lines(summary: Summary) -> Iterator[str]:
    """Yield what the paired comparisons say, a sentence or two for each strategy."""
    for item in summary.comparisons:
        yield f"{item.strategy} against {item.baseline}: {_pairs(item)}{_accuracy(item)}"
        if item.num_apart:
            yield (
                f"{item.num_apart} of these {item.num_pairs} pairs were timed in different runs of the "
                "command; their speed-up is only as good as the quiet of the machine."
            )


def notes(summary: Summary) -> Iterator[str]:
    """Yield what a reader of the table has to know about how its numbers were made."""
    yield "Seconds are medians; discarded tokens are the target's + the draft's."
    sizes = sorted({size for item in summary.strategies for size in item.concurrency} - {1})
    if sizes:
        shown = ", ".join(map(str, sizes))
        yield f"Seconds are the wall time of a batch of {shown} problems divided by its size."
    if any(item.num_undecided for item in summary.strategies):
        total = sum(item.num_undecided for item in summary.strategies)
        yield f"{total} answers could not be compared with their reference and count as wrong."
    if any(item.num_answers > item.num_problems for item in summary.strategies):
        yield "Accuracy is the mean over samples; intervals and tests count problems, not samples."


def answer_line(outcome: Outcome) -> str:
    """Return the numbers of one answer on one line."""
    origins = ", ".join(f"{origin} {count}" for origin, count in outcome.num_steps_by_origin.items())
    return (
        f"{outcome.tokens} tokens, {outcome.seconds:.2f} s, {outcome.tokens_per_second:.1f} tokens/s"
        f" | steps: {origins or 'none'}"
        f" | alpha_step {ratio_text(outcome.alpha_step)} | alpha_token {ratio_text(outcome.alpha_token)}"
    )


def grade_line(counts: GradeCounts) -> str:
    """Return how many responses of a file were correct, on one line."""
    if not counts.num_responses:
        return "0 of 0 responses are correct: the file holds none" + _left_out(len(counts.bad_lines))
    interval = wilson_interval(counts.num_correct, counts.num_responses)
    accuracy = f"{100 * counts.num_correct / counts.num_responses:.1f} %"
    return (
        f"{counts.num_correct} of {counts.num_responses} responses are correct: "
        f"{accuracy} (95 % interval {100 * interval.low:.1f} - {100 * interval.high:.1f} %); "
        f"{counts.num_without_answer} without an answer, {counts.num_ungraded} undecided"
        + _left_out(len(counts.bad_lines))
    )


def verify_line(summary: VerifySummary) -> str:
    """Return how many pairs of steps got which verdict, on one line."""
    counts = ", ".join(f"{summary.decisions.get(name, 0)} {name}" for name in DECISIONS)
    each = 1000 * summary.seconds / summary.num_pairs if summary.num_pairs else 0.0
    pairs = "1 pair" if summary.num_pairs == 1 else f"{summary.num_pairs} pairs"
    return f"{pairs}: {counts}; {each:.1f} ms each" + _left_out(summary.num_skipped_lines)


def _left_out(count: int) -> str:
    return f"; {count} unusable line{'' if count == 1 else 's'} left out" if count else ""


def ratio_text(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def seconds_text(seconds: float) -> str:
    """Return seconds with three digits that count."""
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def _correct(item: StrategySummary) -> str:
    return f"{item.num_correct} of {item.num_graded}" if item.num_graded else NONE


def _interval(item: StrategySummary) -> str:
    if item.accuracy_interval is None:
        return NONE
    return f"{100 * item.accuracy_interval.low:.1f}-{100 * item.accuracy_interval.high:.1f} %"


def _discarded(item: StrategySummary) -> str:
    return f"{item.target.num_discarded_tokens} + {item.draft.num_discarded_tokens}"


def _pairs(item: Comparison) -> str:
    return f"{item.num_identical} of {item.num_pairs} answers have the same tokens"


def _accuracy(item: Comparison) -> str:
    if item.accuracy is None:
        return "."
    paired = item.accuracy
    change = "no accuracy lost"
    if paired.loss:
        change = f"{100 * abs(paired.loss):.1f} points of accuracy {'lost' if paired.loss > 0 else 'gained'}"
    counts = f"{paired.num_better} better, {paired.num_worse} worse"
    bound = f"the loss is at most {100 * paired.loss_upper:.1f} points with 95 % confidence"
    test = f"exact McNemar p = {paired.p_value:.2g}"
    return f"; {change} on {paired.num_problems} problems ({counts}, {test}); {bound}."


_QUALITY_ROWS: tuple[tuple[str, Callable[[StrategySummary], str]], ...] = (
    ("loss class", lambda item: item.loss_class),
    ("correct", _correct),
    ("accuracy", lambda item: percent(item.accuracy)),
    ("95 % interval", _interval),
    ("tokens/s", lambda item: f"{item.tokens_per_second:.1f}"),
    ("seconds per problem", lambda item: seconds_text(item.seconds_per_problem)),
    ("seconds to first step", lambda item: seconds_text(item.seconds_to_first_step)),
)
_SPEEDUP_ROWS: tuple[tuple[str, Callable[[Comparison], float]], ...] = (
    ("speed-up", lambda item: item.speedup),
    ("speed-up, paired", lambda item: item.paired_speedup),
)
_WORK_ROWS: tuple[tuple[str, Callable[[StrategySummary], str]], ...] = (
    ("alpha_step", lambda item: ratio_text(item.alpha_step)),
    ("alpha_step, late drafts too", lambda item: ratio_text(item.alpha_step_of_all)),
    ("alpha_token", lambda item: ratio_text(item.alpha_token)),
    ("steps by the draft", lambda item: percent(item.drafted_steps)),
    ("planned depth", lambda item: ratio_text(item.planned_depth)),
    ("target passes per token", lambda item: ratio_text(item.target_passes_per_token)),
    ("target tokens written", lambda item: ratio_text(item.target_written_per_token)),
    ("target tokens prefilled", lambda item: ratio_text(item.target_prefilled_per_token)),
    ("target tokens scored", lambda item: ratio_text(item.target_scored_per_token)),
    ("discarded tokens", _discarded),
)
_CACHE_ROWS: tuple[tuple[str, Callable[[StrategySummary], str]], ...] = (
    ("steps from the cache", lambda item: percent(item.cached_steps)),
    ("alpha_step of the cache", lambda item: ratio_text(item.alpha_step_of_cache)),
)


def _asked_the_cache(item: StrategySummary) -> bool:
    return item.alpha_step_of_cache is not None
