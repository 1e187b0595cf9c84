"""What an evaluation shows, with its uncertainty: a row for each task and strategy, and pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from reason_spec.evaluation.estimates import Estimate, estimate_mean, estimate_share
from reason_spec.evaluation.metric_types import (
    ALL_TASKS,
    Metrics,
    PairedMetrics,
    Percentiles,
    Prices,
    StepAcceptance,
    StrategyMetrics,
)
from reason_spec.evaluation.outcome import Outcome, share
from reason_spec.evaluation.paired import compare_pairs
from reason_spec.evaluation.problems import Problems, itself
from reason_spec.evaluation.repeated import Votes, count_votes, majority_at_k, pass_at_k, sizes_up_to
from reason_spec.evaluation.summary import baseline_among, by_strategy, pair_up
from reason_spec.types import Usage

__all__ = [
    "ALL_TASKS",
    "Estimate",
    "Metrics",
    "PairedMetrics",
    "Percentiles",
    "Prices",
    "StepAcceptance",
    "StrategyMetrics",
    "measure",
]

NUM_BINS = 10


def measure(
    outcomes: Iterable[Outcome],
    strategies: Sequence[str] = (),
    *,
    prices: Prices | None = None,
    seed: int = 0,
) -> Metrics:
    """Measure the outcomes of one run.

    Args:
        outcomes: no two with equal keys; their order does not matter.
        strategies: their order in the rows; others follow in the order in which they come.
        prices: of tokens; without them there is no cost.
        seed: of the bootstrap.

    The baseline is ``autoregressive`` where it is among the strategies, else the first one. Tasks come in the
    order of their first problem in the run.
    """
    present = by_strategy(outcomes, strategies)
    tasks = _tasks_in_order(present.values())
    selections = [*tasks, ALL_TASKS] if len(tasks) > 1 else tasks
    rows: list[StrategyMetrics] = []
    pairs: list[PairedMetrics] = []
    for task in selections:
        chosen = {name: _select(items, task) for name, items in present.items()}
        chosen = {name: items for name, items in chosen.items() if items}
        rows += [_measure_one(task, items, prices) for items in chosen.values()]
        baseline = chosen.get(baseline_among(present), [])
        for name, items in chosen.items():
            if name != baseline_among(present) and (matched := pair_up(baseline, items)):
                pairs.append(compare_pairs(task, matched, seed))
    return Metrics(tuple(rows), tuple(pairs))


def _tasks_in_order(groups: Iterable[Sequence[Outcome]]) -> list[str]:
    first: dict[str, int] = {}
    for outcome in (outcome for items in groups for outcome in items):
        first[outcome.task] = min(outcome.index, first.get(outcome.task, outcome.index))
    return sorted(first, key=lambda task: (first[task], task))


def _select(outcomes: Iterable[Outcome], task: str) -> list[Outcome]:
    """Return a task's outcomes in an order of their own: sums must not depend on who finished first."""
    chosen = (outcome for outcome in outcomes if task in (outcome.task, ALL_TASKS))
    return sorted(chosen, key=lambda outcome: (outcome.task, outcome.index, outcome.id, outcome.sample))


def _measure_one(task: str, outcomes: Sequence[Outcome], prices: Prices | None) -> StrategyMetrics:
    target = Usage.total([outcome.usage.target for outcome in outcomes])
    draft = Usage.total([outcome.usage.draft for outcome in outcomes])
    num_verdicts = sum(outcome.usage.num_verdicts for outcome in outcomes)
    num_accepted = sum(outcome.usage.verdicts["accept"] for outcome in outcomes)
    tokens = sum(outcome.tokens for outcome in outcomes)
    seconds = math.fsum(outcome.seconds for outcome in outcomes)
    target_tokens = target.num_generated_tokens / tokens if tokens else 0.0
    problems = Problems.of(outcomes, itself)
    graded = Problems.of([outcome for outcome in outcomes if outcome.answer is not None], itself)
    votes = [count_votes(group) for group in graded.groups]
    return StrategyMetrics(
        task=task,
        strategy=outcomes[0].strategy,
        loss_class=outcomes[0].loss_class,
        num_problems=len(problems),
        num_answers=len(outcomes),
        num_samples=(graded if votes else problems).num_samples,
        num_graded=graded.num_items,
        num_undecided=sum(item.correct is None for group in graded.groups for item in group),
        num_cut=sum(outcome.finish == "length" for outcome in outcomes),
        num_retried=sum(bool(outcome.failed_tries) for outcome in outcomes),
        accuracy=estimate_share(graded.means(_is_right), graded.num_items, graded.strata) if votes else None,
        pass_at=_by_k(graded, votes, lambda vote, k: pass_at_k(vote.num_samples, vote.num_right, k)),
        majority_at=_by_k(graded, votes, majority_at_k),
        seconds=_percentiles([outcome.seconds for outcome in outcomes]),
        first_step_seconds=_percentiles([outcome.first_step_seconds for outcome in outcomes]),
        seconds_per_problem=estimate_mean(problems.means(lambda outcome: outcome.seconds), problems.strata),
        tokens_per_problem=estimate_mean(problems.means(lambda outcome: outcome.tokens), problems.strata),
        tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
        target_tokens=target_tokens,
        target_prefilled_tokens=target.num_prefilled_tokens / tokens if tokens else 0.0,
        target_scored_tokens=target.num_scored_tokens / tokens if tokens else 0.0,
        tokens_saved=1 - target_tokens if tokens else 0.0,
        alpha_step=share(num_accepted, num_verdicts),
        alpha_step_of_all=share(num_accepted, sum(outcome.usage.num_proposed for outcome in outcomes)),
        alpha_token=target.alpha_token,
        acceptance_by_step=_acceptance_by_step(outcomes),
        alpha_token_histogram=_histogram([outcome.alpha_token for outcome in outcomes]),
        target=target,
        draft=draft,
        verifier_seconds=math.fsum(outcome.usage.verifier_seconds for outcome in outcomes),
        cost=prices.cost(target, draft) if prices else None,
        concurrency=tuple(sorted({outcome.concurrency for outcome in outcomes})),
    )


def _is_right(outcome: Outcome) -> float:
    return float(outcome.correct is True)


def _by_k(
    graded: Problems[Outcome], votes: Sequence[Votes], chance: Callable[[Votes, int], float]
) -> dict[int, Estimate]:
    """Return the mean of a chance over problems for each number of samples; k samples count as one draw."""
    return {
        k: estimate_share([chance(vote, k) for vote in votes], graded.num_items / k, graded.strata)
        for k in sizes_up_to(graded.num_samples)
    }


def _percentiles(values: Sequence[float]) -> Percentiles:
    points = np.percentile(values, [50, 90, 95, 99])
    return Percentiles(math.fsum(values) / len(values), *map(float, points))


def _acceptance_by_step(outcomes: Iterable[Outcome]) -> tuple[StepAcceptance, ...]:
    decisions = Counter(
        (place, step.verdict.decision)
        for outcome in outcomes
        for place, step in enumerate(outcome.steps)
        if step.verdict is not None
    )
    num_places = 1 + max((place for place, _ in decisions), default=-1)
    return tuple(
        StepAcceptance(
            place, decisions[place, "accept"], decisions[place, "reject"], decisions[place, "unknown"]
        )
        for place in range(num_places)
    )


def _histogram(rates: Iterable[float | None]) -> tuple[int, ...]:
    counts = Counter(min(NUM_BINS - 1, int(rate * NUM_BINS)) for rate in rates if rate is not None)
    return tuple(counts[place] for place in range(NUM_BINS))
