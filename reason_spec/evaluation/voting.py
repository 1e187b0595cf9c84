"""Votes among the samples of a problem: when one is decided, and what each sample weighs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from reason_spec.errors import SettingsError
from reason_spec.evaluation.outcome import Outcome, UnitKey, VoteEnd
from reason_spec.evaluation.repeated import normal_form
from reason_spec.tasks.base import get_task

KEPT_SHARES: Final = (1.0, 0.9, 0.1)
"""Shares of the most confident samples that take part in a weighted vote; 0.9 and 0.1 are DeepConf's."""
_Poll: TypeAlias = tuple[str, str]
"""Problem and strategy."""


def certainty_of_majority(counts: Sequence[int]) -> float:
    """Return a lower bound of the probability that the most frequent answer is the most likely one.

    Adaptive consistency (arXiv 2305.11860): with a uniform prior, the chances of two answers that came a and
    b times are in the ratio of a beta distribution, and the second is the likelier one with probability
    I_1/2(a + 1, b + 1). With one other answer this is the paper's Beta criterion. The chances of several
    others add up at most (the union bound of its Dirichlet criterion). An answer that did not come yet counts
    where there is no other.

    Args:
        counts: how often each answer came, in any order.
    """
    first, *others = sorted(counts, reverse=True) if counts else (0,)
    return max(0.0, 1.0 - math.fsum(_chance_below_half(first + 1, other + 1) for other in others or (0,)))


def _chance_below_half(a: int, b: int) -> float:
    """Return I_1/2(a, b), the regularized incomplete beta function, for whole numbers."""
    num = a + b - 1
    tail: int = sum(math.comb(num, hits) for hits in range(a, num + 1))
    return tail / (1 << num)


class StopRule(NamedTuple):
    """When the vote of a problem is decided.

    ``certainty`` is a probability above 0.5, for `certainty_of_majority`. At 1 only a majority that the
    samples left cannot change ends the vote: it is then the majority of all ``num_samples``.
    """

    num_samples: int
    certainty: float

    @classmethod
    def checked(cls, num_samples: int, certainty: float) -> StopRule:
        """Return the rule.

        Raises:
            SettingsError: a number is out of its range.
        """
        if not 0.5 < certainty <= 1:
            raise SettingsError(f"--stop-samples {certainty:g}: give a probability above 0.5, up to 1")
        if num_samples < 2:
            raise SettingsError("--stop-samples decides votes: give --samples of at least 2")
        return cls(num_samples, certainty)

    def decides(self, counts: Sequence[int], num_drawn: int) -> bool:
        """Return whether the vote is decided after ``num_drawn`` samples, and others are left.

        ``num_drawn`` counts samples without an answer, too.
        """
        if not counts or num_drawn >= self.num_samples:
            return False
        first, second, *_ = (*sorted(counts, reverse=True), 0)
        if first - second > self.num_samples - num_drawn:
            return True
        return self.certainty < 1 and certainty_of_majority(counts) >= self.certainty


@dataclass(slots=True)
class SampleVotes:
    """The votes of a run while it draws samples.

    References are not read: answers are equal where their numbers are, or else their texts.
    """

    rule: StopRule
    _answers: defaultdict[_Poll, Counter[object]] = field(default_factory=lambda: defaultdict(Counter))
    _num_drawn: Counter[_Poll] = field(default_factory=Counter)

    @classmethod
    def of(cls, rule: StopRule, outcomes: Iterable[Outcome]) -> SampleVotes:
        """Return the votes after the answers of an earlier start."""
        votes = cls(rule)
        for outcome in outcomes:
            if outcome.sample < rule.num_samples:
                votes.add(outcome.key, outcome.response, outcome.task)
        return votes

    def add(self, key: UnitKey, response: str, task: str) -> None:
        """Count the answer in a finished sample."""
        poll = key.problem_id, key.strategy
        self._num_drawn[poll] += 1
        prediction = get_task(task).extract(response)
        if prediction is not None:
            self._answers[poll][normal_form(prediction)] += 1

    def num_drawn(self, key: UnitKey) -> int:
        """Return how many samples of a sample's problem are finished."""
        return self._num_drawn[key.problem_id, key.strategy]

    def is_decided(self, key: UnitKey) -> bool:
        """Return whether the vote that a sample belongs to is decided before all samples were drawn."""
        poll = key.problem_id, key.strategy
        return self.rule.decides(list(self._answers[poll].values()), self._num_drawn[poll])


def end_of_vote(outcomes: Iterable[Outcome]) -> VoteEnd | None:
    """Return where the vote of a problem ended, if no samples were drawn after that."""
    drawn = list(outcomes)
    ends = (outcome.vote_end for outcome in drawn)
    return next((end for end in ends if end is not None and end.num_drawn >= len(drawn)), None)


def weighted_majority(outcomes: Sequence[Outcome], kept_share: float) -> float | None:
    """Return the chance that a vote weighted by confidence is right; None where a sample has no confidence.

    DeepConf offline (arXiv 2508.15260): the most confident ``kept_share`` of the samples vote, at least one,
    each with its confidence as weight. A sample's confidence is its lowest group's. A tie of m answers
    counts 1 / m.
    """
    confident: list[tuple[float, Outcome]] = []
    for outcome in outcomes:
        if outcome.confidence is None:
            return None
        confident.append((outcome.confidence.lowest_group, outcome))
    confident.sort(key=lambda one: -one[0])
    weights: defaultdict[object, list[float]] = defaultdict(list)
    for weight, outcome in confident[: max(1, math.floor(kept_share * len(confident)))]:
        if outcome.correct:
            weights[True].append(weight)
        elif outcome.prediction is not None:
            weights["wrong", normal_form(outcome.prediction)].append(weight)
    sums = {answer: math.fsum(sorted(parts)) for answer, parts in weights.items()}
    most = max(sums.values(), default=0.0)
    winners = [answer for answer, weight in sums.items() if weight == most]
    return (True in winners) / len(winners) if winners else 0.0
