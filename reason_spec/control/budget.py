"""What one answer may speculate now: bounded by its request, its plan and the load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from reason_spec.control.answer_model import CacheForecast
from reason_spec.control.constants import LoadConstants
from reason_spec.control.planner import Planner
from reason_spec.control.rates import FadingRate
from reason_spec.engines.stats import PassTime
from reason_spec.events import Recorder
from reason_spec.settings import SpeculationMode
from reason_spec.speculation.goodput import Demand, Share
from reason_spec.types import Plan


class Load(Protocol):
    """All live answers; a `LoadController`."""

    constants: LoadConstants
    step_rate: FadingRate
    token_rate: FadingRate

    @property
    def num_live(self) -> int: ...

    def refresh(self) -> None: ...

    def record_tokens(self, num_tokens: int) -> None: ...


class RequestedBudget(NamedTuple):
    """What an answer would use if it were the only one: steps ahead, and draft tokens of the draft model."""

    depth: int = 0
    num_draft_tokens: int = 0


UNLIMITED: Final = RequestedBudget(1 << 30, 1 << 30)


class SpeculationBudget:
    """The speculation of one answer. It changes while the answer is written.

    Args:
        requested: the upper bounds.
        planner: plans the answer while no other is live; None: it uses what it requests.
        load: bounds it by the load of all live answers; None: it is not bounded.
        on_plan: called when the answer is planned.
    """

    def __init__(
        self,
        requested: RequestedBudget = UNLIMITED,
        planner: Planner | None = None,
        load: Load | None = None,
        on_plan: Callable[[], None] = lambda: None,
    ) -> None:
        self.requested = requested
        self.share = Share(requested.depth, requested.num_draft_tokens)
        self.follows_plan = True
        """Whether only the planner has bounded it so far: no other answer was live, and no steps were held
        back."""
        self.is_draft_idle = False
        """Whether the plan leaves nothing to the draft model."""
        self.has_first_token = False
        self.num_accepted_tokens = 0
        """Tokens of the draft model that the target accepted, or had written itself when they came."""
        self.num_rejected_tokens = 0
        """Tokens of the draft model that the target replaced, or had replaced when they came."""
        self._planner = planner
        self._load = load
        self._on_plan = on_plan
        self._num_early = 0
        self._steps = FadingRate()
        self._tokens = FadingRate()

    @property
    def is_planned(self) -> bool:
        return self._planner is not None

    @property
    def depth(self) -> int:
        """How many steps the draft may be ahead now."""
        self._refresh()
        return self.share.depth

    @property
    def num_draft_tokens(self) -> int:
        """How many tokens the draft model may be ahead now; 0: it generates none."""
        self._refresh()
        factor = 1 if self._load is None else self._load.constants.draft_ahead_factor
        return min(self.requested.num_draft_tokens, factor * self.share.num_draft_tokens)

    @property
    def beside_others(self) -> bool:
        """Whether other answers are live, so that its drafts take their time."""
        return self._load is not None and self._load.num_live > 1

    def plan(self, cached: CacheForecast) -> Plan | None:
        """Return the plan of the answer, None without a planner."""
        if self._planner is None:
            return None
        plan = self._planner.plan(cached, may_explore=self.follows_plan)
        self.is_draft_idle = plan.depth == 0 and plan.num_draft_tokens == 0
        self._on_plan()
        return plan

    def record_answer(self, answer: Recorder, target: Sequence[PassTime], draft: Sequence[PassTime]) -> None:
        """Let the planner learn from the finished answer, if nothing else bounded it; see `Planner.learn`."""
        if self._planner is not None and self.follows_plan:
            self._planner.learn(answer, target, draft)

    def record_position(self, *, filled: bool) -> None:
        """Take whether a draft became the step of a position that had one."""
        self._steps.add(filled)
        if self._load is not None:
            self._load.step_rate.add(filled)

    def record_draft_tokens(self, num_accepted: int, *, rejected: bool) -> None:
        """Take accepted draft tokens of a pass, and whether the next one was rejected."""
        self.num_accepted_tokens += num_accepted
        self.num_rejected_tokens += rejected
        if num_accepted or rejected:
            self._tokens.add(num_accepted, num_accepted + rejected)
            if self._load is not None:
                self._load.token_rate.add(num_accepted, num_accepted + rejected)

    def record_late_draft_tokens(self, num_agreed: int, *, rejected: bool) -> None:
        """Take draft tokens whose places the target had reached: how many agree, and whether one differs."""
        self.num_accepted_tokens += num_agreed
        self.num_rejected_tokens += rejected

    def record_early_tokens(self, num_tokens: int) -> None:
        """Take final tokens of a step that is not complete; `record_step` does not count them again."""
        self._num_early += num_tokens
        self._record_tokens(num_tokens)

    def record_step(self, num_tokens: int) -> None:
        """Take a step that became final."""
        early = min(num_tokens, self._num_early)
        self._num_early -= early
        self._record_tokens(num_tokens - early)

    def _record_tokens(self, num_tokens: int) -> None:
        # Until the first tokens the prompt is read, which says nothing of the mode.
        if self._load is not None and self.has_first_token:
            self._load.record_tokens(num_tokens)
        self.has_first_token = True
        self._refresh()

    def _refresh(self) -> None:
        if self._load is not None:
            self._load.refresh()

    def allow(self, mode: SpeculationMode) -> None:
        """Let the answer use all that it requests and the mode has."""
        self.share = Share(
            self.requested.depth if mode == "steps" else 0,
            0 if mode == "none" else self.requested.num_draft_tokens,
        )

    def demand(self, mode: SpeculationMode, load: Load) -> Demand:
        """Return what it could use in a mode, with the rates of all answers as the prior of its own."""
        constants, step_rate, token_rate = load.constants, load.step_rate.value, load.token_rate.value
        return Demand(
            token_rate=min(self._tokens.beside(token_rate, constants.own_tokens_weight), 0.999),
            max_tokens=0 if mode == "none" else self.requested.num_draft_tokens,
            step_rate=min(self._steps.beside(step_rate, constants.own_steps_weight), 0.999),
            max_depth=self.requested.depth if mode == "steps" else 0,
        )
