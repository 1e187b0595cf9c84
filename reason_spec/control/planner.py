"""How far one answer speculates on both layers: steps ahead, and draft tokens in each branch.

The branches of the step level and the drafts of the token level share the tokens of a pass. The planner
predicts the speed of every split of them and takes the fastest; depth 0 is the token level alone. Without
draft tokens beside it the draft model is idle: what drafts without a model is left, and on a CPU the target
has all cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from reason_spec.control.answer_model import (
    NOTHING_CACHED,
    AnswerHistory,
    AssumedRates,
    CacheForecast,
    StepForm,
    predict_cached_speed,
    predict_speed,
    step_seconds,
)
from reason_spec.control.constants import PLANNER_CONSTANTS, PlannerConstants
from reason_spec.control.costs import Costs
from reason_spec.engines.stats import PassTime
from reason_spec.events import Recorder
from reason_spec.types import Plan

LONGEST_WAIT = 4.0
"""Longest time without a trial of a layer, in shares of the shortest."""
CLOSE_SIZES = 0.9
"""How fast another number of draft tokens must be, in shares of the fastest, to be tried beside it."""
FIRST_TRIALS = 3
"""Answers that try a layer early, and what is gained without the draft model: answers alone show that."""
MOST_OF_FIRST_TRIAL, MOST_OF_NEXT_TRIALS = 3.0, 1.5
"""How many times as fast the best plan may be, by prediction, so that they are written: the first one without
the draft model, and the others."""


def plan(candidates: Sequence[Plan], *, steps_margin: float, allow_steps: bool = True) -> Plan:
    """Return the fastest plan; draft steps must be ``steps_margin`` times as fast as draft tokens alone.

    What a rejected draft step cost is lost, and other answers may be waiting.
    """
    flat = max((one for one in candidates if one.depth == 0), key=_speed)
    ahead = max((one for one in candidates if one.depth > 0), key=_speed, default=None)
    if ahead is None or not allow_steps:
        return flat
    return ahead if _speed(ahead) > steps_margin * _speed(flat) else flat


def explore(candidates: Sequence[Plan], history: AnswerHistory, *, every: int) -> Plan | None:
    """Return a plan with a layer that was left out for a while, None if there is none.

    Its rates or costs may have changed. The while is ``every`` answers where the layer is expected to be as
    fast as the best, and up to `LONGEST_WAIT` times that, by the square of the ratio, where it is slower: a
    trial costs more then, and is less likely to change anything. Answers with steps ahead differ much, by
    how many of the steps stand: the first `FIRST_TRIALS` of them come at once unless steps are much slower.
    Of the depths, the one with the fewest answers is tried: the formulas may name the wrong one. Without the
    draft model an answer may take many times as long, so there the wait has no bound.
    """
    best = max(map(_speed, candidates))

    def is_due(layer: Sequence[Plan], num_since: int, *, is_new: bool = False) -> bool:
        fastest = max(map(_speed, layer), default=0.0)
        ratio = best / fastest if fastest > 0 else 1.0
        if is_new and ratio < MOST_OF_NEXT_TRIALS:
            return bool(layer)
        return bool(layer) and num_since >= every * min(LONGEST_WAIT, ratio**2)

    flat = [one for one in candidates if one.depth == 0 and one.num_draft_tokens > 0]
    ahead = [one for one in candidates if one.depth > 0]
    if is_due(flat, history.num_since["tokens"]):
        return max(flat, key=_speed)
    is_new = 0 < history.num_written["steps"] < FIRST_TRIALS
    if is_due(ahead, history.num_since["steps"], is_new=is_new):
        return max(ahead, key=lambda one: (-history.num_answers(one.depth), _speed(one)))
    [bare] = (one for one in candidates if (one.depth, one.num_draft_tokens) == (0, 0))
    return bare if _is_draft_model_left_out(best / _speed(bare), history, every) else None


def explore_sizes(chosen: Plan, candidates: Sequence[Plan], history: AnswerHistory, *, every: int) -> Plan:
    """Return the plan, or one with another number of draft tokens that was not tried for a while.

    Where numbers are expected to be nearly as fast, only their measured speeds show which is the fastest,
    and a trial costs next to nothing.
    """
    close = [
        one
        for one in candidates
        if one.depth == chosen.depth
        and one.num_draft_tokens > 0
        and _speed(one) >= CLOSE_SIZES * _speed(chosen)
        and history.num_since_split(one.depth, one.num_draft_tokens) >= LONGEST_WAIT * every
    ]
    return max(close, key=_speed, default=chosen) if chosen.num_draft_tokens > 0 else chosen


def _is_draft_model_left_out(ratio: float, history: AnswerHistory, every: int) -> bool:
    """Return whether to try an answer without the draft model; the best plan is ``ratio`` times as fast."""
    num_written, num_since = history.num_written["none"], history.num_since["none"]
    most = MOST_OF_FIRST_TRIAL if num_written == 0 else MOST_OF_NEXT_TRIALS
    if num_written + num_since > 0 and num_written < FIRST_TRIALS and ratio < most:
        return True
    return num_since >= every * ratio**2


def _speed(candidate: Plan) -> float:
    return candidate.tokens_per_second or 0.0


class Planner:
    """Chooses a `Plan` for each answer and learns from the finished ones.

    ``max_depth`` and ``max_draft_tokens`` bound the plans; ``form`` is what the strategy does with steps.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        max_depth: int,
        max_draft_tokens: int,
        assumed: AssumedRates | None = None,
        constants: PlannerConstants = PLANNER_CONSTANTS,
        form: StepForm = "compared",
    ) -> None:
        self.costs = self._costs_at_start = costs
        # Where steps are judged, the predicted speed knows no depth beyond the second: all or nothing.
        self._depths = range(max_depth + 1) if form == "compared" else sorted({0, max_depth})
        self._max_draft_tokens = max_draft_tokens
        self._constants = constants
        self.form = form
        assumed = assumed or AssumedRates()
        self._known = AnswerHistory(assumed, costs.verdict, constants)
        self._unknown = AnswerHistory(assumed, costs.verdict, constants)

    def plan(self, cached: CacheForecast = NOTHING_CACHED, *, may_explore: bool = True) -> Plan:
        """Return the plan for an answer.

        Args:
            cached: what the suffix cache would draft for it.
            may_explore: whether a layer that was left out may be tried. Where the answer will not be learned
                from, the trial would stay due, and every answer would be one.
        """
        candidates, history = self._candidates(cached), self._history(cached)
        trial = explore(candidates, history, every=self._constants.explore_every) if may_explore else None
        if trial is not None:
            return trial
        # What the cache knows of one branch it proposes for those after it, too: a trial must have shown
        # gains.
        allow_steps = history.num_written["steps"] > 0 or history is self._unknown
        chosen = plan(candidates, steps_margin=self._constants.steps_margin, allow_steps=allow_steps)
        if not may_explore:
            return chosen
        return explore_sizes(chosen, candidates, history, every=self._constants.explore_every)

    def expect(
        self,
        depth: int,
        num_draft_tokens: int,
        cached: CacheForecast = NOTHING_CACHED,
        alone: float | None = None,
    ) -> float:
        """Return the expected tokens a second of a split; ``alone`` as in `predict_speed`."""
        correction = self._history(cached).correction(depth, num_draft_tokens)
        return correction * self._predict(depth, num_draft_tokens, cached, alone)

    def learn(
        self, answer: Recorder, target: Sequence[PassTime] = (), draft: Sequence[PassTime] = ()
    ) -> None:
        """Take a finished answer, and the times of recent passes of both models."""
        chosen = answer.plan
        if chosen is None or chosen.depth > 0 or chosen.num_draft_tokens > 0:
            # Without the draft model the target may have had more cores.
            self.costs = self._costs_at_start.remeasured(target, draft)
        if chosen is None or not answer.steps:
            return
        cached = CacheForecast(chosen.num_known, chosen.known_tokens)
        history = self._history(cached)
        history.learn_rates(answer, chosen)
        predicted = self._predict(chosen.depth, chosen.num_draft_tokens, cached)
        history.learn_speed(answer, chosen, predicted)

    def _history(self, cached: CacheForecast) -> AnswerHistory:
        is_known = cached.num_accepted >= self._constants.least_known_tokens
        return self._known if is_known else self._unknown

    def _predict(
        self, depth: int, num_draft_tokens: int, cached: CacheForecast, alone: float | None = None
    ) -> float:
        history, rounds = self._history(cached), self._constants.pass_rounds
        speed = predict_speed(depth, num_draft_tokens, history, self.costs, rounds, alone, self.form)
        if depth == 0 and history is self._known:
            share = num_draft_tokens / max(1, self._max_draft_tokens)
            speed = max(speed, predict_cached_speed(share, cached, self.costs))
        return speed

    def _candidates(self, cached: CacheForecast) -> list[Plan]:
        sizes = {0, *(1 << power for power in range(7) if 1 << power < self._max_draft_tokens)}
        history, rounds = self._history(cached), self._constants.pass_rounds
        found = []
        for size in sorted({*sizes, self._max_draft_tokens}):
            alone = step_seconds(1, size, history, self.costs, rounds)
            for depth in self._depths:
                speed = self.expect(depth, size, cached, alone)
                found.append(Plan(depth, size, speed, cached.num_accepted, cached.num_drafted))
        return found
