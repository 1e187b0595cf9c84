"""The data that the page's script draws: charts for each task, and single answers with their timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from pydantic_core import to_jsonable_python

from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.metrics import ALL_TASKS, StepAcceptance
from reason_spec.evaluation.outcome import Outcome, StepRecord
from reason_spec.evaluation.statistics import exact_interval
from reason_spec.lab.pages.runs import Run
from reason_spec.lab.pages.spans import LANES, view_of

_MAX_STEPS = 40
"""Later steps occur in few answers; the chart by step leaves them out."""
MAX_CHARACTERS = 6_000_000
"""Limit on the text of the answers shown one by one; later answers are left out."""
_NUM_QUANTILES = 100


@dataclass(frozen=True, slots=True)
class Series:
    """One strategy of one run: the same colour and shape in all charts."""

    run: int
    strategy: str
    label: str
    colour: int


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Return everything that the page draws, as values that JSON holds."""
    series = all_series(runs)
    content: dict[str, Any] = {
        "runs": [run.title for run in runs],
        "series": series,
        "charts": [
            {
                "task": task,
                "lines": [line for item in series if (line := _line(runs, item, task)) is not None],
            }
            for task in tasks_of(runs)
        ],
        "problems": _problems(runs, series),
    }
    # JSON has no infinite numbers.
    return dict(to_jsonable_python(content, inf_nan_mode="null"))


def all_series(runs: Sequence[Run]) -> tuple[Series, ...]:
    """Return the strategies of all runs; a strategy has the same colour in each run."""
    names = dict.fromkeys(name for run in runs for name in run.strategies)
    colours = {name: place for place, name in enumerate(names)}
    return tuple(
        Series(number, name, name if len(runs) == 1 else f"{name} {run.letter}", colours[name])
        for number, run in enumerate(runs)
        for name in run.strategies
    )


def tasks_of(runs: Sequence[Run]) -> list[str]:
    """Return the tasks that the metrics have rows for, all tasks together first."""
    names = list(dict.fromkeys(row.task for run in runs for row in run.metrics.strategies))
    return sorted(names, key=lambda name: (name != ALL_TASKS, names.index(name)))


def _line(runs: Sequence[Run], item: Series, task: str) -> dict[str, Any] | None:
    """Return what the charts show of one strategy on one task; None where it has no answers there."""
    run = runs[item.run]
    rows = (row for row in run.metrics.strategies if (row.task, row.strategy) == (task, item.strategy))
    row = next(rows, None)
    if row is None:
        return None
    pairs = (pair for pair in run.metrics.pairs if (pair.task, pair.strategy) == (task, item.strategy))
    speedup = next((pair.speedup for pair in pairs), None)
    if item.strategy == run.baseline and len(run.strategies) > 1:
        speedup = Estimate(1.0, None)
    seconds = [
        outcome.seconds
        for outcome in run.outcomes
        if outcome.strategy == item.strategy and task in (outcome.task, ALL_TASKS)
    ]
    return {
        "series": item,
        "answers": row.num_answers,
        "accuracy": row.accuracy,
        "seconds": row.seconds_per_problem,
        "speedup": speedup,
        "latencies": _quantiles(seconds),
        "steps": [
            {**asdict(step), "place": step.step_index + 1, "verdicts": _verdicts(step), "share": _share(step)}
            for step in row.acceptance_by_step[:_MAX_STEPS]
            if _verdicts(step)
        ],
    }


def _verdicts(step: StepAcceptance) -> int:
    return step.num_accepted + step.num_rejected + step.num_unknown


def _share(step: StepAcceptance) -> Estimate:
    """Return the share of judged drafts that were accepted."""
    number = _verdicts(step)
    return Estimate(step.num_accepted / number, exact_interval(step.num_accepted, number))


def _quantiles(values: Sequence[float]) -> list[float]:
    """Return the values in order, or their percentiles where there are more than a hundred."""
    if len(values) > _NUM_QUANTILES:
        values = [min(values), *quantiles(values, n=_NUM_QUANTILES, method="inclusive"), max(values)]
    return sorted(values)


def _problems(runs: Sequence[Run], series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return the problems shown one by one, each with the answers of all its strategies."""
    shown: list[dict[str, Any]] = []
    num_characters = 0
    for number, run in enumerate(runs):
        by_problem: dict[tuple[str, int], list[Outcome]] = {}
        for outcome in run.outcomes:
            if outcome.key in run.shown:
                by_problem.setdefault((outcome.id, outcome.sample), []).append(outcome)
        own = {item.strategy: place for place, item in enumerate(series) if item.run == number}
        for outcomes in by_problem.values():
            num_characters += sum(len(outcome.response) for outcome in outcomes)
            if num_characters > MAX_CHARACTERS:
                return shown
            shown.append(_problem(run, number, outcomes, own))
    return shown


def _problem(run: Run, number: int, outcomes: Sequence[Outcome], series: Mapping[str, int]) -> dict[str, Any]:
    first = outcomes[0]
    baseline = next((outcome for outcome in outcomes if outcome.strategy == run.baseline), None)
    in_order = sorted(outcomes, key=lambda outcome: run.strategies.index(outcome.strategy))
    return {
        "run": number,
        "id": first.id,
        "sample": first.sample,
        "task": first.task,
        "level": first.level,
        "question": first.question,
        "reference": first.answer,
        "answers": [_answer(run, outcome, baseline, series[outcome.strategy]) for outcome in in_order],
    }


def _answer(run: Run, outcome: Outcome, baseline: Outcome | None, series: int) -> dict[str, Any]:
    timeline = run.timelines.get(outcome.key)
    speedup = None
    if baseline is not None and baseline is not outcome and outcome.seconds > 0:
        speedup = baseline.seconds / outcome.seconds
    view = None if timeline is None else view_of(timeline)
    return {
        "series": series,
        "baseline": outcome is baseline,
        "seconds": outcome.seconds,
        "speedup": speedup,
        "tokens": outcome.tokens,
        "correct": outcome.correct,
        "prediction": outcome.prediction,
        "finish": outcome.finish,
        "alpha_step": outcome.alpha_step,
        "alpha_token": outcome.alpha_token,
        "discarded_target_tokens": outcome.usage.target.num_discarded_tokens,
        "discarded_draft_tokens": outcome.usage.draft.num_discarded_tokens,
        "failed_tries": outcome.failed_tries,
        "steps": [_step(step) for step in outcome.steps],
        "timeline": view and {**asdict(view), "rows": {lane: view.num_rows(lane) for lane in LANES}},
    }


def _step(step: StepRecord) -> dict[str, Any]:
    verdict = step.verdict
    judged = verdict and {
        "decision": verdict.decision,
        "score": verdict.score,
        "reason": verdict.reason,
        "seconds": verdict.cost_seconds,
    }
    return {"text": step.text, "origin": step.origin, "tokens": step.tokens, "verdict": judged}
