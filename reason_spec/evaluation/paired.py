"""A strategy against the baseline, pair by pair, and for what claims there are too few of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reason_spec.evaluation.estimates import Estimate, estimate_gain
from reason_spec.evaluation.metric_types import PairedMetrics
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.problems import OutcomePair, Problems, strategy_side
from reason_spec.evaluation.resampling import (
    Counts,
    Floats,
    bootstrap,
    percentile_interval,
    weighted_means,
    weighted_medians,
)
from reason_spec.evaluation.statistics import mcnemar_exact, smallest_paired_difference

MIN_PROBLEMS_FOR_SPEED = 60
"""With fewer a few hard problems decide the mean seconds."""
LARGEST_UNSEEN = 0.05
"""A loss of accuracy that a claim about it must not miss."""
_MIN_SECONDS = 1e-6
"""No answer takes less; ratios of what a coarse clock calls nothing stay finite."""


def compare_pairs(task: str, pairs: Sequence[OutcomePair], seed: int) -> PairedMetrics:
    """Compare a strategy with the baseline on what both answered.

    Args:
        task: whose pairs these are, ``ALL_TASKS`` for several.
        pairs: at least one; the order of samples decides nothing but the last digits of sums.
        seed: of the bootstrap.
    """
    problems = Problems.of(pairs, strategy_side)
    accuracy = _compare_accuracy(pairs)
    speed = _compare_speed(problems, seed)
    base, own = pairs[0]
    num_identical = sum(one.token_ids == other.token_ids for one, other in pairs)
    num_apart = sum(one.session != other.session for one, other in pairs)
    is_same_text = num_identical == len(pairs) and own.loss_class == "exact"
    return PairedMetrics(
        task=task,
        strategy=own.strategy,
        baseline=base.strategy,
        num_pairs=len(pairs),
        num_problems=len(problems),
        num_identical=num_identical,
        num_apart=num_apart,
        accuracy_difference=accuracy.difference,
        loss_upper=accuracy.loss_upper,
        p_value=accuracy.p_value,
        smallest_difference=accuracy.smallest_difference,
        speedup=speed.speedup,
        paired_speedup=speed.paired_speedup,
        tokens_difference=speed.tokens_difference,
        warning="; ".join(
            [
                *(_warn_of_accuracy(accuracy) if not is_same_text else []),
                *_warn_of_speed(len(problems), len(pairs), num_apart),
            ]
        ),
    )


@dataclass(frozen=True, slots=True)
class _AccuracyOfPairs:
    """All of it None where no pair is graded."""

    num_problems: int = 0
    difference: Estimate | None = None
    loss_upper: float | None = None
    p_value: float | None = None
    smallest_difference: float | None = None


def _compare_accuracy(pairs: Iterable[OutcomePair]) -> _AccuracyOfPairs:
    graded = Problems.of([pair for pair in pairs if pair[0].answer is not None], strategy_side)
    if not graded.groups:
        return _AccuracyOfPairs()
    differences = graded.means(lambda pair: (pair[1].correct is True) - (pair[0].correct is True))
    gain = estimate_gain(differences, graded.num_samples, graded.strata)
    is_one_sample = graded.num_items == len(graded)
    return _AccuracyOfPairs(
        len(graded),
        gain.estimate,
        gain.loss_upper,
        mcnemar_exact(int((differences > 0).sum()), int((differences < 0).sum())) if is_one_sample else None,
        smallest_paired_difference(float((differences**2).mean()), len(graded), graded.num_samples),
    )


@dataclass(frozen=True, slots=True)
class _SpeedOfPairs:
    speedup: Estimate
    paired_speedup: Estimate
    tokens_difference: Estimate


def _compare_speed(problems: Problems[OutcomePair], seed: int) -> _SpeedOfPairs:
    amounts = np.stack(
        [
            problems.means(lambda pair: _seconds(pair[0])),
            problems.means(lambda pair: _seconds(pair[1])),
            problems.means(lambda pair: pair[1].tokens - pair[0].tokens),
        ],
        axis=1,
    )
    ratios = np.array([_seconds(base) / _seconds(own) for group in problems.groups for base, own in group])
    place = np.repeat(np.arange(len(problems)), [len(group) for group in problems.groups])

    def statistics(counts: Counts) -> Floats:
        base, own, tokens = weighted_means(counts, amounts).T
        return np.stack([base / own, weighted_medians(counts, ratios, place), tokens], axis=1)

    seen = statistics(np.ones((1, len(problems)), dtype=np.int32))[0]
    if len(problems) < 2:
        return _SpeedOfPairs(*(Estimate(float(value), None) for value in seen))
    resampled = bootstrap(statistics, problems.strata, seed=seed)
    return _SpeedOfPairs(
        *(
            Estimate(
                float(value),
                percentile_interval(column, len(problems)),
                float(column.std(ddof=1)),
            )
            for value, column in zip(seen, resampled.T, strict=True)
        )
    )


def _seconds(outcome: Outcome) -> float:
    return max(outcome.seconds, _MIN_SECONDS)


def _warn_of_accuracy(accuracy: _AccuracyOfPairs) -> list[str]:
    if accuracy.smallest_difference is None or accuracy.smallest_difference <= LARGEST_UNSEEN:
        return []
    problems = _counted(accuracy.num_problems, "problem")
    if accuracy.smallest_difference >= 1:
        return [f"{problems}: no difference of accuracy would be seen"]
    points = 100 * accuracy.smallest_difference
    return [f"{problems}: a difference of accuracy below {points:.0f} points would not be seen"]


def _warn_of_speed(num_problems: int, num_pairs: int, num_apart: int) -> list[str]:
    warnings = []
    if num_problems < MIN_PROBLEMS_FOR_SPEED:
        problems = _counted(num_problems, "problem")
        warnings.append(f"the speed-up rests on {problems}; take {MIN_PROBLEMS_FOR_SPEED} or more")
    if num_apart:
        warnings.append(
            f"{num_apart} of {_counted(num_pairs, 'pair')} were timed in different starts of the command"
        )
    return warnings


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
