"""What the page draws, as JSON: charts for each task, and single answers with their timelines.

Texts come once, in ``texts``, and everything else names them by their place there. Spans and steps are lists
whose fields are named in ``fields``; their lanes, states, purposes and origins are places in ``names``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import quantiles
from typing import Any, NamedTuple, get_args

from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.metrics import ALL_TASKS, RunMetrics, StrategyMetrics
from reason_spec.evaluation.outcome import Outcome, StepRecord
from reason_spec.evaluation.statistics import exact_interval
from reason_spec.events import Purpose
from reason_spec.lab.pages.difficulty import count_groups, group_problems
from reason_spec.lab.pages.runs import Run
from reason_spec.lab.pages.spans import LANES, Picture, Span, State, picture
from reason_spec.types import Decision, Origin, Verdict

MAX_STEPS = 40
"""Steps behind these are few answers' and left out of the chart by step."""
MAX_TEXT_CHARACTERS = 6_000_000
"""Room for the texts of single answers; what does not fit is left out of the page, which says so."""
_NUM_QUANTILES = 100
_STATES: tuple[State, ...] = get_args(State)
_PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
_ORIGINS: tuple[Origin, ...] = get_args(Origin)
_DECISIONS: tuple[Decision, ...] = get_args(Decision)
_SPAN_FIELDS = "work lane purpose step branch start end state text tokens about score reason row".split()
_STEP_FIELDS = "text origin tokens decision score reason seconds".split()


class Series(NamedTuple):
    """A strategy of a run: one line, one colour and one shape in all charts."""

    run: int
    strategy: str
    label: str
    colour: int


class Texts:
    """Texts by their places, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self.num_characters = 0

    def place(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self._places)
            self.num_characters += len(text)
        return self._places[text]

    def all(self) -> list[str]:
        return list(self._places)


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Return everything that the page draws."""
    series = all_series(runs)
    texts = Texts()
    problems = _problems(runs, series, texts)
    return {
        "runs": [run.title for run in runs],
        "series": [item._asdict() for item in series],
        "charts": [_charts(runs, series, task) for task in tasks_of(runs)],
        "problems": problems,
        "texts": texts.all(),
        "names": {
            "lanes": LANES,
            "states": _STATES,
            "purposes": _PURPOSES,
            "origins": _ORIGINS,
            "decisions": _DECISIONS,
        },
        "fields": {"span": _SPAN_FIELDS, "step": _STEP_FIELDS},
    }


def all_series(runs: Sequence[Run]) -> tuple[Series, ...]:
    """Return the strategies of all runs; a strategy has the same colour in each."""
    colours = {
        name: place for place, name in enumerate(dict.fromkeys(n for run in runs for n in run.strategies))
    }
    return tuple(
        Series(number, name, name if len(runs) == 1 else f"{name} {run.letter}", colours[name])
        for number, run in enumerate(runs)
        for name in run.strategies
    )


def tasks_of(runs: Sequence[Run]) -> list[str]:
    """Return the tasks that the metrics have rows for, that for all of them first."""
    names = dict.fromkeys(row.task for run in runs for row in run.metrics.strategies)
    return sorted(names, key=lambda name: (name != ALL_TASKS, list(names).index(name)))


def metrics_row(metrics: RunMetrics, task: str, strategy: str) -> StrategyMetrics | None:
    """Return a strategy's row about a task."""
    rows = (row for row in metrics.strategies if (row.task, row.strategy) == (task, strategy))
    return next(rows, None)


# Charts --------------------------------------------------------------------------------------


def _charts(runs: Sequence[Run], series: Sequence[Series], task: str) -> dict[str, Any]:
    lines = [_line(runs[item.run], place, item, task) for place, item in enumerate(series)]
    return {"task": task, "lines": [line for line in lines if line is not None]}


def _line(run: Run, place: int, item: Series, task: str) -> dict[str, Any] | None:
    """Return what the charts say of one strategy on one task."""
    row = metrics_row(run.metrics, task, item.strategy)
    if row is None:
        return None
    outcomes = [outcome for outcome in run.outcomes if task in (outcome.task, ALL_TASKS)]
    pair = next(
        (pair for pair in run.metrics.pairs if (pair.task, pair.strategy) == (task, item.strategy)), None
    )
    groups = group_problems(outcomes, run.baseline)
    return {
        "series": place,
        "answers": row.num_answers,
        "accuracy": _estimate(row.accuracy),
        "seconds": _estimate(row.seconds_per_problem),
        "speedup": _estimate(pair.speedup) if pair is not None else _unity(item, run),
        "steps": [
            [step.step_index, step.num_accepted, step.num_rejected, step.num_unknown]
            for step in row.acceptance_by_step[:MAX_STEPS]
        ],
        "histogram": list(row.alpha_token_histogram),
        "latencies": _quantiles([item_.seconds for item_ in outcomes if item_.strategy == item.strategy]),
        "groups": [
            {
                "label": counts.group.label,
                "detail": counts.group.detail,
                "problems": counts.num_problems,
                "accepted": counts.num_accepted,
                "verdicts": counts.num_verdicts,
                "interval": _share_interval(counts.num_accepted, counts.num_verdicts),
                "alpha_token": _rounded(counts.alpha_token),
                "graded": counts.num_graded,
                "correct": counts.num_correct,
                "speedup": _rounded(counts.speedup),
            }
            for counts in count_groups(outcomes, groups, item.strategy, run.baseline)
        ],
    }


