"""How much goodput each speculation mode really brings: measured windows, and what they correct."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from reason_spec.control.constants import LoadConstants
from reason_spec.control.rates import PredictionCorrection
from reason_spec.settings import SpeculationMode


@dataclass(slots=True)
class OutcomeWindow:
    """Predicted and final tokens while one mode lasts; nothing before ``begins_at`` counts."""

    begins_at: float
    observed_to: float
    predicted: float = 0.0
    seconds: float = 0.0
    answer_seconds: float = 0.0
    num_tokens: int = 0
    _num_counted: int = 0

    def observe(self, now: float, goodput: float, num_live: int, generating: float, least: float) -> float:
        """Count the time up to now, which is past ``begins_at``, and return how many seconds count.

        Args:
            goodput: predicted tokens a second.
            generating: share of the live answers that are past their prompts. Below ``least`` the passes are
                full of prompts, and the time does not count.
        """
        seconds = max(0.0, now - max(self.observed_to, self.begins_at))
        self.observed_to = now
        if generating < least:
            self.num_tokens = self._num_counted
            return 0.0
        self.predicted += goodput * generating * seconds
        self.answer_seconds += num_live * seconds
        self.seconds += seconds
        self._num_counted = self.num_tokens
        return seconds

    def is_full(self, constants: LoadConstants) -> bool:
        """Whether it has enough time and tokens for a measurement."""
        long_enough = self.seconds >= constants.window_seconds
        return long_enough and self.num_tokens >= constants.window_tokens


class ModeCorrections:
    """Measured over predicted goodput of each mode, by powers of two of the number of live answers."""

    _MAX_WEIGHT = 5.0
    """The most seconds that one window counts for."""

    def __init__(self, constants: LoadConstants) -> None:
        self._constants = constants
        self._corrections: dict[tuple[SpeculationMode, int], PredictionCorrection] = {}

    def add(self, mode: SpeculationMode, window: OutcomeWindow, now: float) -> None:
        """Take a measured window."""
        if window.predicted <= 0:
            return
        load = max(1.0, window.answer_seconds / window.seconds)
        weight, half_life = self._constants.correction_weight, self._constants.correction_half_life
        correction = self._corrections.setdefault(
            (mode, _bucket(load)), PredictionCorrection(weight, half_life)
        )
        correction.add(window.num_tokens, window.predicted, min(window.seconds, self._MAX_WEIGHT), now)

    def log_ratio(self, mode: SpeculationMode, num_live: int, now: float) -> float:
        """Return the correction of a mode at a load, from the nearest load that was measured."""
        assumed = 0.0
        if mode == "steps":
            # Draft tokens beside the steps bring what draft tokens bring.
            assumed = self._constants.assumed_log_of_steps + self.log_ratio("tokens", num_live, now)
        elif mode == "none":
            assumed = max(self._constants.least_log_of_none, self.log_ratio("tokens", num_live, now))
        measured = {load: one for (other, load), one in self._corrections.items() if other == mode}
        if not measured:
            return assumed
        load = _bucket(num_live)
        nearest = min(measured, key=lambda bucket: (abs(bucket - load), bucket))
        beyond_assumed = measured[nearest].log_ratio(now, assumed) - assumed
        return assumed + beyond_assumed / (1 + abs(nearest - load))

    def is_known(self, mode: SpeculationMode, num_live: int, now: float) -> bool:
        """Whether a mode was measured at this load, not too long ago."""
        found = self._corrections.get((mode, _bucket(num_live)))
        return found is not None and now - found.at <= self._constants.known_seconds


def _bucket(num_live: float) -> int:
    return round(math.log2(max(1.0, num_live)))


def choose_mode(
    expected: Mapping[SpeculationMode, float],
    present: SpeculationMode | None,
    *,
    margin: float,
    is_held: bool,
) -> SpeculationMode:
    """Return the mode with the highest expected goodput, or the present one if no other is clearly better.

    Args:
        expected: tokens a second of each open mode, over all answers.
        present: None if the present mode was not compared with others.
        margin: relative gain that a change needs.
        is_held: whether the mode changed a moment ago; only the change to ``none`` is possible then.
    """
    best = max(expected, key=expected.__getitem__)
    if present not in expected or present is None or best == present:
        return best
    needed = expected[present] * (1.0 + margin)
    if expected["none"] > needed:
        return "none" if is_held else best
    return best if not is_held and expected[best] > needed else present


@dataclass(slots=True)
class TargetTrial:
    """Explores mode ``none``: a prediction that is never measured may be wrong."""

    ends_at: float = -math.inf
    seconds_due: float = 0.0
    """Seconds of speculation of several answers since the last trial."""

    def add(self, seconds: float, mode: SpeculationMode, num_live: int, constants: LoadConstants) -> None:
        """Take counted seconds of a mode."""
        if mode != "none" and num_live >= constants.trial_answers:
            self.seconds_due += seconds

    def explore(
        self,
        expected: Mapping[SpeculationMode, float],
        now: float,
        *,
        may_begin: bool,
        num_live: int,
        constants: LoadConstants,
    ) -> bool:
        """Return whether the target alone is to be tried now.

        Args:
            may_begin: whether a new trial would measure something that is unknown.
        """
        is_close = expected["none"] >= constants.trial_share * max(expected.values())
        if now < self.ends_at and is_close:
            return True
        is_due = self.seconds_due >= constants.trial_after and num_live >= constants.trial_answers
        if not (may_begin and is_due and is_close):
            return False
        self.ends_at = now + constants.trial_seconds
        self.seconds_due = 0.0
        return True
