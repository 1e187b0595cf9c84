"""The tables of a report: as text for the page, and as CSV files with every digit."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

from reason_spec.evaluation.amounts import percent, ratio_text, seconds_text
from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.metrics import StrategyMetrics
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.paired import PairedMetrics
from reason_spec.evaluation.records import writing
from reason_spec.lab.pages.runs import Run
from reason_spec.tasks.numerals import parse_number

NONE = "–"
Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of a cell, and the small print below it."""

    text: str
    below: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page; each heading comes with a sentence that explains it."""

    headings: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]


# Tables of the page --------------------------------------------------------------------------


def strategies_table(run: Run, task: str) -> Table:
    """Return a row for each strategy: accuracy, latency, speed-up and acceptance rates."""
    rows = [row for row in run.metrics.strategies if row.task == task]
    pairs = {pair.strategy: pair for pair in run.metrics.pairs if pair.task == task}
    optional = {"pass@k, majority@k": any(row.num_samples > 1 for row in rows)}
    columns = [name for name in _STRATEGY_COLUMNS if optional.get(name, True)]
    cells = [_strategy_cells(row, pairs.get(row.strategy)) for row in rows]
    return Table(
        tuple((name, _STRATEGY_COLUMNS[name]) for name in columns),
        tuple(tuple(by_name[name] for name in columns) for by_name in cells),
    )


_STRATEGY_COLUMNS = {
    "strategy": "Below it what the strategy may change: nothing, the wording, or the steps themselves",
    "answers": "Finished answers; below it the number of problems, and unusual answers",
    "right": "Mean over problems of the share of right answers, with its 95 % interval",
    "pass@k, majority@k": "At least one of k answers is right; the most frequent of k answers is right",
    "seconds": "Median latency of an answer; below it the 95th percentile",
    "first step": "Median time until the first step is final",
    "speed-up": "Mean seconds of the baseline over those of the strategy, with its 95 % interval",
    "tokens saved": "Share of the answers' tokens that the target did not generate; below it, what it read, "
    "as a share of the same",
    "α step": "Share of judged drafted steps that were accepted; below it, with drafts that came too late",
    "α token": "Share of the target's token drafts that were accepted",
}


def _strategy_cells(row: StrategyMetrics, pair: PairedMetrics | None) -> dict[str, Cell]:
    problems = f"{row.num_problems} problem{'' if row.num_problems == 1 else 's'}"
    counts = {"undecided": row.num_undecided, "cut": row.num_cut, "retried": row.num_retried}
    unusual = [f"{number} {what}" for what, number in counts.items() if number]
    late = row.alpha_step_of_all not in (None, row.alpha_step)
    read = row.target_prefilled_tokens + row.target_scored_tokens
    return {
        "strategy": Cell(row.strategy, row.loss_class),
        "answers": Cell(str(row.num_answers), ", ".join([problems, *unusual])),
        "right": _estimate_cell(row.accuracy, 100, ".1f", " %"),
        "pass@k, majority@k": Cell(_at(row.pass_at), _at(row.majority_at)),
        "seconds": Cell(seconds_text(row.seconds.p50), f"p95 {seconds_text(row.seconds.p95)}"),
        "first step": Cell(seconds_text(row.first_step_seconds.p50)),
        "speed-up": Cell("1.00×", "baseline") if pair is None else _ratio_cell(pair.speedup),
        "tokens saved": Cell(percent(row.tokens_saved), f"read {ratio_text(read)}"),
        "α step": Cell(ratio_text(row.alpha_step), f"{ratio_text(row.alpha_step_of_all)} of all" * late),
        "α token": Cell(ratio_text(row.alpha_token)),
    }


def pairs_table(run: Run, task: str) -> Table:
    """Return a row for each strategy against the baseline, on the problems that both answered."""
    headings = (
        ("against the baseline", "The strategy; below it the problems that both answered"),
        ("same tokens", "Pairs of answers that are equal token by token"),
        ("difference in right answers", "In points, with its 95 % interval"),
        ("loss at most", "Upper end of the one-sided 95 % interval of the loss, in points"),
        ("p", "McNemar's exact test, two-sided"),
        ("speed-up", "Ratio of mean seconds, with its 95 % interval"),
        ("paired speed-up", "Median over pairs of the ratio, with its 95 % interval"),
    )
    rows = tuple(
        (
            Cell(pair.strategy, f"{pair.num_problems} problems"),
            Cell(f"{pair.num_identical} of {pair.num_pairs}"),
            _estimate_cell(pair.accuracy_difference, 100, "+.1f"),
            Cell(NONE if pair.loss_upper is None else f"{100 * pair.loss_upper:.1f}"),
            Cell(NONE if pair.p_value is None else f"{pair.p_value:.2g}"),
            _ratio_cell(pair.speedup),
            _ratio_cell(pair.paired_speedup),
        )
        for pair in run.metrics.pairs
        if pair.task == task
    )
    return Table(headings, rows)


def _ratio_cell(estimate: Estimate) -> Cell:
    return _estimate_cell(estimate, 1, ".2f", "×")


def _estimate_cell(estimate: Estimate | None, factor: float, digits: str, unit: str = "") -> Cell:
    if estimate is None:
        return Cell(NONE)
    text = f"{factor * estimate.value:{digits}}{unit}"
    if estimate.interval is None:
        return Cell(text, "no interval")
    low, high = estimate.interval
    return Cell(text, f"{factor * low:{digits}} to {factor * high:{digits}}")


def _at(estimates: Mapping[int, Estimate]) -> str:
    return ", ".join(f"@{k} {100 * estimate.value:.1f}" for k, estimate in estimates.items()) or NONE


# CSV files -----------------------------------------------------------------------------------


def write_csv(runs: Sequence[Run], folder: Path) -> tuple[Path, ...]:
    """Write strategies, pairs and answers as CSV files; return the files.

    Raises:
        DataError: the folder or a file cannot be written.
    """
    tables: dict[str, list[Record]] = {"strategies": [], "pairs": [], "answers": []}
    for run in runs:
        label: Record = {"run": run.label}
        tables["strategies"] += [{**label, **_flat(row)} for row in run.metrics.strategies]
        tables["pairs"] += [{**label, **_flat(pair)} for pair in run.metrics.pairs]
        tables["answers"] += [{**label, **_answer_record(outcome)} for outcome in run.outcomes]
    files = []
    with writing(folder, "Name another folder with --csv."):
        folder.mkdir(parents=True, exist_ok=True)
        for name, records in tables.items():
            files.append(folder / f"{name}.csv")
            with files[-1].open("w", encoding="utf-8", newline="") as file:
                columns = dict.fromkeys(column for record in records for column in record)
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows({key: _escaped(value) for key, value in row.items()} for row in records)
    return tuple(files)


def _escaped(value: Any) -> Any:
    """Keep a spreadsheet from reading a model's text as a formula."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    is_number = formula and value[0] in "+-" and parse_number(value) is not None
    return f"'{value}" if formula and not is_number else value


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass as columns; an estimate has four, lists and mappings have none."""
    columns: dict[str, Any] = {}
    for field in fields(record):
        name, value = prefix + field.name, getattr(record, field.name)
        if isinstance(value, Estimate):
            low, high = value.interval or (None, None)
            columns |= {name: value.value, f"{name}_low": low, f"{name}_high": high}
            columns[f"{name}_standard_error"] = value.standard_error
        elif is_dataclass(value):
            columns |= _flat(value, f"{name}_")
        elif not isinstance(value, (tuple, Mapping)):
            columns[name] = value
    return columns


def _answer_record(outcome: Outcome) -> Record:
    columns = _flat(outcome)
    texts = {"question", "response"}
    return {name: value for name, value in columns.items() if name not in texts} | {
        "steps": len(outcome.steps),
        "alpha_step": outcome.alpha_step,
        "alpha_step_of_all": outcome.alpha_step_of_all,
        "alpha_token": outcome.alpha_token,
        "failed_tries": len(outcome.failed_tries),
    }