def _unity(item: Series, run: Run) -> dict[str, float] | None:
    return {"value": 1.0} if item.strategy == run.baseline and len(run.strategies) > 1 else None


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    low, high = estimate.interval or (None, None)
    return {"value": _rounded(estimate.value), "low": _rounded(low), "high": _rounded(high)}


def _share_interval(part: int, whole: int) -> list[float | None] | None:
    return list(map(_rounded, exact_interval(part, whole))) if whole else None


def _quantiles(values: Sequence[float]) -> list[float | None]:
    """Return the values in order, or their percentiles where there are more."""
    if len(values) > _NUM_QUANTILES:
        values = [min(values), *quantiles(values, n=_NUM_QUANTILES, method="inclusive"), max(values)]
    return [_rounded(value) for value in sorted(values)]


def _rounded(number: float | None) -> float | None:
    """Return a number that JSON has, with five digits."""
    if number is None or number != number or number in (float("inf"), float("-inf")):
        return None
    return float(f"{number:.5g}")


# Single answers ------------------------------------------------------------------------------


def _problems(runs: Sequence[Run], series: Sequence[Series], texts: Texts) -> list[dict[str, Any]]:
    """Return the problems that are shown one by one, each with the answers of all its strategies."""
    places = {(item.run, item.strategy): place for place, item in enumerate(series)}
    problems = []
    for number, run in enumerate(runs):
        by_problem: dict[tuple[str, int], list[Outcome]] = {}
        shown = run.shown
        for outcome in run.outcomes:
            if outcome.key in shown:
                by_problem.setdefault((outcome.id, outcome.sample), []).append(outcome)
        for outcomes in by_problem.values():
            if texts.num_characters > MAX_TEXT_CHARACTERS:
                break
            problems.append(_problem(run, number, outcomes, places, texts))
    return problems


def _problem(
    run: Run, number: int, outcomes: Sequence[Outcome], places: Mapping[tuple[int, str], int], texts: Texts
) -> dict[str, Any]:
    first = outcomes[0]
    baseline = next((outcome for outcome in outcomes if outcome.strategy == run.baseline), None)
    in_order = sorted(outcomes, key=lambda outcome: run.strategies.index(outcome.strategy))
    return {
        "run": number,
        "id": first.id,
        "sample": first.sample,
        "task": first.task,
        "level": first.level,
        "question": texts.place(first.question),
        "reference": first.answer,
        "answers": [
            _answer(run, outcome, baseline, places[number, outcome.strategy], texts) for outcome in in_order
        ],
    }


def _answer(run: Run, outcome: Outcome, baseline: Outcome | None, place: int, texts: Texts) -> dict[str, Any]:
    timeline = run.timelines.get(outcome.key)
    speedup = None
    if baseline is not None and baseline is not outcome and outcome.seconds > 0:
        speedup = baseline.seconds / outcome.seconds
    return {
        "series": place,
        "baseline": outcome is baseline,
        "seconds": _rounded(outcome.seconds),
        "speedup": _rounded(speedup),
        "tokens": outcome.tokens,
        "correct": outcome.correct,
        "prediction": outcome.prediction,
        "finish": outcome.finish,
        "alpha_step": _rounded(outcome.alpha_step),
        "alpha_token": _rounded(outcome.alpha_token),
        "discarded": [outcome.usage.target.num_discarded_tokens, outcome.usage.draft.num_discarded_tokens],
        "failed": list(outcome.failed_tries),
        "steps": [_step(step, texts) for step in outcome.steps],
        "timeline": None if timeline is None else _timeline(picture(timeline), texts),
    }


def _step(step: StepRecord, texts: Texts) -> list[Any]:
    return [texts.place(step.text), _ORIGINS.index(step.origin), step.tokens, *_verdict(step.verdict, texts)]


def _verdict(verdict: Verdict | None, texts: Texts) -> Iterable[Any]:
    if verdict is None:
        return (None, None, None, None)
    decision = _DECISIONS.index(verdict.decision)
    return (decision, _rounded(verdict.score), texts.place(verdict.reason), _rounded(verdict.cost_seconds))


def _timeline(shown: Picture, texts: Texts) -> dict[str, Any]:
    return {
        "seconds": _rounded(shown.seconds),
        "rows": [shown.num_rows(lane) for lane in LANES],
        "spans": [_span(span, texts) for span in shown.spans],
        "finals": [[_rounded(f.at), f.step_index, _ORIGINS.index(f.origin)] for f in shown.finals],
    }


def _span(span: Span, texts: Texts) -> list[Any]:
    return [
        span.work,
        LANES.index(span.lane),
        _PURPOSES.index(span.purpose),
        span.step_index,
        span.branch,
        _rounded(span.start),
        _rounded(span.end),
        _STATES.index(span.state),
        texts.place(span.text),
        span.num_tokens,
        span.about,
        _rounded(span.score),
        texts.place(span.reason),
        span.row,
    ]
