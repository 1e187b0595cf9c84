"""One budget for both layers: how many steps ahead, and how many token drafts in each branch.

What the target can check in a pass is shared by the branches of the step level and the drafts of the
token level. The planner predicts the speed of every split from what passes cost here and now (``costs``)
and from how often drafts have been right, and takes the best; depth 0 leaves the token level alone, and no
drafts at all is plain decoding. Predictions are corrected by the speeds that answers really had, with
and without the step level: what else both compete for is in no formula.

Answers that the suffix cache knows something of are planned apart from the others: what is drafted for them
is right more often, and costs no draft model. They are written without steps ahead until a trial has shown
that these pay: what the cache knows of one branch it would say of those behind it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal, NamedTuple, TypeAlias, get_args

from reason_spec.control.costs import Costs
from reason_spec.control.formulas import busy_branches, tokens_per_pass, windowed_speedup
from reason_spec.engines.stats import PassTime
from reason_spec.events import Recorder
from reason_spec.types import Plan

_PRIOR_WEIGHT = 8.0
"""Observations that the assumed rates below count for, until there are others."""
_MEMORY = 0.98
"""What an observation still counts after each later answer."""
_CORRECTION_WEIGHT = 0.5
"""Answers that a prediction counts for against what answers really took."""
_CORRECTION_MEMORY = 0.9
"""What such an answer still counts after each later one: the rates that it was predicted by have moved on."""
_DEPTH_WEIGHT = 2.0
"""Answers of a depth that those of all depths count for: the luckiest of several is not yet the fastest."""
_ROUNDS = 4
"""Rounds in which the size of a pass and what is drafted during it settle."""
_TRY_EVERY = 16
"""Answers after which a layer is tried again where it was left out: its rate or its cost may have changed."""
_STEPS_MARGIN = 1.1
"""Steps ahead have to be expected so many times as fast: what loses was written, and others may wait."""
_LEAST_KNOWN = 2.0
"""Where the suffix cache expects so many tokens of the first pass to be right it knows an answer in part."""


@dataclass(slots=True)
class _Mean:
    """A mean that begins at an assumed value and forgets slowly."""

    total: float
    count: float
    memory: float = _MEMORY

    @classmethod
    def assumed(cls, value: float, weight: float = _PRIOR_WEIGHT, memory: float = _MEMORY) -> _Mean:
        return cls(weight * value, weight, memory)

    def add(self, total: float, count: float) -> None:
        self.total = self.total * self.memory + total
        self.count = self.count * self.memory + count

    @property
    def value(self) -> float:
        return self.total / self.count


_Layers: TypeAlias = Literal["none", "tokens", "steps"]


def _layers(depth: int, num_draft_tokens: int) -> _Layers:
    if depth > 0:
        return "steps"
    return "tokens" if num_draft_tokens > 0 else "none"


class Known(NamedTuple):
    """What the suffix cache would draft for the first pass: how much, and how much of it should be right."""

    num_drafted: int = 0
    num_right: float = 0.0

    @property
    def something(self) -> bool:
        return self.num_right >= _LEAST_KNOWN


NOTHING_KNOWN = Known()


class _History:
    """What answers of one kind showed."""

    def __init__(self, step_rate: float, token_rate: float, step_tokens: float, verdict: float) -> None:
        self.step_rate = _Mean.assumed(step_rate)
        self.token_rate = _Mean.assumed(token_rate)
        self.step_tokens = _Mean.assumed(step_tokens)
        self.verifier_seconds = _Mean.assumed(verdict)
        self.log_corrections: dict[_Layers, _Mean] = {
            layers: _Mean.assumed(0.0, _CORRECTION_WEIGHT, _CORRECTION_MEMORY) for layers in get_args(_Layers)
        }
        self.depth_corrections: dict[int, _Mean] = {}
        self.num_without: dict[_Layers, int] = {"tokens": 0, "steps": 0}
        self.tried_steps = False

    def log_correction(self, depth: int, num_draft_tokens: int) -> float:
        """Return what a prediction is corrected by, in logarithms.

        A depth that few answers had goes by all with steps ahead.
        """
        shared = self.log_corrections[_layers(depth, num_draft_tokens)].value
        own = self.depth_corrections.get(depth)
        if own is None:
            return shared
        return (own.total + _DEPTH_WEIGHT * shared) / (own.count + _DEPTH_WEIGHT)

    def num_answers(self, depth: int) -> float:
        """Return how many answers of late had this depth."""
        own = self.depth_corrections.get(depth)
        return 0.0 if own is None else own.count

    def learn(self, answer: Recorder, plan: Plan, predicted: float) -> None:
        usage = answer.target_usage
        num_tokens = sum(len(step.tokens) for step in answer.steps)
        confirmed = usage.num_accepted_draft_tokens
        # Behind the last step only what was cancelled is noted.
        ended = next(event.at for event in reversed(answer.events) if event.kind == "final")
        speed = max(num_tokens, 1) / max(ended, 1e-9)
        ratio = log(speed / predicted)
        layers = _layers(plan.depth, plan.num_draft_tokens)
        self.log_corrections[layers].add(ratio, 1.0)
        if plan.depth > 0:
            none = _Mean(0.0, 0.0, _CORRECTION_MEMORY)
            self.depth_corrections.setdefault(plan.depth, none).add(ratio, 1.0)
        # A draft that comes too late ends a run of steps as a refused one does. What the depth held back is
        # left out: that wait is in the formula.
        self.step_rate.add(answer.num_accepted_steps, answer.num_proposed_steps - answer.num_held_drafts)
        self.token_rate.add(confirmed, confirmed + usage.num_rejections)
        self.step_tokens.add(num_tokens, len(answer.steps))
        self.verifier_seconds.add(answer.verifier_seconds, len(answer.verdicts))
        self.num_without = {one: 0 if one == layers else num + 1 for one, num in self.num_without.items()}
        self.tried_steps = self.tried_steps or plan.depth > 0


def _speed(plan: Plan) -> float:
    return plan.tokens_per_second or 0.0


class Planner:
    """Chooses a `Plan` for each answer and learns from those that were written.

    ``max_depth`` and ``max_draft_tokens`` bound the plans; ``step_rate`` and ``token_rate`` are
    assumed until answers show others.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        max_depth: int,
        max_draft_tokens: int,
        step_rate: float = 0.6,
        token_rate: float = 0.8,
        step_tokens: float = 40.0,
    ) -> None:
        self.costs = self._costs_at_start = costs
        self._max_depth = max_depth
        self._max_draft_tokens = max_draft_tokens
        assumed = step_rate, token_rate, step_tokens, costs.verdict
        self._unknown, self._known = _History(*assumed), _History(*assumed)

    def plan(self, known: Known = NOTHING_KNOWN) -> Plan:
        """Return the plan that is expected to be fastest for an answer of which so much is known."""
        plans, history = self._plans(known), self._history(known.something)
        if history.num_without["tokens"] >= _TRY_EVERY:
            return max((plan for plan in plans if not plan.depth and plan.num_draft_tokens), key=_speed)
        flat = max((plan for plan in plans if plan.depth == 0), key=_speed)
        if self._max_depth == 0:
            return flat
        if history.num_without["steps"] >= _TRY_EVERY:
            # The formulas may name the wrong depth: the one that is known least is tried.
            return max(
                plans, key=lambda plan: (plan.depth > 0, -history.num_answers(plan.depth), _speed(plan))
            )
        ahead = max((plan for plan in plans if plan.depth > 0), key=_speed)
        untried = known.something and not history.tried_steps
        pays = _speed(ahead) > _STEPS_MARGIN * _speed(flat)
        return ahead if pays and not untried else flat

    def expect(self, depth: int, num_draft_tokens: int, known: Known = NOTHING_KNOWN) -> float:
        """Return the tokens a second that are expected of a split."""
        predicted = self._predict(depth, num_draft_tokens, known)
        return self._corrected(predicted, depth, num_draft_tokens, known)

    def _corrected(self, predicted: float, depth: int, num_draft_tokens: int, known: Known) -> float:
        """Return a prediction as answers turned out against theirs."""
        history = self._history(known.something)
        return exp(history.log_correction(depth, num_draft_tokens)) * predicted

    def _history(self, known: bool) -> _History:
        return self._known if known else self._unknown

    def _predict(self, depth: int, num_draft_tokens: int, known: Known, alone: float | None = None) -> float:
        """Return the tokens a second of a split by costs and rates alone.

        ``alone`` is the seconds of a step that has every pass to itself; None: not worked out yet.
        """
        history = self._history(known.something)
        if alone is None:
            alone = self._step_seconds(history, 1, num_draft_tokens)
        if depth == 0:
            drafted = history.step_tokens.value / alone
            return max(drafted, self._predict_known(num_draft_tokens, known)) if known.something else drafted
        drafting = history.step_tokens.value * self.costs.draft_token
        branches = busy_branches(depth + 1, min(1.0, drafting / alone))
        seconds = self._step_seconds(history, branches, num_draft_tokens)
        ratios = min(1.0, drafting / seconds), history.verifier_seconds.value / seconds
        return history.step_tokens.value * windowed_speedup(history.step_rate.value, depth, *ratios) / seconds

    def _predict_known(self, num_draft_tokens: int, known: Known) -> float:
        """Return the tokens a second if all passes are like the first, by what the suffix cache drafts."""
        share = num_draft_tokens / max(1, self._max_draft_tokens)
        return (1.0 + share * known.num_right) / self.costs.target.seconds(1.0 + share * known.num_drafted)

    def learn(
        self, answer: Recorder, target: Sequence[PassTime] = (), draft: Sequence[PassTime] = ()
    ) -> None:
        """Take what a finished answer showed, and what passes of both models take now."""
        self.costs = self._costs_at_start.remeasured(target, draft)
        plan = answer.plan
        if plan is None or not answer.steps:
            return
        known = Known(plan.num_known, plan.known_tokens)
        predicted = self._predict(plan.depth, plan.num_draft_tokens, known)
        self._history(known.something).learn(answer, plan, predicted)

    def _plans(self, known: Known) -> list[Plan]:
        sizes = [0, *(size for size in (1, 2, 4, 8, 16, 32, 64) if size < self._max_draft_tokens)]
        sizes.append(self._max_draft_tokens)
        history = self._history(known.something)
        alone = {size: self._step_seconds(history, 1, size) for size in sizes}
        return [
            Plan(
                depth,
                size,
                self._corrected(self._predict(depth, size, known, alone[size]), depth, size, known),
                known.num_right,
                known.num_drafted,
            )
            for depth in range(self._max_depth + 1)
            for size in sizes
        ]

    def _step_seconds(self, history: _History, branches: int, num_draft_tokens: int) -> float:
        """Return the seconds the target takes for one step, with ``branches`` of them in every pass.

        Where the target parts from the drafts, the pass after it has none: the draft is writing them.
        """
        rate = history.token_rate.value
        # What the draft writes during one pass, for all branches, is what there is to check in the next. The
        # two share what may wait: a half is checked while the other is written.
        supplied = min(float(num_draft_tokens), max(1.0, num_draft_tokens / 2))
        seconds = self.costs.target.seconds(branches * (1 + supplied))
        for _ in range(_ROUNDS):
            written = seconds / (branches * self.costs.draft_token)
            if written >= supplied:
                break
            supplied = written
            seconds = self.costs.target.seconds(branches * (1 + supplied))
        tokens = tokens_per_pass(rate, supplied)
        parted = 1.0 - float(rate**supplied)
        return history.step_tokens.value * seconds * (1.0 + parted) / (tokens + parted)
