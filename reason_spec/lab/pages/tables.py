"""The tables of a report: as text for people, and as files of comma-separated values with every digit."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reason_spec.evaluation.amounts import percent, ratio_text, seconds_text
from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.metrics import ALL_TASKS, StrategyMetrics
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.paired import PairedMetrics
from reason_spec.evaluation.records import writing
from reason_spec.lab.pages.difficulty import count_groups, group_problems
from reason_spec.lab.pages.runs import Run
from reason_spec.lab.pages.spans import picture

NONE = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a cell, and in small print below it."""

    text: str
    below: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people; each heading has a sentence that explains it."""

    headings: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]


_Row = Mapping[str, Any]


# For people ----------------------------------------------------------------------------------


def strategies_table(run: Run, task: str) -> Table:
    """Return a row for each strategy: how good, how fast, and by what means."""
    rows = [row for row in run.metrics.strategies if row.task == task]
    pairs = {pair.strategy: pair for pair in run.metrics.pairs if pair.task == task}
    repeated = any(row.num_samples > 1 for row in rows)
    headings = [
        ("strategy", "Below it what the strategy may change: nothing, the wording, or the step itself"),
        ("answers", "Finished answers; below it the problems and what is odd about some answers"),
        ("right", "Mean over problems of the share of right answers, with its 95 % interval"),
        *(
            [("pass@k, majority@k", "A right one among k answers; the most frequent of k is right")]
            * repeated
        ),
        ("seconds", "Median of an answer; below it the 95th percentile"),
        ("first step", "Median of the seconds until the first step is final"),
        ("speed-up", "Mean seconds of the baseline over those of the strategy, with its 95 % interval"),
        (
            "tokens saved",
            "Of the answers' tokens, not written by the target; below it, those it read, of each",
        ),
        (
            "α step",
            "Share of judged drafted steps that stood; below it, with those too late to be judged",
        ),
        ("α token", "Share of the target's token drafts that were right"),
    ]
    priced = any(row.cost for row in rows)
    headings += [("cost", "By the prices given")] * priced
    return Table(
        tuple(headings),
        tuple(
            _strategy_cells(row, pairs.get(row.strategy), repeated=repeated, priced=priced) for row in rows
        ),
    )


def _strategy_cells(
    row: StrategyMetrics, pair: PairedMetrics | None, *, repeated: bool, priced: bool
) -> tuple[Cell, ...]:
    odd = [
        f"{number} {what}"
        for number, what in (
            (row.num_undecided, "undecided"),
            (row.num_cut, "cut"),
            (row.num_retried, "retried"),
        )
        if number
    ]
    problems = f"{row.num_problems} problem{'' if row.num_problems == 1 else 's'}"
    cells = [
        Cell(row.strategy, row.loss_class),
        Cell(str(row.num_answers), ", ".join([problems, *odd])),
        _percent_cell(row.accuracy),
    ]
    if repeated:
        cells.append(Cell(_at(row.pass_at), _at(row.majority_at)))
    cells += [
        Cell(seconds_text(row.seconds.p50), f"p95 {seconds_text(row.seconds.p95)}"),
        Cell(seconds_text(row.first_step_seconds.p50)),
        Cell("1.00×", "baseline") if pair is None else _speedup_cell(pair.speedup),
        Cell(
            percent(row.tokens_saved),
            f"read {ratio_text(row.target_prefilled_tokens + row.target_scored_tokens)}",
        ),
        Cell(ratio_text(row.alpha_step), _late(row)),
        Cell(ratio_text(row.alpha_token)),
    ]
    cells += [Cell(NONE if row.cost is None else f"{row.cost:.4g}")] * priced
    return tuple(cells)


def _late(row: StrategyMetrics) -> str:
    """Return the acceptance of all drafted steps where some came too late to be judged."""
    of_all = row.alpha_step_of_all
    return "" if of_all is None or of_all == row.alpha_step else f"{ratio_text(of_all)} of all"


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
    pairs = [pair for pair in run.metrics.pairs if pair.task == task]
    return Table(headings, tuple(map(_pair_cells, pairs)))


def _pair_cells(pair: PairedMetrics) -> tuple[Cell, ...]:
    return (
        Cell(pair.strategy, f"{pair.num_problems} problems"),
        Cell(f"{pair.num_identical} of {pair.num_pairs}"),
        _points_cell(pair.accuracy_difference),
        Cell(NONE if pair.loss_upper is None else f"{100 * pair.loss_upper:.1f}"),
        Cell(NONE if pair.p_value is None else f"{pair.p_value:.2g}"),
        _speedup_cell(pair.speedup),
        _speedup_cell(pair.paired_speedup),
    )


def _percent_cell(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell(NONE)
    return Cell(percent(estimate.value), _between(estimate, 100, ".1f"))


def _points_cell(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell(NONE)
    return Cell(f"{100 * estimate.value:+.1f}", _between(estimate, 100, "+.1f"))


def _speedup_cell(estimate: Estimate) -> Cell:
    return Cell(f"{estimate.value:.2f}×", _between(estimate, 1, ".2f"))


def _between(estimate: Estimate, factor: float, digits: str) -> str:
    if estimate.interval is None:
        return "no interval"
    low, high = estimate.interval
    return f"{factor * low:{digits}} to {factor * high:{digits}}"


def _at(estimates: Mapping[int, Estimate]) -> str:
    return ", ".join(f"@{k} {100 * estimate.value:.1f}" for k, estimate in estimates.items()) or NONE


# For programs --------------------------------------------------------------------------------


def write_csv(runs: Sequence[Run], folder: Path) -> tuple[Path, ...]:
    """Write every table as a file of its own, one fact in each row; return the files.

    Raises:
        DataError: the folder or a file cannot be written.
    """
    tables = {
        "strategies": _strategy_rows(runs),
        "at_k": _at_k_rows(runs),
        "pairs": _pair_rows(runs),
        "acceptance_by_step": _step_rows(runs),
        "acceptance_by_difficulty": _difficulty_rows(runs),
        "token_acceptance": _histogram_rows(runs),
        "answers": _answer_rows(runs),
        "spans": _span_rows(runs),
    }
    files = []
    with writing(folder, "Name another folder with --csv."):
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            files.append(_write(folder / f"{name}.csv", rows))
    return tuple(files)


def _write(path: Path, rows: Iterable[_Row]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, row)
                writer.writeheader()
            writer.writerow({name: _harmless(value) for name, value in row.items()})
    return path


def _harmless(value: Any) -> Any:
    """Keep a spreadsheet from taking a model's text for a formula."""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


