"""What a set of outcomes says about each strategy, and about strategies against a baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from reason_spec.evaluation.outcome import Outcome, UnitKey, share
from reason_spec.evaluation.statistics import Interval, PairedAccuracy, compare_accuracy, wilson_interval
from reason_spec.types import LossClass, Usage

BASELINE = "autoregressive"


@dataclass(frozen=True, slots=True)
class StrategySummary:
    """One strategy over all its answers.

    ``accuracy`` counts answers that could not be graded as not correct; it is None where no
    problem has a reference answer, and its interval counts problems, not samples. Rates and token
    counts are totals over all answers, so that long answers weigh more. ``planned_depth`` is the mean
    depth that the planner chose, None without one. ``alpha_step_of_cache`` counts, of the verdicts behind
    ``alpha_step``, those about steps of the suffix cache; ``alpha_step_of_all`` also counts drafts that came
    too late for a verdict. What the target wrote, prefilled and scored counts for each token of the answers.
    """

    strategy: str
    loss_class: LossClass
    num_problems: int
    num_answers: int
    num_graded: int
    num_correct: int
    num_undecided: int
    accuracy: float | None
    accuracy_interval: Interval | None
    tokens: int
    seconds: float
    tokens_per_second: float
    seconds_per_problem: float
    seconds_to_first_step: float
    alpha_step: float | None
    alpha_step_of_all: float | None
    alpha_token: float | None
    drafted_steps: float | None
    cached_steps: float | None
    alpha_step_of_cache: float | None
    planned_depth: float | None
    target_passes_per_token: float | None
    target_written_per_token: float | None
    target_prefilled_per_token: float | None
    target_scored_per_token: float | None
    target: Usage
    draft: Usage
    verifier_seconds: float
    num_cut: int
    concurrency: tuple[int, ...]

    @property
    def num_discarded_tokens(self) -> int:
        return self.target.num_discarded_tokens + self.draft.num_discarded_tokens


@dataclass(frozen=True, slots=True)
class Comparison:
    """A strategy against the baseline on the answers that both have.

    ``speedup`` is the ratio of their median seconds, ``paired_speedup`` the median over the pairs
    of the ratio of seconds. ``num_apart`` counts pairs whose two sides were timed in different
    starts of the command. ``accuracy`` is None where no pair has a reference answer.
    """

    strategy: str
    baseline: str
    num_pairs: int
    speedup: float
    paired_speedup: float
    num_identical: int
    num_apart: int
    accuracy: PairedAccuracy | None


@dataclass(frozen=True, slots=True)
class Summary:
    """All strategies of a run, and their comparisons with the baseline, in the order of the run."""

    strategies: tuple[StrategySummary, ...]
    comparisons: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON holds it; intervals and paired tests are objects."""
        return {
            "strategies": [
                {
                    **asdict(item),
                    "accuracy_interval": item.accuracy_interval and item.accuracy_interval._asdict(),
                    "num_discarded_tokens": item.num_discarded_tokens,
                }
                for item in self.strategies
            ],
            "comparisons": [
                {**asdict(item), "accuracy": item.accuracy and item.accuracy._asdict()}
                for item in self.comparisons
            ],
        }


def summarize(outcomes: Iterable[Outcome], strategies: Sequence[str] = ()) -> Summary:
    """Summarize outcomes of one run.

    Args:
        outcomes: no two with equal keys.
        strategies: their order in the summary; others follow in the order in which they come.

    The baseline is ``autoregressive`` where it is among them, else the first strategy.
    """
    present = by_strategy(outcomes, strategies)
    if not present:
        return Summary((), ())
    baseline = baseline_among(present)
    comparisons = (_compare(items, present[baseline]) for name, items in present.items() if name != baseline)
    return Summary(
        tuple(_summarize_one(items) for items in present.values()),
        tuple(comparison for comparison in comparisons if comparison is not None),
    )


def by_strategy(outcomes: Iterable[Outcome], strategies: Sequence[str] = ()) -> dict[str, list[Outcome]]:
    """Group outcomes by strategy, in the order of ``strategies``; others follow as they come."""
    groups: dict[str, list[Outcome]] = {name: [] for name in strategies}
    for outcome in outcomes:
        groups.setdefault(outcome.strategy, []).append(outcome)
    return {name: items for name, items in groups.items() if items}


def baseline_among(strategies: Iterable[str]) -> str:
    """Return what the others are compared with: ``autoregressive`` where it is there, else the first."""
    names = list(strategies)
    return BASELINE if BASELINE in names else names[0]


