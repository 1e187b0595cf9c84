"""Outcomes grouped by strategy, in pairs with the baseline, and by problem, the unit of the statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.statistics import Floats, Strata

BASELINE = "autoregressive"
OutcomePair: TypeAlias = tuple[Outcome, Outcome]
"""The baseline's answer and the strategy's, to the same sample of the same problem."""

Item = TypeVar("Item")


def by_strategy(outcomes: Iterable[Outcome], strategies: Sequence[str] = ()) -> dict[str, list[Outcome]]:
    """Group outcomes by strategy, in the order of ``strategies``; others follow in their own order."""
    groups: dict[str, list[Outcome]] = {name: [] for name in strategies}
    for outcome in outcomes:
        groups.setdefault(outcome.strategy, []).append(outcome)
    return {name: items for name, items in groups.items() if items}


def baseline_among(strategies: Iterable[str]) -> str:
    """Return the strategy that others are compared with: ``autoregressive`` if present, else the first."""
    names = list(strategies)
    return BASELINE if BASELINE in names else names[0]


def pair_up(baseline: Iterable[Outcome], outcomes: Iterable[Outcome]) -> list[OutcomePair]:
    """Return the answers that both strategies have, the baseline's first, in the order of ``outcomes``."""
    other = {(outcome.id, outcome.sample): outcome for outcome in baseline}
    keyed = ((outcome.id, outcome.sample, outcome) for outcome in outcomes)
    return [(other[name, sample], outcome) for name, sample, outcome in keyed if (name, sample) in other]


@dataclass(frozen=True, slots=True)
class ByProblem(Generic[Item]):
    """Outcomes, or pairs of them, by problem; ``strata[i]`` numbers the task of group i."""

    groups: tuple[tuple[Item, ...], ...]
    strata: Strata

    @classmethod
    def of(cls, items: Iterable[Item], outcome_of: Callable[[Item], Outcome]) -> ByProblem[Item]:
        """Group items by the problem of an outcome of theirs, in the order in which problems come."""
        groups: dict[tuple[str, str], list[Item]] = {}
        for item in items:
            outcome = outcome_of(item)
            groups.setdefault((outcome.task, outcome.id), []).append(item)
        return cls(tuple(map(tuple, groups.values())), stratum_of_each([task for task, _ in groups]))

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def num_samples(self) -> int:
        """The smallest number of samples of a problem."""
        return min(map(len, self.groups), default=0)

    @property
    def num_items(self) -> int:
        return sum(map(len, self.groups))

    def means(self, amount: Callable[[Item], float]) -> Floats:
        """Return the mean over the samples of each problem: ``[num_problems]``."""
        return np.array([math.fsum(map(amount, group)) / len(group) for group in self.groups])


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches in which problems were answered, one for each problem where answers were not concurrent.

    The seconds of concurrent answers are shares of the time of their batch, so for seconds the batch is the
    unit of the statistics, and not the problem. Where one strategy ran alone, a batch is a group of answers
    that ended one after another. ``batch_of[i]`` numbers the batch of problem i, ``strata[j]`` the task of
    batch j.
    """

    batch_of: npt.NDArray[np.intp]
    strata: Strata

    @classmethod
    def of(cls, problems: ByProblem[Item], outcome_of: Callable[[Item], Outcome]) -> Batches:
        """Find the batch of each problem; of several, as of many samples, that of the first sample counts."""
        numbers: dict[tuple[str, str, float], int] = {}
        batch_of: list[int] = []
        for group in problems.groups:
            first = min(map(outcome_of, group), key=lambda outcome: outcome.sample)
            # Answers of one batch have equal shares of its time.
            name, seconds = (first.session, first.seconds) if first.concurrency > 1 else (first.id, -1.0)
            key = first.task, name, seconds
            batch_of.append(numbers.setdefault(key, len(numbers)))
        return cls(np.array(batch_of, dtype=np.intp), stratum_of_each([task for task, *_ in numbers]))

    def __len__(self) -> int:
        return len(self.strata)

    @property
    def sizes(self) -> Floats:
        """The number of problems of each batch."""
        return self.sums(np.ones(len(self.batch_of)))

    def sums(self, amounts: Floats) -> Floats:
        """Return the sum over the problems of each batch: ``[num_batches]``."""
        sums = np.zeros(len(self))
        np.add.at(sums, self.batch_of, amounts)
        return sums


def stratum_of_each(tasks: Sequence[str]) -> Strata:
    """Number the tasks of problems: how tasks differ is no uncertainty.

    Where a task has one problem only, all are one stratum: alone it would seem not to vary.
    """
    _, strata, sizes = np.unique(np.asarray(tasks), return_inverse=True, return_counts=True)
    return strata if sizes.min(initial=2) > 1 else np.zeros_like(strata)
