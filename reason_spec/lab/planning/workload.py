"""The rates, costs and sizes that formulas and the simulator start from, and the best division of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite

from scipy.optimize import brentq

from reason_spec.control.costs import PassCost
from reason_spec.control.formulas import asynchronous_speedup, busy_branches, tokens_per_pass
from reason_spec.errors import SettingsError

FLAT = PassCost(((1, 1.0),))
"""Every pass takes the same time."""
MAX_DEPTH = 15
"""Largest depth of a best split: at an acceptance rate of 0.9 more never bring 1 %."""
_MAX_TOKENS = 128
"""Tokens in a branch that are tried."""
_ROUNDS = 4
"""Iterations until the length of a target step and the number of steps under way agree."""
_RATE_TOLERANCE = 1e-3
_BOUNDS = {
    "alpha_step": ("share of drafted steps that are accepted", 0.0, 1.0),
    "c_step": ("time of a drafted step over that of a target step", 0.0, 1.0),
    "alpha_token": ("share of drafted tokens that are accepted", 0.0, 1.0),
    "c_token": ("time of a drafted token over that of a target token", 0.0, inf),
    "verification": ("time of a verdict over that of a target step", 0.0, inf),
    "step_tokens": ("mean number of tokens of a step", 1.0, inf),
    "step_tokens_std": ("standard deviation of a step's tokens", 0.0, inf),
    "answer_steps": ("mean number of steps of an answer", 1.0, inf),
    "requests": ("number of answers at once", 1, inf),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """One pair of models on one kind of problem.

    ``c_step`` and ``verification`` are over the time of a target step written alone and token by token,
    ``c_token`` over that of a target token. ``pass_cost`` is T(n), of which only ratios count.
    ``step_tokens`` and ``answer_steps`` are means; None means that answers do not end. ``requests`` answers
    are written at once on the same engines.

    Raises:
        SettingsError: a value is impossible; the message names it and what is possible.
    """

    alpha_step: float
    c_step: float
    alpha_token: float = 0.0
    c_token: float = 0.0
    verification: float = 0.0
    step_tokens: float = 100.0
    step_tokens_std: float = 0.0
    answer_steps: float | None = None
    pass_cost: PassCost = FLAT
    requests: int = 1

    def __post_init__(self) -> None:
        for name, (meaning, low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and low <= value <= high):
                possible = f"from {low:g} to {high:g}" if isfinite(high) else f"{low:g} or more"
                raise SettingsError(f"{name} is {value:g}: the {meaning} is {possible}")

    def pass_ratio(self, num_tokens: float) -> float:
        """Return the time of a target pass of ``num_tokens`` over that of a pass of one token."""
        return self.pass_cost.seconds(num_tokens) / self.pass_cost.seconds(1)


@dataclass(frozen=True, slots=True)
class Split:
    """A division of a pass: steps ahead, and drafted tokens in each branch.

    In the words of Lookahead Reasoning k1 is ``depth`` + 1 and k2 is ``num_drafts`` + 1. ``pass_tokens`` are
    the tokens of the largest pass of one request.
    """

    depth: int
    num_drafts: int
    pass_tokens: int
    speedup: float


def expected_split(workload: Workload, depth: int, num_drafts: int) -> Split:
    """Return a split with its speed-up by the formulas, over ``requests`` plain answers at once.

    Equation 1 of Lookahead Reasoning with two changes. T(n) may grow: a pass holds all steps under way of all
    requests. And draft and verdict cost more in units of a target step that the token level has shortened.
    """
    parallel = depth + 1
    cost, verification, branches, step = workload.c_step, workload.verification, 1, 1.0
    for _ in range(_ROUNDS):
        branches = busy_branches(parallel, cost)
        size = workload.requests * branches * (1 + num_drafts)
        seconds = workload.pass_ratio(size) + workload.c_token * num_drafts
        step = seconds / tokens_per_pass(workload.alpha_token, num_drafts)
        cost = min(1.0, workload.c_step / step)
        verification = workload.verification / step
    alone = workload.pass_ratio(workload.requests)
    speedup = alone * asynchronous_speedup(workload.alpha_step, parallel, cost, verification) / step
    return Split(depth, num_drafts, branches * (num_drafts + 1), speedup)


def best_split(workload: Workload, budget: int) -> Split:
    """Return the fastest split whose passes hold at most ``budget`` tokens of a request (equation 5).

    Of equally fast splits the smallest is returned.
    """
    assert budget >= 1, budget
    splits = list(_splits(workload, budget))
    best = max(split.speedup for split in splits)
    fastest = (split for split in splits if split.speedup >= best * (1 - 1e-9))
    return min(fastest, key=lambda split: (split.pass_tokens, split.depth))


def steps_pay_from(workload: Workload, max_depth: int, max_drafts: int) -> float | None:
    """Return the least alpha_step at which steps ahead beat draft tokens alone, by the formulas.

    The workload's own alpha_step does not count. None: they are slower even if every step is accepted.

    Args:
        max_depth: most steps ahead, at least 1.
        max_drafts: most draft tokens of a branch.
    """

    def gain(alpha_step: float) -> float:
        given = replace(workload, alpha_step=alpha_step)
        splits = [
            expected_split(given, depth, num_drafts)
            for depth in range(max_depth + 1)
            for num_drafts in range(max_drafts + 1)
        ]
        flat, ahead = (max(one.speedup for one in splits if bool(one.depth) == steps) for steps in (0, 1))
        return ahead / flat - 1.0

    if gain(1.0) <= 0.0:
        return None
    # A rejected step costs nothing by the formulas, but the wider pass does: it may pay at any rate.
    return 0.0 if gain(0.0) > 0.0 else float(brentq(gain, 0.0, 1.0, xtol=_RATE_TOLERANCE))


def _splits(workload: Workload, budget: int) -> Iterator[Split]:
    for depth in range(MAX_DEPTH + 1):
        for num_drafts in range(min(budget, _MAX_TOKENS)):
            split = expected_split(workload, depth, num_drafts)
            # A larger split can have smaller passes: fewer steps are under way.
            if split.pass_tokens <= budget:
                yield split
