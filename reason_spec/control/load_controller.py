"""How much all live answers together speculate, down to not at all.

Drafts of one answer take passes, and on a CPU cores, from the others. Every round the controller compares
the goodput that is expected of three modes (`speculation.goodput`): draft steps with draft tokens, draft
tokens alone, and the target alone on all cores. Expectations come from the times of passes at this load,
from the acceptance rates of each answer with those of all as the prior, and from what each mode has brought
at such a load. SmartSpec (arXiv 2406.14066) does this for the token level.

The controller is passive: time, costs and outcomes are given to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from reason_spec.control.budget import RequestedBudget, SpeculationBudget
from reason_spec.control.constants import LOAD_CONSTANTS, LoadConstants
from reason_spec.control.costs import BatchCosts
from reason_spec.control.outcomes import ModeCorrections, OutcomeWindow, TargetTrial, choose_mode
from reason_spec.control.planner import Planner
from reason_spec.control.rates import FadingRate
from reason_spec.settings import LoadControlSettings, SpeculationMode
from reason_spec.speculation.goodput import Allotment, Share, allot

Modes: TypeAlias = tuple[SpeculationMode, ...]
MODES: Modes = ("none", "tokens", "steps")
"""From the least speculation to the most."""


class LoadController:
    """Decides for all live answers of an accelerator; called from one event loop.

    Args:
        costs: returns T(n, r) of both models; None: not known, and nothing is held back.
        on_cores: called in every round, and with every plan, with whether the target is to have all cores,
            those of the idle draft included.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: LoadControlSettings,
        costs: Callable[[], BatchCosts | None],
        on_cores: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        constants: LoadConstants = LOAD_CONSTANTS,
    ) -> None:
        self.constants = constants
        self._settings = settings
        self._costs = costs
        self._fitted: BatchCosts | None = None
        self._fitted_at = -math.inf
        self._on_cores = on_cores
        self._clock = clock
        self._live: list[SpeculationBudget] = []
        memory = constants.rate_memory
        self.step_rate = FadingRate.assumed(constants.step_rate, constants.step_rate_weight, memory)
        self.token_rate = FadingRate.assumed(constants.token_rate, constants.token_rate_weight, memory)
        self._joined = FadingRate.assumed(0.0, constants.joined_weight, constants.joined_memory)
        """The share of single answers that another joined before they ended."""
        self._corrections = ModeCorrections(constants)
        self._trial = TargetTrial()
        self.mode: SpeculationMode = settings.at_most
        self.all_cores = False
        """Whether the target has the draft's cores too: only where the draft is idle, in mode ``none`` or by
        the plans of all answers, and if it is faster with them."""
        self.num_mode_changes = 0
        self.seconds_in_mode: dict[SpeculationMode, float] = dict.fromkeys(MODES, 0.0)
        """Seconds with live answers in each mode."""
        now = clock()
        self._counted_to = now
        self._changed_at = self._decided_at = -math.inf
        self._is_stale = False
        """Whether an answer began or ended since the last decision."""
        self._was_compared = False
        """Whether the mode was one of several in the last round."""
        self.expected: dict[SpeculationMode, float] = {}
        """Tokens a second over all live answers that were expected of each mode in the last round."""
        self.predicted = 0.0
        """Tokens a second that were predicted of the present mode, without correction."""
        self._window = OutcomeWindow(now, now)

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def knows_costs(self) -> bool:
        """Whether the pass times are known; without them it decides nothing."""
        costs = self._costs_at(self._clock())
        return costs is not None and costs.known

    @contextmanager
    def admit(
        self, requested: RequestedBudget, planner: Planner | None = None
    ) -> Iterator[SpeculationBudget]:
        """Count an answer as live for the block."""
        budget = SpeculationBudget(requested, planner, self, on_plan=self.decide)
        if not self._live:
            # Idle time says nothing of any mode.
            self._counted_to = now = self._clock()
            self._window = OutcomeWindow(now, now)
        self._live.append(budget)
        if len(self._live) > 1:
            for one in self._live:
                one.follows_plan = False
            budget.share = self._like_others(requested)
        self._is_stale = True
        if len(self._live) == 2:
            self._joined.add(1.0)
        if len(self._live) <= 2:
            # The first answer has everything. The second must not begin like that, nor must the first where
            # draft steps are held back.
            self.decide()
        else:
            self.refresh()
        try:
            yield budget
        finally:
            self._live.remove(budget)
            # The others decide at their next tokens: often another answer has begun by then.
            self._is_stale = True
            if not self._live:
                self._joined.add(0.0)
                self._measure(self._clock(), closes=True)

    def _like_others(self, requested: RequestedBudget) -> Share:
        """Return what a new answer may use until the next round: no more than any other."""
        others = [budget.share for budget in self._live[:-1]]
        depth = max(share.depth for share in others)
        num_draft_tokens = max(share.num_draft_tokens for share in others)
        return Share(min(requested.depth, depth), min(requested.num_draft_tokens, num_draft_tokens))

    def record_tokens(self, num_tokens: int) -> None:
        """Take final tokens of any answer."""
        self._window.num_tokens += num_tokens

    def refresh(self) -> None:
        """Decide again if the last round is some time ago, or if an answer has begun or ended since."""
        constants = self.constants
        interval = constants.round_seconds
        if self._is_stale:
            interval = constants.least_seconds + constants.least_seconds_per_answer * len(self._live)
        if self._clock() - self._decided_at >= interval:
            self.decide()

    def decide(self) -> None:
        """Choose the mode, and each live answer's share of it."""
        now = self._clock()
        self._decided_at, self._is_stale = now, False
        self._measure(now)
        if not self._live:
            return
        costs = self._costs_at(now)
        if costs is None or not costs.known:
            self._allow_all(self._settings.at_most, now)
            return
        allotments = {mode: self._allot(mode, costs) for mode in self._open_modes()}
        self.expected = {
            mode: allotted.goodput * math.exp(self._corrections.log_ratio(mode, len(self._live), now))
            for mode, allotted in allotments.items()
        }
        self._change_to(self._next_mode(now), now)
        self._was_compared = len(allotments) > 1
        self._give_cores(costs)
        self.predicted = allotments[self.mode].goodput
        if len(self._live) == 1 and self.mode != "none":
            self._allow_all(self.mode, now)
            return
        for budget, share in zip(self._live, allotments[self.mode].shares, strict=True):
            budget.share = share

    def _costs_at(self, now: float) -> BatchCosts | None:
        # The means over many passes do not change between rounds that follow at once.
        is_old = now - self._fitted_at >= self.constants.round_seconds
        if self._fitted is None or not self._fitted.known or is_old:
            self._fitted, self._fitted_at = self._costs(), now
        return self._fitted

    def _open_modes(self) -> Modes:
        """Return the modes that the settings allow and an answer has a use for."""
        most = MODES.index(self._settings.at_most)
        if not any(budget.requested.depth for budget in self._live):
            most = min(most, MODES.index("tokens"))
        if not any(budget.requested.depth or budget.requested.num_draft_tokens for budget in self._live):
            most = 0
        if len(self._live) > 1:
            return MODES[: most + 1]
        # How much of the mode a single answer uses is up to its planner and the settings.
        [budget] = self._live
        is_often_joined = self._joined.value > self.constants.most_joined
        if MODES[most] == "steps" and budget.requested.num_draft_tokens and is_often_joined:
            budget.follows_plan = False
            most = MODES.index("tokens")
        return MODES[most : most + 1]

    def _allot(self, mode: SpeculationMode, costs: BatchCosts) -> Allotment:
        demands = [budget.demand(mode, self) for budget in self._live]
        if mode == "none":
            alone, shared = (allot(demands, time) for time in (costs.alone, costs.shared))
            return max(alone, shared, key=lambda allotted: allotted.goodput)
        num_drafting = sum(demand.max_tokens > 0 or demand.max_depth > 0 for demand in demands)
        draft_seconds = 0.0
        if num_drafting and costs.draft.known:
            draft_seconds = costs.draft.of_one(num_drafting, num_drafting) / num_drafting
        return allot(demands, costs.shared, draft_seconds=draft_seconds)

    def _next_mode(self, now: float) -> SpeculationMode:
        num_live, constants = len(self._live), self.constants
        if len(self.expected) > 1:
            is_measurable = self._share_generating() >= constants.least_generating
            is_unknown = not self._corrections.is_known("none", num_live, now)
            may_begin = self.mode != "none" and is_unknown and is_measurable
            if self._trial.explore(
                self.expected, now, may_begin=may_begin, num_live=num_live, constants=constants
            ):
                return "none"
        return choose_mode(
            self.expected,
            self.mode if self._was_compared else None,
            margin=constants.margin,
            is_held=now - self._changed_at < constants.hold_seconds,
        )

    def _change_to(self, mode: SpeculationMode, now: float) -> None:
        if mode == self.mode:
            return
        self._measure(now, closes=True)
        self.mode = mode
        if len(self.expected) > 1:
            # The only open mode is no decision that could be regretted.
            self.num_mode_changes += 1
            self._changed_at = now
        settled = now + self.constants.settling_seconds
        self._window = OutcomeWindow(settled, settled)

    def _give_cores(self, costs: BatchCosts) -> None:
        load = len(self._live)
        alone, shared = (time.of_one(load, load) for time in (costs.alone, costs.shared))
        share = 1.0 if self.all_cores else self.constants.all_cores_share
        is_draft_idle = self.mode == "none" or all(budget.is_draft_idle for budget in self._live)
        self.all_cores = is_draft_idle and alone < shared * share
        self._on_cores(self.all_cores)

    def _allow_all(self, mode: SpeculationMode, now: float) -> None:
        for budget in self._live:
            budget.allow(mode)
        self._change_to(mode, now)

    def _measure(self, now: float, *, closes: bool = False) -> None:
        """Count predicted and final tokens up to now; a full window corrects the mode's predictions."""
        if self._live:
            self.seconds_in_mode[self.mode] += max(0.0, now - self._counted_to)
        self._counted_to = now
        window, constants, num_live = self._window, self.constants, len(self._live)
        if now < window.begins_at:
            window.num_tokens = 0
            return
        seconds = window.observe(
            now, self.predicted, num_live, self._share_generating(), constants.least_generating
        )
        self._trial.add(seconds, self.mode, num_live, constants)
        is_full = window.is_full(constants)
        if is_full:
            self._corrections.add(self.mode, window, now)
        if is_full or closes:
            self._window = OutcomeWindow(now, now)

    def _share_generating(self) -> float:
        """Return the share of the live answers that are past their prompts."""
        return sum(budget.has_first_token for budget in self._live) / max(1, len(self._live))
