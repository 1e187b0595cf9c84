"""Metrics over several samples of a problem: pass@k and majority@k."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from reason_spec.evaluation.outcome import Outcome
from reason_spec.tasks.numerals import parse_number


class Votes(NamedTuple):
    """The answers of one problem's samples, as a vote counts them.

    ``others`` are the sizes of the groups of equal answers that are not right, largest first. Samples without
    an answer are silent.
    """

    num_right: int
    others: tuple[int, ...]
    num_silent: int

    @property
    def num_samples(self) -> int:
        return self.num_right + sum(self.others) + self.num_silent


def count_votes(outcomes: Iterable[Outcome]) -> Votes:
    """Group the graded answers to one problem.

    All that grading calls right are one group. Others are equal where they are the same number, else where
    their texts are the same but for case and spaces. An answer that grading left undecided is never right
    and agrees with those of the same text.
    """
    num_right = num_silent = 0
    others: Counter[object] = Counter()
    for outcome in outcomes:
        if outcome.correct:
            num_right += 1
        elif outcome.prediction is None:
            num_silent += 1
        else:
            others[normal_form(outcome.prediction)] += 1
    return Votes(num_right, tuple(sorted(others.values(), reverse=True)), num_silent)


@lru_cache(maxsize=4096)
def normal_form(prediction: str) -> object:
    """Return a value that is equal for answers that a vote counts together: 5 thousand is 5000, 5 % is 5."""
    number = parse_number(prediction)
    if number is None:
        return "".join(prediction.casefold().split())
    return number.value * max(number.factor, Fraction(1))


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Return the chance that one of k samples is right, estimated without bias from n of them.

    ``1 - C(n - c, k) / C(n, k)`` (Chen et al., arXiv 2107.03374, equation 1).
    """
    _check(num_samples, num_right, k)
    return 1 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


@lru_cache(maxsize=4096)
def majority_at_k(votes: Votes, k: int) -> float:
    """Return the chance that the answer most frequent among k of the samples is right.

    Exact: the share of the subsets of k samples where the right answer wins, a tie of m answers counted as
    1 / m. Where no sample of a subset has an answer, the problem is not solved. Majority voting is
    self-consistency (Wang et al., arXiv 2203.11171).
    """
    _check(votes.num_samples, votes.num_right, k)
    num_subsets = math.comb(votes.num_samples, k)
    chances = (
        math.comb(votes.num_right, top) * ways / (num_subsets * (ties + 1))
        for top in range(1, min(k, votes.num_right) + 1)
        for ties, ways in enumerate(_ways_by_ties(votes, k - top, top))
    )
    return min(1.0, math.fsum(chances))


def _ways_by_ties(votes: Votes, num_chosen: int, top: int) -> list[int]:
    """Count the choices of samples that are not right, no answer more often than ``top``.

    Entry t counts those in which t answers come ``top`` times, as the right one does.
    """
    ways = {(0, 0): 1}
    for size in votes.others:
        following: Counter[tuple[int, int]] = Counter()
        for (used, ties), count in ways.items():
            for taken in range(min(size, top, num_chosen - used) + 1):
                following[used + taken, ties + (taken == top)] += count * math.comb(size, taken)
        ways = following
    by_ties = [0] * (len(votes.others) + 1)
    for (used, ties), count in ways.items():
        by_ties[ties] += count * math.comb(votes.num_silent, num_chosen - used)
    return by_ties


def sizes_up_to(num_samples: int) -> Sequence[int]:
    """Return the k that are shown: 1, 2, 4, ... and the number of samples itself."""
    powers = [1 << exponent for exponent in range(num_samples.bit_length())]
    return sorted({*powers, num_samples}) if num_samples else []


def _check(num_samples: int, num_right: int, k: int) -> None:
    if not 0 <= num_right <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"{k} of {num_samples} samples, {num_right} of them right")
