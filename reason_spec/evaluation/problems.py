"""Outcomes grouped by problem: the unit that statistics count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.resampling import Floats, Strata, stratum_of_each

OutcomePair: TypeAlias = tuple[Outcome, Outcome]
"""The baseline's answer and the strategy's, to the same sample of the same problem."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Problems(Generic[Item]):
    """Outcomes, or pairs of them, by problem; ``strata[i]`` numbers the task of group i."""

    groups: tuple[tuple[Item, ...], ...]
    strata: Strata

    @classmethod
    def of(cls, items: Iterable[Item], outcome_of: Callable[[Item], Outcome]) -> Problems[Item]:
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
        """The least that a problem has."""
        return min(map(len, self.groups), default=0)

    @property
    def num_items(self) -> int:
        return sum(map(len, self.groups))

    def means(self, amount: Callable[[Item], float]) -> Floats:
        """Return the mean over the samples of each problem: ``[num_problems]``."""
        return np.array([math.fsum(map(amount, group)) / len(group) for group in self.groups])


def itself(outcome: Outcome) -> Outcome:
    return outcome


def strategy_side(pair: OutcomePair) -> Outcome:
    return pair[1]
