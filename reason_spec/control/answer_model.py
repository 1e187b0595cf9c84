"""The predicted speed of one answer: by costs and acceptance rates, corrected by measured speeds.

What earlier answers showed is kept apart for answers that the suffix cache knows in part and for the others:
cached drafts are accepted more often, and cost no draft model.
"""

from __future__ import annotations

from math import exp, inf
from typing import Literal, NamedTuple, TypeAlias

from reason_spec.control.constants import PlannerConstants
from reason_spec.control.costs import Costs
from reason_spec.control.formulas import (
    busy_branches,
    judged_ahead_speedup,
    judged_speedup,
    tokens_per_pass,
    windowed_speedup,
)
from reason_spec.control.rates import FadingRate, PredictionCorrection
from reason_spec.events import Recorder
from reason_spec.settings import SpeculationMode
from reason_spec.types import Plan


class CacheForecast(NamedTuple):
    """Tokens that the suffix cache would draft for the first pass, and how many should be accepted."""

    num_drafted: int = 0
    num_accepted: float = 0.0


NOTHING_CACHED = CacheForecast()
Split: TypeAlias = tuple[int, int]
"""Depth and number of draft tokens."""
StepForm: TypeAlias = Literal["compared", "judged"]
"""Whether the target writes every step, or only those whose draft is not accepted."""
_LEAST_RATE = 0.1
"""Below it draft tokens bring nothing, and passes without them are no longer counted."""


class AssumedRates(NamedTuple):
    """Rates and step length (in tokens) until answers show others."""

    step_rate: float = 0.6
    token_rate: float = 0.8
    step_tokens: float = 40.0


def mode_of(depth: int, num_draft_tokens: int) -> SpeculationMode:
    """Return the speculation mode of a split of the budget."""
    if depth > 0:
        return "steps"
    return "tokens" if num_draft_tokens > 0 else "none"


class AnswerHistory:
    """Rates, corrections and trials of answers of one kind."""

    def __init__(self, assumed: AssumedRates, verdict_seconds: float, constants: PlannerConstants) -> None:
        def rate(value: float) -> FadingRate:
            return FadingRate.assumed(value, constants.rate_weight, constants.rate_memory)

        self.step_rate = rate(assumed.step_rate)
        self.token_rate = rate(assumed.token_rate)
        self.step_tokens = rate(assumed.step_tokens)
        self.verdict_seconds = rate(verdict_seconds)
        self.num_since: dict[SpeculationMode, int] = {"none": 0, "tokens": 0, "steps": 0}
        """Answers since the last of a mode."""
        self.num_written: dict[SpeculationMode, int] = {"none": 0, "tokens": 0, "steps": 0}
        self._constants = constants
        self._modes: dict[SpeculationMode, PredictionCorrection] = {}
        self._depths: dict[int, PredictionCorrection] = {}
        self._splits: dict[Split, PredictionCorrection] = {}
        self._last: dict[Split, int] = {}

    def correction(self, depth: int, num_draft_tokens: int) -> float:
        """Return the factor of a predicted speed: of this split, with its depth as the prior, and all of its
        mode as that of the depth."""
        log_ratio = 0.0
        for own in (
            self._modes.get(mode_of(depth, num_draft_tokens)),
            self._depths.get(depth),
            self._splits.get((depth, num_draft_tokens)),
        ):
            if own is not None:
                log_ratio = own.log_ratio(own.at, log_ratio)
        return exp(log_ratio)

    def num_answers(self, depth: int) -> float:
        """Return the faded number of answers of a depth."""
        return self._depths[depth].weight if depth in self._depths else 0.0

    def num_since_split(self, depth: int, num_draft_tokens: int) -> float:
        """Return the number of answers since the last one of a split; infinite where there is none."""
        last = self._last.get((depth, num_draft_tokens))
        return inf if last is None else sum(self.num_written.values()) - last

    def learn_rates(self, answer: Recorder, plan: Plan) -> None:
        """Take the rates of a finished answer."""
        usage = answer.target_usage
        accepted = usage.num_accepted_draft_tokens
        # A draft that comes too late ends a run of steps as a rejected one does. Those that waited because of
        # the depth are left out: the formula has that wait.
        self.step_rate.add(answer.num_filled_positions, answer.num_drafted_positions)
        if plan.num_draft_tokens > 0:
            # Else they are not the draft model's.
            self.token_rate.add(accepted, accepted + usage.num_rejections)
        self.step_tokens.add(_num_tokens(answer), len(answer.steps))
        self.verdict_seconds.add(answer.verifier_seconds, len(answer.verdicts))

    def learn_speed(self, answer: Recorder, plan: Plan, predicted: float) -> None:
        """Take the speed of a finished answer.

        Args:
            predicted: tokens a second without correction, by rates that this answer is part of: what assumed
                rates had wrong must not stay in the correction when the rates are right.
        """
        # After the last step only cancelled work is recorded.
        seconds = next(event.at for event in reversed(answer.events) if event.kind == "final")
        # The reader's own work between steps says nothing about a plan.
        seconds -= answer.reader_seconds
        speed = max(_num_tokens(answer), 1) / max(seconds, 1e-9)
        mode, constants = mode_of(plan.depth, plan.num_draft_tokens), self._constants
        corrections = [self._modes.setdefault(mode, self._new_correction(constants.correction_weight))]
        if plan.depth > 0:
            of_depth = self._new_correction(constants.depth_weight)
            corrections.append(self._depths.setdefault(plan.depth, of_depth))
        split = plan.depth, plan.num_draft_tokens
        corrections.append(self._splits.setdefault(split, self._new_correction(constants.split_weight)))
        for correction in corrections:
            correction.add(speed, predicted, 1.0, now=correction.at + 1.0)
        self.num_since = {one: 0 if one == mode else num + 1 for one, num in self.num_since.items()}
        self.num_written[mode] += 1
        self._last[split] = sum(self.num_written.values())

    def _new_correction(self, prior_weight: float) -> PredictionCorrection:
        # Its time is the number of its own observations.
        return PredictionCorrection(prior_weight, self._constants.correction_half_life)