def pair_up(baseline: Iterable[Outcome], outcomes: Iterable[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Return the answers that both strategies have, the baseline's first, in the order of ``outcomes``."""
    other = {_pair_key(outcome): outcome for outcome in baseline}
    return [(other[key], outcome) for outcome in outcomes if (key := _pair_key(outcome)) in other]


def _summarize_one(outcomes: Sequence[Outcome]) -> StrategySummary:
    target = sum((outcome.usage.target for outcome in outcomes), Usage())
    draft = sum((outcome.usage.draft for outcome in outcomes), Usage())
    graded = [outcome for outcome in outcomes if outcome.answer is not None]
    accuracies = _accuracy_by_problem(graded)
    tokens = sum(outcome.tokens for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    depths = [outcome.plan.depth for outcome in outcomes if outcome.plan is not None]
    origins = Counter(step.origin for outcome in outcomes for step in outcome.steps)
    verdicts = sum((Counter(outcome.usage.verdicts) for outcome in outcomes), Counter[str]())
    cached = sum((Counter(outcome.usage.cache_verdicts) for outcome in outcomes), Counter[str]())
    return StrategySummary(
        strategy=outcomes[0].strategy,
        loss_class=outcomes[0].loss_class,
        num_problems=len({outcome.id for outcome in outcomes}),
        num_answers=len(outcomes),
        num_graded=len(graded),
        num_correct=sum(outcome.correct is True for outcome in graded),
        num_undecided=sum(outcome.correct is None for outcome in graded),
        accuracy=fmean(accuracies.values()) if accuracies else None,
        accuracy_interval=_interval(accuracies),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
        seconds_per_problem=median(outcome.seconds for outcome in outcomes),
        seconds_to_first_step=median(outcome.first_step_seconds for outcome in outcomes),
        alpha_step=share(verdicts["accept"], verdicts.total()),
        alpha_step_of_all=share(verdicts["accept"], sum(outcome.usage.num_proposed for outcome in outcomes)),
        alpha_token=target.alpha_token,
        drafted_steps=share(origins["draft"], origins.total()),
        cached_steps=share(origins["cache"], origins.total()),
        alpha_step_of_cache=share(cached["accept"], cached.total()),
        planned_depth=fmean(depths) if depths else None,
        target_passes_per_token=share(target.num_passes, tokens),
        target_written_per_token=share(target.num_generated_tokens, tokens),
        target_prefilled_per_token=share(target.num_prefilled_tokens, tokens),
        target_scored_per_token=share(target.num_scored_tokens, tokens),
        target=target,
        draft=draft,
        verifier_seconds=sum(outcome.usage.verifier_seconds for outcome in outcomes),
        num_cut=sum(outcome.finish == "length" for outcome in outcomes),
        concurrency=tuple(sorted({outcome.concurrency for outcome in outcomes})),
    )


def _accuracy_by_problem(graded: Iterable[Outcome]) -> dict[str, float]:
    correct: dict[str, list[bool]] = defaultdict(list)
    for outcome in graded:
        correct[outcome.id].append(outcome.correct is True)
    return {problem: fmean(samples) for problem, samples in correct.items()}


def _interval(accuracies: dict[str, float]) -> Interval | None:
    return wilson_interval(sum(accuracies.values()), len(accuracies)) if accuracies else None


def _compare(outcomes: Sequence[Outcome], baseline: Sequence[Outcome]) -> Comparison | None:
    pairs = pair_up(baseline, outcomes)
    if not pairs:
        return None
    base_accuracies = _accuracy_by_problem(base for base, _ in pairs if base.answer is not None)
    own_accuracies = _accuracy_by_problem(own for _, own in pairs if own.answer is not None)
    return Comparison(
        strategy=outcomes[0].strategy,
        baseline=baseline[0].strategy,
        num_pairs=len(pairs),
        speedup=median(base.seconds for base, _ in pairs) / median(own.seconds for _, own in pairs),
        paired_speedup=median(base.seconds / own.seconds for base, own in pairs),
        num_identical=sum(base.token_ids == own.token_ids for base, own in pairs),
        num_apart=sum(base.session != own.session for base, own in pairs),
        accuracy=compare_accuracy(
            list(base_accuracies.values()), [own_accuracies[problem] for problem in base_accuracies]
        )
        if base_accuracies
        else None,
    )


def _pair_key(outcome: Outcome) -> UnitKey:
    return outcome.key._replace(strategy="")
