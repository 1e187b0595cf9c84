"""Metrics of a run with their uncertainty, for each task and strategy and for each pair of strategies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from reason_spec.evaluation.estimates import Estimate, estimate_mean, estimate_ratio, estimate_share
from reason_spec.evaluation.grouping import Batches, ByProblem, baseline_among, by_strategy, pair_up
from reason_spec.evaluation.outcome import Outcome, share
from reason_spec.evaluation.paired import PairedMetrics, compare_pairs
from reason_spec.evaluation.repeated import Votes, count_votes, majority_at_k, pass_at_k, sizes_up_to
from reason_spec.evaluation.statistics import Floats, Interval
from reason_spec.evaluation.voting import KEPT_SHARES, end_of_vote, weighted_majority
from reason_spec.types import LossClass, Usage

ALL_TASKS = "all"
"""Task name of the rows about all tasks together."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Mean and percentiles over answers."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class StepAcceptance:
    """Verdicts about the steps at one position of the answers, 0 the first.

    Only the deciding verdict counts: the one that accepted the drafted step, or rejected it in favour of the
    target's step. ``alpha_step`` also has verdicts about other drafts of the step and rejected branches.
    """

    step_index: int
    num_accepted: int
    num_rejected: int
    num_unknown: int


@dataclass(frozen=True, slots=True)
class VoteMetrics:
    """The vote of all samples that were drawn of a problem: means over problems.

    Attributes:
        accuracy: the chance that the most frequent answer is right; None where nothing is graded.
        weighted: DeepConf's votes by the share of the samples that take part, the most confident ones; see
            `weighted_majority`. Empty where a sample has no confidence.
        num_samples: samples drawn.
        seconds: until the vote; the sum over the samples.
        tokens: that target and draft generated until the vote, those of cancelled samples included.
        num_stopped: problems whose vote was decided before all samples were drawn.
        num_cancelled: samples that were cancelled under way.
    """

    accuracy: Estimate | None
    weighted: Mapping[float, Estimate]
    num_samples: Estimate
    seconds: Estimate
    tokens: Estimate
    num_stopped: int
    num_cancelled: int


