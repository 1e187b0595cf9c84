"""Paired comparison of a strategy with the baseline, with warnings where the sample is too small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from statistics import median

import numpy as np

from reason_spec.evaluation.amounts import counted
from reason_spec.evaluation.estimates import Estimate, estimate_gain, estimate_ratio
from reason_spec.evaluation.grouping import Batches, ByProblem, OutcomePair
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.statistics import mcnemar_exact, median_interval, smallest_paired_difference

MIN_PROBLEMS_FOR_SPEED = 60
"""With fewer a few hard problems decide the mean seconds."""
LARGEST_UNSEEN = 0.05
"""Largest difference of accuracy that a sample may miss without a warning."""
_MIN_SECONDS = 1e-6
"""Lower limit, so that ratios stay finite under a coarse clock."""


@dataclass(frozen=True, slots=True)
class PairedMetrics:
    """A strategy against the baseline on the problems and samples that both answered.

    Differences are the strategy's minus the baseline's. Problems are the unit of all intervals, but for
    speed-ups of concurrent answers their batches. Those of accuracy are score intervals, which do not shrink
    to nothing where no problem differs.

    Attributes:
        num_identical: pairs of the same tokens.
        num_apart: pairs whose two sides were timed in different starts of the command.
        accuracy_difference: mean over graded problems of the difference of their shares of right samples.
        loss_upper: upper end of the one-sided 95 % interval of the loss, the difference with its sign turned.
        num_better: problems with more right samples than the baseline's; ``num_worse``: with fewer.
        p_value: of McNemar's exact test, two-sided; None with several samples of a problem.
        smallest_difference: the difference of accuracy that this many problems would have shown with a power
            of 80 %, had they differed as often as these did.
        speedup: the baseline's mean seconds for each problem divided by the strategy's.
        paired_speedup: the median over pairs of the ratio of seconds.
        warning: in words where the sample is too small for a claim, empty where it is not.
    """

    task: str
    strategy: str
    baseline: str
    num_pairs: int
    num_problems: int
    num_identical: int
    num_apart: int
    accuracy_difference: Estimate | None
    loss_upper: float | None
    num_better: int
    num_worse: int
    p_value: float | None
    smallest_difference: float | None
    speedup: Estimate
    paired_speedup: Estimate
    warning: str


def compare_pairs(task: str, pairs: Sequence[OutcomePair]) -> PairedMetrics:
    """Compare a strategy with the baseline on the answers that both have.

    Args:
        task: the task of the pairs, ``ALL_TASKS`` for several.
        pairs: at least one; their order changes only the last digits of sums.
    """
    problems = ByProblem.of(pairs, itemgetter(1))
    batches = Batches.of(problems, itemgetter(1))
    accuracy = _compare_accuracy(pairs)
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
        num_better=accuracy.num_better,
        num_worse=accuracy.num_worse,
        p_value=accuracy.p_value,
        smallest_difference=accuracy.smallest_difference,
        speedup=estimate_ratio(
            batches.sums(problems.means(lambda pair: _seconds(pair[0]))),
            batches.sums(problems.means(lambda pair: _seconds(pair[1]))),
            batches.strata,
        ),
        paired_speedup=_paired_speedup(problems, batches),
        warning="; ".join(
            [
                *(_warn_of_accuracy(accuracy) if not is_same_text else []),
                *_warn_of_speed(batches, len(pairs), num_apart),
            ]
        ),
    )


@dataclass(frozen=True, slots=True)
class _AccuracyOfPairs:
    """All of it None where no pair is graded."""

    num_problems: int = 0
    difference: Estimate | None = None
    loss_upper: float | None = None
    num_better: int = 0
    num_worse: int = 0
    p_value: float | None = None
    smallest_difference: float | None = None


def _compare_accuracy(pairs: Iterable[OutcomePair]) -> _AccuracyOfPairs:
    graded = ByProblem.of([pair for pair in pairs if pair[0].answer is not None], itemgetter(1))
    if not graded.groups:
        return _AccuracyOfPairs()
    differences = graded.means(lambda pair: (pair[1].correct is True) - (pair[0].correct is True))
    gain = estimate_gain(differences, graded.num_samples, graded.strata)
    num_better, num_worse = int((differences > 0).sum()), int((differences < 0).sum())
    is_one_sample = graded.num_items == len(graded)
    return _AccuracyOfPairs(
        len(graded),
        gain.estimate,
        gain.loss_upper,
        num_better,
        num_worse,
        mcnemar_exact(num_better, num_worse) if is_one_sample else None,
        smallest_paired_difference(float((differences**2).mean()), len(graded), graded.num_samples),
    )


def _paired_speedup(problems: ByProblem[OutcomePair], batches: Batches) -> Estimate:
    """Return the median over pairs of the ratio of seconds; its interval is that of the batches' medians."""
    ratios = [[_seconds(base) / _seconds(own) for base, own in group] for group in problems.groups]
    medians = np.array([median(group) for group in ratios])
    of_batches = [float(np.median(medians[batches.batch_of == batch])) for batch in range(len(batches))]
    return Estimate(median(chain.from_iterable(ratios)), median_interval(of_batches))


def _seconds(outcome: Outcome) -> float:
    return max(outcome.seconds, _MIN_SECONDS)


def _warn_of_accuracy(accuracy: _AccuracyOfPairs) -> list[str]:
    if accuracy.smallest_difference is None or accuracy.smallest_difference <= LARGEST_UNSEEN:
        return []
    problems = counted(accuracy.num_problems, "problem")
    if accuracy.smallest_difference >= 1:
        return [f"{problems}: no difference of accuracy would be seen"]
    points = 100 * accuracy.smallest_difference
    return [f"{problems}: a difference of accuracy below {points:.0f} points would not be seen"]


def _warn_of_speed(batches: Batches, num_pairs: int, num_apart: int) -> list[str]:
    warnings = []
    if len(batches) < MIN_PROBLEMS_FOR_SPEED:
        units = counted(len(batches), "problem")
        if len(batches) < len(batches.batch_of):
            units = counted(len(batches), "batch of problems", "batches of problems")
        warnings.append(f"the speed-up rests on {units}; take {MIN_PROBLEMS_FOR_SPEED} or more")
    if num_apart:
        warnings.append(
            f"{num_apart} of {counted(num_pairs, 'pair')} were timed in different starts of the command"
        )
    return warnings
