"""Exact tests of the loss of thresholds in a fixed order, from strict to lax.

The loss of a threshold is the share of problems that the target alone answers right and the accelerated
system with that threshold does not. Answers that only speculation gets right do not reduce it, so it is an
upper bound of the lost accuracy.

For each threshold the hypothesis "its loss is above L" is tested on a sample of n problems. With k answers
lost, the exact p-value is the probability of k or fewer under a loss of L: P(Bin(n, L) <= k). The order is
fixed beforehand, the strictest threshold first, and the first one that does not pass ends the sequence. A
threshold with too high a loss is chosen only if the first such threshold in the order passes its own test,
with a probability of at most 1 - confidence. So the number of thresholds needs no correction, although all
are tested on the same problems, and the loss may depend on the threshold in any way. (Fixed-sequence testing
in Learn then Test, arXiv 2110.01052.) The guarantee holds for any n; a small n only makes it harder to pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise, takewhile
from math import ceil, log, log1p
from typing import Any

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.statistics import binomial_cdf, clopper_pearson_upper

MAX_PROBLEMS_NEEDED = 1_000_000
"""A test that needs more problems counts as impossible."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The answers at one threshold.

    ``num_lost`` counts answers that are right with the target alone and wrong at this threshold;
    ``num_right`` those that are right at this threshold. ``num_solved`` counts the problems that had to be
    solved again; the other answers equal those of the threshold before. ``drafted_steps`` is the share of
    final steps from the draft, ``accepted`` the share of drafted steps that were accepted; None without any.
    """

    threshold: float
    num_problems: int
    num_lost: int
    num_right: int = 0
    num_solved: int = 0
    drafted_steps: float | None = None
    accepted: float | None = None


@dataclass(frozen=True, slots=True)
class LossTest:
    """Tests whether the loss of a threshold is at most ``loss``, a share of all problems.

    The chance that a threshold with a higher loss passes is at most ``1 - confidence``.

    Raises:
        SettingsError: one of the two does not lie between 0 and 1.
    """

    loss: float
    confidence: float

    def __post_init__(self) -> None:
        if not 0 < self.loss < 1:
            raise SettingsError(f"a loss of {100 * self.loss:g} points: it has to lie between 0 and 100")
        if not 0 < self.confidence < 1:
            raise SettingsError(f"a confidence of {self.confidence:g}: it has to lie between 0 and 1")

    def passes(self, trial: Trial) -> bool:
        """Whether the p-value, P(Bin(n, loss) <= k), is at most ``1 - confidence``."""
        return binomial_cdf(trial.num_lost, trial.num_problems, self.loss) <= 1 - self.confidence

    def bound(self, trial: Trial) -> float:
        """Return the exact upper bound of the loss; at most ``loss`` if the trial passes."""
        return clopper_pearson_upper(trial.num_lost, trial.num_problems, self.confidence)

    @property
    def least_problems(self) -> int:
        """Problems needed if no answer is lost: the least n with (1 - loss)^n <= 1 - confidence."""
        # Rounding may put the quotient on either side of a whole number; the test itself decides.
        estimate = int(log(1 - self.confidence) / log1p(-self.loss))
        return next(number for number in count(max(1, estimate - 1)) if self._passes_with(0.0, number))

    def problems_needed(self, trial: Trial) -> int | None:
        """Return the number of problems that pass with the same share lost; None if no number does.

        An estimate for planning: the share differs in the next sample.
        """
        share = trial.num_lost / trial.num_problems
        if share >= self.loss:
            return None
        low, high = 0, self.least_problems
        while not self._passes_with(share, high):
            low, high = high, 2 * high
            if high > MAX_PROBLEMS_NEEDED:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._passes_with(share, middle) else (middle, high)
        return high

    def _passes_with(self, share: float, num_problems: int) -> bool:
        return binomial_cdf(ceil(share * num_problems), num_problems, self.loss) <= 1 - self.confidence

    def refuse_too_few(self, num_problems: int) -> None:
        """Refuse a sample on which no threshold could pass.

        Raises:
            DataError: there are too few problems; the message gives the needed number.
        """
        if num_problems >= self.least_problems:
            return
        remedy = "Give more"
        if num_problems:
            reachable = 100 * clopper_pearson_upper(0, num_problems, self.confidence)
            remedy += f", or allow a loss of {ceil(10 * reachable) / 10:g} points or more with --loss"
        raise DataError(
            f"{num_problems} problems with known answers are too few: to show a loss of at most "
            f"{100 * self.loss:g} points with {100 * self.confidence:g} % confidence takes "
            f"{self.least_problems}, even where no answer is lost. {remedy}."
        )


def laxest_safe(trials: Sequence[Trial], test: LossTest) -> Trial | None:
    """Return the last trial before the first that does not pass; None if the first does not.

    Args:
        trials: the strictest threshold first, each of them on the same problems.
    """
    assert all(a.threshold > b.threshold for a, b in pairwise(trials)), "trials go from strict to lax"
    safe = list(takewhile(test.passes, trials))
    return safe[-1] if safe else None


@dataclass(frozen=True, slots=True)
class ThresholdTrials:
    """The trials of one verifier, strictest first, and the chosen one; None where none is safe."""

    verifier: str
    strategy: str
    test: LossTest
    trials: tuple[Trial, ...]
    chosen: Trial | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it, with the bound of each trial; shares are not in points."""
        return {
            "verifier": self.verifier,
            "strategy": self.strategy,
            **asdict(self.test),
            "threshold": None if self.chosen is None else self.chosen.threshold,
            "trials": [
                {**asdict(trial), "loss_upper": self.test.bound(trial), "passes": self.test.passes(trial)}
                for trial in self.trials
            ],
        }
