"""Successive halving over candidates: finds the fastest within a stated loss of answers.

Each rung measures the remaining candidates on more problems and keeps the better part of them (Jamieson and
Talwalkar, AISTATS 2016; the inner loop of Hyperband, Li et al., JMLR 18, 2018). The finalists are measured on
held-out problems, and only there a loss is tested.

A candidate that writes the target's own tokens loses nothing and needs no test. Others are ranked by their
expected speed-up: their own with the probability of passing the test, else that of the best candidate without
loss, which is always kept. The probability is beta-binomial; its prior is 1 / L problems with one lost
answer, where L is the allowed loss. So a fast candidate that has lost an answer is dropped for one that has
not, long before its loss could be shown to be too high.

The final test of at most m candidates with a loss uses a confidence of 1 - (1 - c) / m for each, so that all
bounds hold together with confidence c (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeAlias

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.estimates import estimate_ratio
from reason_spec.evaluation.statistics import binomial_cdf
from reason_spec.lab.tuning.calibration import LossTest, Trial

BASELINE_KEY = "baseline"
FINAL_STAGE = "final test"
MAX_LOSSY_FINALISTS = 2
"""Each raises the confidence that the others need, so more finalists would need more problems."""
MIN_PROBLEMS = 4
"""With fewer problems the interval of a speed-up is meaningless."""
MIN_SELECTION = 12
"""Least number of problems for the selection if a loss is tested on the others."""
_CLEARLY = 0.05
"""A loss is clearly too high if at the allowed loss the lost answers have at most this probability."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination of settings; ``is_exact``: its answers equal the target's token by token."""

    key: str
    name: str
    is_exact: bool


class Answer(NamedTuple):
    """An answer to a problem; ``seconds`` is None if its generation failed."""

    seconds: float | None
    right: bool


Answers: TypeAlias = Mapping[str, Mapping[int, Answer]]
"""By the candidate's key (`BASELINE_KEY` for the target alone) and the number of the problem."""


class Bench(Protocol):
    """Measures candidates and the target alone."""

    @property
    def seconds_spent(self) -> float:
        """Seconds of all answers so far, earlier starts included."""

    async def measure(
        self, stage: str, candidates: Sequence[Candidate], problems: Sequence[int], seconds: float | None
    ) -> Answers:
        """Return all answers to the problems, or to the first of them.

        Args:
            stage: name of the stage, for the display.
            seconds: limit for new answers; `MIN_PROBLEMS` problems are measured in any case.
        """


class Speedup(NamedTuple):
    """Mean seconds of the target alone over those of a candidate, with a 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """The result of a candidate; ``dropped`` is the reason for dropping it, empty if it is kept.

    ``loss_upper`` is the upper bound of its share of lost answers, at the confidence of the test.
    """

    candidate: Candidate
    num_problems: int
    speedup: Speedup | None
    num_right: int
    num_lost: int
    loss_upper: float
    dropped: str = ""

    @property
    def speed(self) -> float:
        """The speed-up for ranking; 0 if there is none."""
        return 0.0 if self.speedup is None else self.speedup.value


@dataclass(frozen=True, slots=True)
class Rung:
    """One measurement of all remaining candidates, the fastest first."""

    num_problems: int
    baseline_right: int
    results: tuple[CandidateResult, ...]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The problems of each rung and of the final test, fixed before the search.

    ``rungs`` holds cumulative numbers of problems of ``selection``. ``tests_loss`` is False if even a
    candidate without a lost answer could not pass.
    """

    test: LossTest
    halving: int
    selection: tuple[int, ...]
    final: tuple[int, ...]
    rungs: tuple[int, ...]
    tests_loss: bool
    num_tested: int
    seconds: float | None = None

    @property
    def num_finalists(self) -> int:
        """One candidate without loss, plus the most whose loss is tested."""
        return 1 + (self.num_tested if self.tests_loss else 0)

    @property
    def final_test(self) -> LossTest:
        """The test of one finalist, with the confidence corrected for all of them."""
        return _shared_test(self.test, self.num_tested)

    @property
    def num_needed(self) -> int:
        """The least number of problems for which a loss can be tested."""
        return self.final_test.least_problems + MIN_SELECTION