def _num_tokens(answer: Recorder) -> int:
    return sum(len(step.tokens) for step in answer.steps)


def predict_speed(
    depth: int,
    num_draft_tokens: int,
    history: AnswerHistory,
    costs: Costs,
    pass_rounds: int,
    alone: float | None = None,
    form: StepForm = "compared",
) -> float:
    """Return the tokens a second of a split, by costs and rates alone.

    ``alone`` is `step_seconds` of a single branch; None: worked out here.
    """
    if alone is None:
        alone = step_seconds(1, num_draft_tokens, history, costs, pass_rounds)
    step_tokens = history.step_tokens.value
    if depth == 0:
        return step_tokens / alone
    drafting = step_tokens * costs.draft_token
    if form == "judged":
        speedup = judged_ahead_speedup if depth > 1 else judged_speedup
        verdict = history.verdict_seconds.value
        return step_tokens / alone * speedup(history.step_rate.value, drafting / alone, verdict / alone)
    branches = busy_branches(depth + 1, min(1.0, drafting / alone))
    seconds = step_seconds(branches, num_draft_tokens, history, costs, pass_rounds)
    ratios = min(1.0, drafting / seconds), history.verdict_seconds.value / seconds
    return step_tokens * windowed_speedup(history.step_rate.value, depth, *ratios) / seconds


def predict_cached_speed(share: float, cached: CacheForecast, costs: Costs) -> float:
    """Return the tokens a second if every pass is like the first, with a share of what the cache drafts."""
    return (1.0 + share * cached.num_accepted) / costs.target.seconds(1.0 + share * cached.num_drafted)


def step_seconds(
    branches: int, num_draft_tokens: int, history: AnswerHistory, costs: Costs, pass_rounds: int
) -> float:
    """Return the seconds of one target step while every pass holds ``branches`` steps.

    Passes after a rejected draft token have no draft tokens, until one writes what the draft model is going
    on from.
    """
    rate = history.token_rate.value
    # A pass verifies what the draft generated for all branches during the last one. Half of the tokens that
    # may wait are verified while the other half is generated.
    drafted = min(float(num_draft_tokens), max(1.0, num_draft_tokens / 2))
    seconds = costs.target.seconds(branches * (1 + drafted))
    for _ in range(pass_rounds):
        generated = seconds / (branches * costs.draft_token)
        if generated >= drafted:
            break
        drafted = generated
        seconds = costs.target.seconds(branches * (1 + drafted))
    tokens = tokens_per_pass(rate, drafted)
    # Each of them writes one token, and the draft has predicted it with the same chance as any other.
    rejected = (1.0 - float(rate**drafted)) / max(rate, _LEAST_RATE)
    seconds += rejected * costs.target.seconds(branches)
    return history.step_tokens.value * seconds / (tokens + rejected)
