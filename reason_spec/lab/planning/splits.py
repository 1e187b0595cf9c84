"""Divide the tokens of a pass between steps ahead, drafts of a step, and tokens inside a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from reason_spec.control.formulas import (
    asynchronous_speedup,
    busy_branches,
    tokens_per_pass,
    tree_branches,
    width_rate,
)
from reason_spec.errors import SettingsError
from reason_spec.lab.planning.workload import Workload

Law: TypeAlias = Literal["product", "relative"]
"""``product``: h(k1, k2) = f(k1) g(k2) (Lookahead Reasoning, equation 1). ``relative``: the same with the
costs of draft and verdict over the target step that the token level has shortened."""

MAX_PARALLEL = 16
"""Target steps at once that are tried: at an acceptance of 0.9 more never bring 1 %."""
_MAX_TOKENS = 128
"""Tokens in a branch that are tried."""
_ROUNDS = 4
"""Iterations until the length of a target step and the number of steps under way agree."""


@dataclass(frozen=True, slots=True)
class Split:
    """A division of a pass: ``parallel`` target steps at once (k1), ``width`` drafts a step, tokens in each.

    ``tokens_per_branch`` (k2) includes the token that the target writes anyway. ``pass_tokens`` are the
    tokens of the largest pass of one request.
    """

    parallel: int
    width: int
    tokens_per_branch: int
    pass_tokens: int
    speedup: float

    @property
    def depth(self) -> int:
        """How many steps the draft runs ahead."""
        return self.parallel - 1

    @property
    def num_drafts(self) -> int:
        return self.tokens_per_branch - 1


def expected_split(
    workload: Workload, parallel: int, width: int = 1, num_drafts: int = 0, *, law: Law = "relative"
) -> Split:
    """Return a split with its speed-up by the formulas, over ``requests`` plain answers at once.

    Equation 1 with a T(n) that may grow: a pass holds all steps under way of all requests.
    """
    rate = width_rate(workload.alpha_step, width)
    cost, verification, branches, step = workload.c_step, workload.verification, 1, 1.0
    for _ in range(_ROUNDS):
        branches = tree_branches(busy_branches(parallel, cost), width)
        size = workload.requests * branches * (1 + num_drafts)
        seconds = workload.pass_ratio(size) + workload.c_token * num_drafts
        step = seconds / tokens_per_pass(workload.alpha_token, num_drafts)
        if law == "relative":
            cost = min(1.0, workload.c_step / step)
            verification = workload.verification / step
    alone = workload.pass_ratio(workload.requests)
    speedup = alone * asynchronous_speedup(rate, parallel, cost, verification) / step
    return Split(parallel, width, num_drafts + 1, branches * (num_drafts + 1), speedup)


def best_split(
    workload: Workload,
    budget: int,
    *,
    max_parallel: int = MAX_PARALLEL,
    max_width: int = 1,
    law: Law = "relative",
) -> Split:
    """Return the fastest split whose passes hold at most ``budget`` tokens of a request (equations 1 and 5).

    Of equally fast splits the smallest is returned.

    Raises:
        SettingsError: the budget has no room for a token.
    """
    if budget < 1:
        raise SettingsError(f"budget is {budget}: a pass holds 1 token or more of a request")
    splits = list(_splits(workload, budget, max_parallel, max_width, law))
    best = max(split.speedup for split in splits)
    fastest = (split for split in splits if split.speedup >= best * (1 - 1e-9))
    return min(fastest, key=lambda split: (split.pass_tokens, split.parallel, split.width))


def _splits(workload: Workload, budget: int, max_parallel: int, max_width: int, law: Law) -> Iterator[Split]:
    for parallel in range(1, max_parallel + 1):
        for width in range(1, max_width + 1 if parallel > 1 else 2):
            for num_drafts in range(min(budget, _MAX_TOKENS)):
                split = expected_split(workload, parallel, width, num_drafts, law=law)
                # By the relative law a larger split can have smaller passes: fewer steps are under way.
                if split.pass_tokens <= budget:
                    yield split