def _bounds(name: str, estimate: Estimate | None) -> dict[str, Any]:
    low, high = (estimate and estimate.interval) or (None, None)
    return {name: estimate and estimate.value, f"{name}_low": low, f"{name}_high": high}


def _strategy_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    for run in runs:
        for row in run.metrics.strategies:
            yield {
                **_place(run, row.task, row.strategy),
                "loss_class": row.loss_class,
                "problems": row.num_problems,
                "answers": row.num_answers,
                "samples": row.num_samples,
                "graded": row.num_graded,
                "undecided": row.num_undecided,
                "cut": row.num_cut,
                "retried": row.num_retried,
                **_bounds("accuracy", row.accuracy),
                "accuracy_standard_error": None if row.accuracy is None else row.accuracy.standard_error,
                "seconds_mean": row.seconds.mean,
                "seconds_p50": row.seconds.p50,
                "seconds_p90": row.seconds.p90,
                "seconds_p95": row.seconds.p95,
                "seconds_p99": row.seconds.p99,
                "first_step_seconds_p50": row.first_step_seconds.p50,
                **_bounds("seconds_per_problem", row.seconds_per_problem),
                **_bounds("tokens_per_problem", row.tokens_per_problem),
                "tokens_per_second": row.tokens_per_second,
                "target_tokens": row.target_tokens,
                "target_prefilled_tokens": row.target_prefilled_tokens,
                "target_scored_tokens": row.target_scored_tokens,
                "tokens_saved": row.tokens_saved,
                "alpha_step": row.alpha_step,
                "alpha_step_of_all": row.alpha_step_of_all,
                "alpha_token": row.alpha_token,
                "target_passes": row.target.num_passes,
                "target_discarded_tokens": row.target.num_discarded_tokens,
                "draft_generated_tokens": row.draft.num_generated_tokens,
                "draft_discarded_tokens": row.draft.num_discarded_tokens,
                "verifier_seconds": row.verifier_seconds,
                "cost": row.cost,
            }


def _at_k_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    for run in runs:
        for row in run.metrics.strategies:
            for measure, estimates in (("pass", row.pass_at), ("majority", row.majority_at)):
                for k, estimate in estimates.items():
                    place = _place(run, row.task, row.strategy)
                    yield {**place, "measure": measure, "k": k, **_bounds("value", estimate)}