@dataclass(frozen=True, slots=True)
class StrategyMetrics:
    """One strategy on one task, or on all of them.

    Problems weigh equally in everything that is a mean over problems; rates and token counts are totals over
    all answers, so that long answers weigh more.

    Attributes:
        num_samples: the least that a graded problem has; of an ungraded task, the least of any.
        num_graded: answers with a reference answer; undecided ones count as wrong.
        accuracy: avg@k, the mean over problems of the share of right samples; None where nothing is graded.
        pass_at: by k = 1, 2, 4, ... and ``num_samples``: the chance that one of k samples is right.
        majority_at: the same for the answer that most of k samples give. Where votes ended the drawing of
            samples, both are left out beyond k = 1: these samples are no independent ones.
        vote: of all drawn samples; None with one sample of each problem.
        seconds: over answers; so is ``first_step_seconds``, the time until the first step was final. With
            several answers at once, the wall time of a batch divided by its size; intervals of seconds then
            count batches.
        target_tokens: tokens that the target generated, rejected branches and accepted token drafts included,
            divided by the tokens of the answers.
        target_prefilled_tokens: the same for tokens that the target prefilled, prompts included.
        target_scored_tokens: the same for tokens that the target scored to judge them.
        target_passes: forward passes of the target for each token of the answers.
        tokens_saved: ``1 - target_tokens``; below 0 where the target generated more than the answers have.
        alpha_step: share of all verdicts that accepted, rejected branches included.
        alpha_step_of_all: share of all drafted steps that were accepted, those without a verdict included.
        alpha_step_of_cache: as ``alpha_step``, of steps of the suffix cache.
        alpha_token: acceptance rate of token drafts.
        drafted_steps: share of the answers' steps that the draft wrote; ``cached_steps``: the suffix cache.
        num_ended_early: answers whose thinking a rule of early exit ended.
        probe_tokens: tokens of trial answers, divided by the tokens of the answers.
        planned_depth: mean depth that the planner chose, None without one.
        acceptance_by_step: by place in the answer, up to the last place with a verdict.
        concurrency: the numbers of answers written at once.
    """

    task: str
    strategy: str
    loss_class: LossClass
    num_problems: int
    num_answers: int
    num_samples: int
    num_graded: int
    num_correct: int
    num_undecided: int
    num_cut: int
    num_retried: int
    accuracy: Estimate | None
    pass_at: Mapping[int, Estimate]
    majority_at: Mapping[int, Estimate]
    vote: VoteMetrics | None
    seconds: Percentiles
    first_step_seconds: Percentiles
    seconds_per_problem: Estimate
    tokens_per_problem: Estimate
    tokens_per_second: float
    target_tokens: float
    target_prefilled_tokens: float
    target_scored_tokens: float
    target_passes: float
    tokens_saved: float
    alpha_step: float | None
    alpha_step_of_all: float | None
    alpha_step_of_cache: float | None
    alpha_token: float | None
    drafted_steps: float | None
    cached_steps: float | None
    num_ended_early: int
    probe_tokens: float
    planned_depth: float | None
    acceptance_by_step: tuple[StepAcceptance, ...]
    target: Usage
    draft: Usage
    verifier_seconds: float
    concurrency: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All rows of a run; those about all tasks together come last, where there are several tasks."""

    strategies: tuple[StrategyMetrics, ...]
    pairs: tuple[PairedMetrics, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as JSON holds them: intervals as objects, maps with their k as text."""
        return {"strategies": _plain(self.strategies), "pairs": _plain(self.pairs)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Interval):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def measure(
    outcomes: Iterable[Outcome],
    strategies: Sequence[str] = (),
) -> RunMetrics:
    """Measure the outcomes of one run.

    Args:
        outcomes: no two with equal keys; their order does not matter.
        strategies: their order in the rows; others follow in the order in which they come.

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
        rows += [_measure_one(task, items) for items in chosen.values()]
        baseline = chosen.get(baseline_among(present), [])
        for name, items in chosen.items():
            if name != baseline_among(present) and (matched := pair_up(baseline, items)):
                pairs.append(compare_pairs(task, matched))
    return RunMetrics(tuple(rows), tuple(pairs))


def _tasks_in_order(groups: Iterable[Sequence[Outcome]]) -> list[str]:
    first: dict[str, int] = {}
    for outcome in (outcome for items in groups for outcome in items):
        first[outcome.task] = min(outcome.index, first.get(outcome.task, outcome.index))
    return sorted(first, key=lambda task: (first[task], task))


def _select(outcomes: Iterable[Outcome], task: str) -> list[Outcome]:
    """Return a task's outcomes in a fixed order: sums must not depend on the order of completion."""
    chosen = (outcome for outcome in outcomes if task in (outcome.task, ALL_TASKS))
    return sorted(chosen, key=lambda outcome: (outcome.task, outcome.index, outcome.id, outcome.sample))


def _measure_one(task: str, outcomes: Sequence[Outcome]) -> StrategyMetrics:
    target = Usage.total([outcome.usage.target for outcome in outcomes])
    draft = Usage.total([outcome.usage.draft for outcome in outcomes])
    num_verdicts = sum(outcome.usage.num_verdicts for outcome in outcomes)
    num_accepted = sum(outcome.usage.verdicts["accept"] for outcome in outcomes)
    tokens = sum(outcome.tokens for outcome in outcomes)
    seconds = math.fsum(outcome.seconds for outcome in outcomes)
    origins = Counter(step.origin for outcome in outcomes for step in outcome.steps)
    cached = Counter[str]()
    for outcome in outcomes:
        cached.update(outcome.usage.cache_verdicts)
    depths = [outcome.plan.depth for outcome in outcomes if outcome.plan is not None]

    def per_token(number: int) -> float:
        return number / tokens if tokens else 0.0

    problems = ByProblem.of(outcomes, _itself)
    graded = ByProblem.of([outcome for outcome in outcomes if outcome.answer is not None], _itself)
    votes = [count_votes(group) for group in graded.groups]
    return StrategyMetrics(
        task=task,
        strategy=outcomes[0].strategy,
        loss_class=outcomes[0].loss_class,
        num_problems=len(problems),
        num_answers=len(outcomes),
        num_samples=(graded if votes else problems).num_samples,
        num_graded=graded.num_items,
        num_correct=sum(outcome.correct is True for outcome in outcomes if outcome.answer is not None),
        num_undecided=sum(item.correct is None for group in graded.groups for item in group),
        num_cut=sum(outcome.finish == "length" for outcome in outcomes),
        num_retried=sum(bool(outcome.failed_tries) for outcome in outcomes),
        accuracy=estimate_share(graded.means(_is_right), graded.num_items, graded.strata) if votes else None,
        pass_at=_by_k(graded, votes, lambda vote, k: pass_at_k(vote.num_samples, vote.num_right, k)),
        majority_at=_by_k(graded, votes, majority_at_k),
        vote=_vote_metrics(problems, graded, votes) if problems.num_items > len(problems) else None,
        seconds=_percentiles([outcome.seconds for outcome in outcomes]),
        first_step_seconds=_percentiles([outcome.first_step_seconds for outcome in outcomes]),
        seconds_per_problem=_mean_seconds(problems, problems.means(lambda outcome: outcome.seconds)),
        tokens_per_problem=estimate_mean(problems.means(lambda outcome: outcome.tokens), problems.strata),
        tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
        target_tokens=per_token(target.num_generated_tokens),
        target_prefilled_tokens=per_token(target.num_prefilled_tokens),
        target_scored_tokens=per_token(target.num_scored_tokens),
        target_passes=per_token(target.num_passes),
        tokens_saved=1 - per_token(target.num_generated_tokens) if tokens else 0.0,
        alpha_step=share(num_accepted, num_verdicts),
        alpha_step_of_all=share(num_accepted, sum(outcome.usage.num_proposed for outcome in outcomes)),
        alpha_step_of_cache=share(cached["accept"], cached.total()),
        alpha_token=target.alpha_token,
        drafted_steps=share(origins["draft"], origins.total()),
        cached_steps=share(origins["cache"], origins.total()),
        num_ended_early=sum(outcome.early_exit is not None for outcome in outcomes),
        probe_tokens=per_token(sum(outcome.usage.num_probe_tokens for outcome in outcomes)),
        planned_depth=math.fsum(depths) / len(depths) if depths else None,
        acceptance_by_step=_acceptance_by_step(outcomes),
        target=target,
        draft=draft,
        verifier_seconds=math.fsum(outcome.usage.verifier_seconds for outcome in outcomes),
        concurrency=tuple(sorted({outcome.concurrency for outcome in outcomes})),
    )


