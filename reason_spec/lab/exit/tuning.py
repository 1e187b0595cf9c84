"""Chooses the threshold of an exit policy on whole answers, by Learn-then-Test.

The loss class is ``shortened``: answers may be shorter, and the share of answers made wrong is bounded. The
test is that of `reason_spec.lab.tuning.calibration`. Its problems are independent, so several answers to one
question count as one problem, which is lost if any of its answers is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from reason_spec.errors import SettingsError
from reason_spec.exit.policy import ExitPolicy
from reason_spec.lab.exit.replay import Replay, share_kept
from reason_spec.lab.exit.rules import Rule, Stop, choices
from reason_spec.lab.exit.traces import ReadTrace
from reason_spec.lab.tuning.calibration import LossTest, ThresholdTrials, Trial, laxest_safe
from reason_spec.types import LossClass

THRESHOLDS: Final = (
    *(0.995, 0.9925, 0.99, 0.9875, 0.985, 0.9825, 0.98, 0.9775, 0.975, 0.9725, 0.97, 0.965, 0.96, 0.955),
    *(0.95, 0.945, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85, 0.8, 0.7, 0.5),
)
LOSS_CLASS: Final[LossClass] = "shortened"
_NAME: Final = "exit policy"


class ExitTuning(NamedTuple):
    """The trials of the thresholds, and the policy with the chosen one; None where none is safe.

    ``kept`` is the share of tokens kept at each trial.
    """

    trials: ThresholdTrials
    kept: tuple[float, ...]
    policy: ExitPolicy | None

    def to_dict(self) -> dict[str, Any]:
        found = self.trials.to_dict()
        for trial, kept in zip(found["trials"], self.kept, strict=True):
            trial["tokens_kept"] = kept
        return {**found, "loss_class": LOSS_CLASS}


def tune_exit(
    curve: PolicyCurve,
    replay: Replay,
    test: LossTest,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    num_problems: int,
    advance: Callable[[], None] = lambda: None,
) -> ExitTuning:
    """Try thresholds from strict to lax, up to the first that does not pass.

    Raises:
        SettingsError: a threshold is not between 0 and 1.
        DataError: there are too few problems for any threshold to pass.
    """
    if beyond := [threshold for threshold in thresholds if not 0 <= threshold <= 1]:
        raise SettingsError(f"--thresholds {beyond[0]:g}: name thresholds between 0 and 1, such as 0.9")
    test.refuse_too_few(num_problems)
    trials: list[Trial] = []
    kept: list[float] = []
    for threshold in sorted(set(thresholds), reverse=True):
        answers = replay.run(curve.rule(threshold))
        lost = {answer.problem for answer in answers if answer.is_lost}
        right = num_problems - len({answer.problem for answer in answers if answer.right_after is not True})
        trials.append(Trial(threshold, num_problems, num_lost=len(lost), num_right=right))
        kept.append(share_kept(answers))
        advance()
        if not test.passes(trials[-1]):
            break
    chosen = laxest_safe(trials, test)
    safe = None if chosen is None else curve.policy.model_copy(update={"threshold": chosen.threshold})
    return ExitTuning(ThresholdTrials(_NAME, LOSS_CLASS, test, tuple(trials), chosen), tuple(kept), safe)


class PolicyCurve:
    """A policy at any threshold; its chances are computed once for each answer."""

    def __init__(self, policy: ExitPolicy) -> None:
        self.policy = policy
        self._choices: dict[int, list[tuple[int, str, float]]] = {}

    def reduce(self, read: ReadTrace) -> ReadTrace:
        """Choose among the candidates of an answer, and return it without them."""
        self._choices_of(read)
        return replace(read, candidates=(), statements=())

    def rule(self, threshold: float) -> Rule:
        def stop(read: ReadTrace) -> Stop | None:
            choices = self._choices_of(read)
            return next((Stop(step, answer) for step, answer, chance in choices if chance >= threshold), None)

        return stop

    def _choices_of(self, read: ReadTrace) -> list[tuple[int, str, float]]:
        if id(read.trace) not in self._choices:
            best = enumerate(choices(self.policy, read))
            self._choices[id(read.trace)] = [(step, c.answer, c.chance) for step, c in best if c is not None]
        return self._choices[id(read.trace)]