def _pair_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    for run in runs:
        for pair in run.metrics.pairs:
            yield {
                **_place(run, pair.task, pair.strategy),
                "baseline": pair.baseline,
                "problems": pair.num_problems,
                "pairs": pair.num_pairs,
                "identical": pair.num_identical,
                "apart": pair.num_apart,
                **_bounds("accuracy_difference", pair.accuracy_difference),
                "loss_upper": pair.loss_upper,
                "p_value": pair.p_value,
                "smallest_difference": pair.smallest_difference,
                **_bounds("speedup", pair.speedup),
                **_bounds("paired_speedup", pair.paired_speedup),
                **_bounds("tokens_difference", pair.tokens_difference),
                "warning": pair.warning,
            }


def _step_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    for run in runs:
        for row in run.metrics.strategies:
            for step in row.acceptance_by_step:
                yield {
                    **_place(run, row.task, row.strategy),
                    "step": step.step_index,
                    "accepted": step.num_accepted,
                    "rejected": step.num_rejected,
                    "unknown": step.num_unknown,
                }


def _difficulty_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    for run in runs:
        for task in dict.fromkeys(row.task for row in run.metrics.strategies):
            outcomes = [outcome for outcome in run.outcomes if task in (outcome.task, ALL_TASKS)]
            groups = group_problems(outcomes, run.baseline)
            for strategy in run.strategies:
                for counts in count_groups(outcomes, groups, strategy, run.baseline):
                    yield {
                        **_place(run, task, strategy),
                        "group": counts.group.label,
                        "detail": counts.group.detail,
                        "problems": counts.num_problems,
                        "answers": counts.num_answers,
                        "graded": counts.num_graded,
                        "correct": counts.num_correct,
                        "accepted": counts.num_accepted,
                        "verdicts": counts.num_verdicts,
                        "alpha_step": counts.alpha_step,
                        "alpha_token": counts.alpha_token,
                        "speedup": counts.speedup,
                    }


def _histogram_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    for run in runs:
        for row in run.metrics.strategies:
            for place, count in enumerate(row.alpha_token_histogram):
                bounds = {"alpha_token_from": place / 10, "alpha_token_to": (place + 1) / 10}
                yield {**_place(run, row.task, row.strategy), **bounds, "answers": count}


def _answer_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    for run in runs:
        for outcome in run.outcomes:
            yield {**_place(run, outcome.task, outcome.strategy), **_answer_row(outcome)}


def _answer_row(outcome: Outcome) -> dict[str, Any]:
    return {
        "id": outcome.id,
        "sample": outcome.sample,
        "level": outcome.level,
        "correct": outcome.correct,
        "prediction": outcome.prediction,
        "reference": outcome.answer,
        "seconds": outcome.seconds,
        "first_step_seconds": outcome.first_step_seconds,
        "tokens": outcome.tokens,
        "steps": len(outcome.steps),
        "finish": outcome.finish,
        "alpha_step": outcome.alpha_step,
        "alpha_step_of_all": outcome.alpha_step_of_all,
        "alpha_token": outcome.alpha_token,
        "target_passes": outcome.usage.target.num_passes,
        "discarded_target_tokens": outcome.usage.target.num_discarded_tokens,
        "discarded_draft_tokens": outcome.usage.draft.num_discarded_tokens,
        "verifier_seconds": outcome.usage.verifier_seconds,
        "failed_tries": len(outcome.failed_tries),
        "session": outcome.session,
    }


def _span_rows(runs: Sequence[Run]) -> Iterator[_Row]:
    """Yield the spans of the answers whose timelines the report has."""
    for run in runs:
        for key, timeline in run.timelines.items():
            for span in picture(timeline).spans:
                yield {
                    "run": run.label,
                    "id": key.problem_id,
                    "sample": key.sample,
                    "strategy": key.strategy,
                    "work": span.work,
                    "lane": span.lane,
                    "purpose": span.purpose,
                    "step": span.step_index,
                    "branch": span.branch,
                    "start": span.start,
                    "end": span.end,
                    "state": span.state,
                    "tokens": span.num_tokens,
                    "about": span.about,
                    "score": span.score,
                    "reason": span.reason,
                }


def _place(run: Run, task: str, strategy: str) -> dict[str, Any]:
    return {"run": run.label, "task": task, "strategy": strategy}