def make_plan(
    candidates: Sequence[Candidate],
    problems: Sequence[int],
    test: LossTest,
    *,
    halving: int = 3,
    seconds: float | None = None,
) -> SearchPlan:
    """Divide the problems between the rungs and the final test.

    Half of them are for the test, more if the loss needs more. If no selection is needed, all are for the
    test.

    Args:
        problems: numbers of problems in a random order.
        halving: a rung keeps one in ``halving`` candidates.
        seconds: limit for all answers; half of it is for the final test.

    Raises:
        DataError: there are too few problems for any comparison.
        SettingsError: ``halving`` is below 2.
    """
    if halving < 2:
        raise SettingsError(f"--halving {halving}: a rung keeps one in so many candidates; name 2 or more")
    if len(problems) < 2 * MIN_PROBLEMS:
        raise DataError(
            f"{len(problems)} problems with known answers are too few to choose from: give "
            f"{2 * MIN_PROBLEMS} or more"
        )
    num_lossy = sum(not candidate.is_exact for candidate in candidates)
    num_tested = min(num_lossy, MAX_LOSSY_FINALISTS)
    least = _shared_test(test, num_tested).least_problems if num_lossy else 0
    tests_loss = num_lossy > 0 and len(problems) >= least + MIN_SELECTION
    compared = len(candidates) if tests_loss else len(candidates) - num_lossy
    if len(candidates) - num_lossy <= 1 and (not tests_loss or num_lossy <= MAX_LOSSY_FINALISTS):
        return SearchPlan(test, halving, (), tuple(problems), (), tests_loss, num_tested, seconds)
    num_final = max(len(problems) // 2, least if tests_loss else 0)
    selection, final = tuple(problems[:-num_final]), tuple(problems[-num_final:])
    num_finalists = 1 + (num_tested if tests_loss else 0)
    num_halvings = max(0, ceil(log(compared / num_finalists, halving) - 1e-9))
    sizes = (len(selection) // halving**left for left in range(num_halvings, -1, -1))
    rungs = tuple(sorted({min(len(selection), max(MIN_PROBLEMS, size)) for size in sizes}))
    return SearchPlan(test, halving, selection, final, rungs, tests_loss, num_tested, seconds)


@dataclass(frozen=True, slots=True)
class Choice:
    """The measurements and the chosen candidate; None: the target alone."""

    plan: SearchPlan
    rungs: tuple[Rung, ...]
    final: Rung | None
    chosen: CandidateResult | None


async def choose(candidates: Sequence[Candidate], plan: SearchPlan, bench: Bench) -> Choice:
    """Choose the fastest candidate within the loss; the module describes the method."""
    remaining = [candidate for candidate in candidates if candidate.is_exact or plan.tests_loss]
    rungs: list[Rung] = []
    for number, size in enumerate(plan.rungs, start=1):
        if _is_settled(remaining, plan):
            break
        num_rungs_left = len(plan.rungs) - number + 1
        seconds = None if plan.seconds is None else (plan.seconds / 2 - bench.seconds_spent) / num_rungs_left
        stage = f"rung {number} of {len(plan.rungs)}"
        answers = await bench.measure(stage, remaining, plan.selection[:size], seconds)
        rungs.append(_halve(remaining, answers, plan, is_last=num_rungs_left == 1))
        remaining = [result.candidate for result in rungs[-1].results if not result.dropped]
    if not remaining:
        return Choice(plan, tuple(rungs), None, None)
    seconds = None if plan.seconds is None else plan.seconds - bench.seconds_spent
    final = _judge_finalists(
        remaining, await bench.measure(FINAL_STAGE, remaining, plan.final, seconds), plan
    )
    chosen = next((result for result in final.results if not result.dropped), None)
    return Choice(plan, tuple(rungs), final, chosen)


def _is_settled(candidates: Sequence[Candidate], plan: SearchPlan) -> bool:
    """Whether all remaining candidates fit into the final test, so that no further rung is needed."""
    num_exact = sum(candidate.is_exact for candidate in candidates)
    return num_exact <= 1 and len(candidates) - num_exact <= plan.num_tested


def _halve(candidates: Sequence[Candidate], answers: Answers, plan: SearchPlan, *, is_last: bool) -> Rung:
    """Drop candidates that are clearly worse, then those of the least expected speed-up."""
    num_kept = max(plan.num_finalists, ceil(len(candidates) / plan.halving))
    results = [compare_with_target(candidate, answers, plan.final_test) for candidate in candidates]
    best = max((item for item in results if item.candidate.is_exact), key=attrgetter("speed"), default=None)
    reasons = {item.candidate.key: _why_eliminated(item, best, plan.test) for item in results}
    remaining = sorted(
        (item for item in results if not reasons[item.candidate.key]),
        key=lambda item: expected_speedup(item, best, plan),
        reverse=True,
    )
    kept = {best.candidate.key} if best is not None and best in remaining else set()
    if is_last:
        # The tests of loss are corrected for so many, also where no exact candidate is left.
        num_kept = len(kept) + plan.num_finalists - 1
    for item in remaining:
        if len(kept) >= num_kept:
            break
        # At the end one exact candidate is left, the fallback of the others.
        if not (is_last and item.candidate.is_exact):
            kept.add(item.candidate.key)
    for item in remaining:
        if item.candidate.key not in kept:
            reasons[item.candidate.key] = "its expected speed-up is below that of the others"
    return _rung(answers, [replace(item, dropped=reasons[item.candidate.key]) for item in results])


def _judge_finalists(candidates: Sequence[Candidate], answers: Answers, plan: SearchPlan) -> Rung:
    results = []
    for candidate in candidates:
        item = compare_with_target(candidate, answers, plan.final_test)
        reason = ""
        if item.speedup is None or item.speedup.low <= 1:
            reason = "not shown to be faster than the target alone"
        elif not candidate.is_exact and not plan.final_test.passes(trial_of(item)):
            reason = "not shown to hold the loss"
        results.append(replace(item, dropped=reason))
    return _rung(answers, results)


def _rung(answers: Answers, results: Sequence[CandidateResult]) -> Rung:
    baseline = answers[BASELINE_KEY].values()
    known = [answer for answer in baseline if answer.seconds is not None]
    ordered = sorted(results, key=attrgetter("speed"), reverse=True)
    return Rung(len(known), sum(answer.right for answer in known), tuple(ordered))


def compare_with_target(candidate: Candidate, answers: Answers, test: LossTest) -> CandidateResult:
    """Compare a candidate with the target alone on the problems that the latter answered.

    A failed answer is not right, and has no time.
    """
    baseline, own = answers[BASELINE_KEY], answers[candidate.key]
    problems = [number for number, answer in baseline.items() if answer.seconds is not None and number in own]
    pairs = [
        (before, after)
        for before, after in ((baseline[number].seconds, own[number].seconds) for number in problems)
        if before is not None and after is not None
    ]
    num_lost = sum(baseline[number].right and not own[number].right for number in problems)
    return CandidateResult(
        candidate,
        len(problems),
        speedup_of(pairs),
        sum(own[number].right for number in problems),
        num_lost,
        test.bound(Trial(0.0, len(problems), num_lost)) if problems else 1.0,
    )


def speedup_of(pairs: Sequence[tuple[float, float]]) -> Speedup | None:
    """Return the ratio of mean seconds; ``pairs`` are those of the target alone and of the candidate."""
    if len(pairs) < 2 or sum(after for _, after in pairs) <= 0:
        return None
    before, after = zip(*pairs, strict=True)
    found = estimate_ratio(before, after)
    return None if found.interval is None else Speedup(found.value, *found.interval)


def expected_speedup(item: CandidateResult, best_exact: CandidateResult | None, plan: SearchPlan) -> float:
    """Return the speed-up that is expected of choosing a candidate, the final test being still to come."""
    fallback = max(1.0, 0.0 if best_exact is None else best_exact.speed)
    if item.candidate.is_exact or item.speed <= fallback:
        return item.speed
    chance = chance_to_pass(item, plan)
    return chance * item.speed + (1 - chance) * fallback


def chance_to_pass(item: CandidateResult, plan: SearchPlan) -> float:
    """Return the chance that a candidate will pass the final test, by its lost answers so far."""
    from scipy.stats import betabinom

    test, number = plan.final_test, len(plan.final)
    weight = 1 / test.loss
    lost = 1 + item.num_lost
    kept = max(weight - 1, 1e-6) + item.num_problems - item.num_lost
    return float(betabinom.cdf(_most_lost(test, number), number, lost, kept))


def trial_of(item: CandidateResult) -> Trial:
    """Return what the test of a loss looks at."""
    return Trial(0.0, item.num_problems, item.num_lost, item.num_right)


@cache
def _most_lost(test: LossTest, number: int) -> int:
    """Return how many of ``number`` problems may be lost; -1 where even none is too many."""
    passing = (lost for lost in range(number + 1) if not test.passes(Trial(0.0, number, lost)))
    return next(passing, number + 1) - 1


def _why_eliminated(item: CandidateResult, best_exact: CandidateResult | None, test: LossTest) -> str:
    """Return why a candidate is clearly worse than another choice; empty where it is not."""
    if item.speedup is None:
        return "no two answers could be timed"
    # One lost answer of a few is unlikely at a small loss, and no evidence yet.
    may_be_too_many = not item.candidate.is_exact and item.num_lost > 1
    if may_be_too_many and 1 - binomial_cdf(item.num_lost - 1, item.num_problems, test.loss) <= _CLEARLY:
        return "loses too much"
    if item.speedup.high < 1:
        return "slower than the target alone"
    rival = None if best_exact is None or item is best_exact else best_exact
    if rival is not None and rival.speedup is not None and item.speedup.high < rival.speedup.low:
        return f"slower than {rival.candidate.name}"
    return ""


def _shared_test(test: LossTest, number: int) -> LossTest:
    return LossTest(test.loss, 1 - (1 - test.confidence) / max(1, number))