def _itself(outcome: Outcome) -> Outcome:
    return outcome


def _is_right(outcome: Outcome) -> float:
    return float(outcome.correct is True)


def _mean_seconds(problems: ByProblem[Outcome], seconds: Floats) -> Estimate:
    """Return the mean over problems of their seconds, with an interval that counts batches."""
    batches = Batches.of(problems, _itself)
    # A batch may hold fewer problems than others.
    return estimate_ratio(batches.sums(seconds), batches.sizes, batches.strata)


def _by_k(
    graded: ByProblem[Outcome], votes: Sequence[Votes], chance: Callable[[Votes, int], float]
) -> dict[int, Estimate]:
    """Return the mean of a chance over problems for each number of samples; k samples count as one draw."""
    is_stopped = any(end_of_vote(group) is not None for group in graded.groups)
    return {
        k: estimate_share([chance(vote, k) for vote in votes], graded.num_items / k, graded.strata)
        for k in sizes_up_to(min(1, graded.num_samples) if is_stopped else graded.num_samples)
    }


def _vote_metrics(
    problems: ByProblem[Outcome], graded: ByProblem[Outcome], votes: Sequence[Votes]
) -> VoteMetrics:
    ends = [end for group in problems.groups if (end := end_of_vote(group)) is not None]

    def estimate(chances: Sequence[float]) -> Estimate:
        # A problem has one vote.
        return estimate_share(chances, len(chances), graded.strata)

    def totals(amount: Callable[[Outcome], float]) -> Floats:
        return np.array([math.fsum(map(amount, group)) for group in problems.groups])

    weighted: dict[float, Estimate] = {}
    for share_kept in KEPT_SHARES if votes else ():
        chances = [weighted_majority(group, share_kept) for group in graded.groups]
        known = [chance for chance in chances if chance is not None]
        if len(known) == len(chances):
            weighted[share_kept] = estimate(known)
    return VoteMetrics(
        accuracy=estimate([majority_at_k(vote, vote.num_samples) for vote in votes]) if votes else None,
        weighted=weighted,
        num_samples=estimate_mean(totals(lambda _: 1.0), problems.strata),
        seconds=_mean_seconds(problems, totals(lambda outcome: outcome.seconds)),
        tokens=estimate_mean(totals(_generated_until_the_vote), problems.strata),
        num_stopped=len(ends),
        num_cancelled=sum(end.num_cancelled for end in ends),
    )


def _generated_until_the_vote(outcome: Outcome) -> float:
    usages = [outcome.usage.target, outcome.usage.draft]
    if outcome.vote_end is not None:
        usages += [outcome.vote_end.target, outcome.vote_end.draft]
    return sum(usage.num_generated_tokens for usage in usages)


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
