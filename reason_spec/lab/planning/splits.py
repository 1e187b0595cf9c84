"""How to divide what a pass can check between steps ahead, drafts of a step, and tokens inside a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from reason_spec.control.formulas import (
    asynchronous_speedup,
    busy_branches,
    synchronous_speedup,
    tokens_per_pass,
    tree_branches,
    width_rate,
)
from reason_spec.errors import SettingsError
from reason_spec.lab.planning.workload import Workload

Law: TypeAlias = Literal["product", "relative"]
"""``product``: h(k1, k2) = f(k1) g(k2) (equation 1). ``relative``: the same with the costs of draft and
verdict over a target step as the token level leaves it, which is shorter; the product law keeps them."""
Form: TypeAlias = Literal["asynchronous", "synchronous"]

MAX_PARALLEL = 16
"""Target steps at once that are tried: more never bring 1 % where drafts stand in nine of ten cases."""
_MAX_TOKENS = 128
"""Tokens in a branch that are tried."""
_ROUNDS = 4
"""Rounds in which the length of a target step and the number of steps under way settle."""


@dataclass(frozen=True, slots=True)
class Split:
    """A division of a pass: ``parallel`` target steps at once, ``width`` drafts a step, and tokens in each.

    ``tokens_per_branch`` counts the token that the target writes anyway: it is k2, and the drafts are one
    fewer. ``pass_tokens`` are the tokens of the largest pass of one request.
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


def token_level_step(workload: Workload, branches: int, num_drafts: int) -> float:
    """Return the time of a target step over one alone without drafts, ``branches`` of them in every pass."""
    size = workload.requests * branches * (1 + num_drafts)
    seconds = workload.pass_ratio(size) + workload.c_token * num_drafts
    return seconds / tokens_per_pass(workload.alpha_token, num_drafts)


def expected_split(
    workload: Workload,
    parallel: int,
    width: int = 1,
    num_drafts: int = 0,
    *,
    law: Law = "relative",
    form: Form = "asynchronous",
) -> Split:
    """Return a split with the speed-up that formulas give it, over ``requests`` plain answers at once.

    Equation 1 with T(n) that may grow: the target's time of a step is that of its passes, which hold all
    steps under way of all requests.
    """
    rate = width_rate(workload.alpha_step, width)
    formula = asynchronous_speedup if form == "asynchronous" else synchronous_speedup
    cost, verification, branches, step = workload.c_step, workload.verification, 1, 1.0
    for _ in range(_ROUNDS):
        at_once = parallel if form == "synchronous" else busy_branches(parallel, cost)
        branches = tree_branches(at_once, width)
        step = token_level_step(workload, branches, num_drafts)
        if law == "relative":
            cost = min(1.0, workload.c_step / step)
            verification = workload.verification / step
    alone = workload.pass_ratio(workload.requests)
    speedup = alone * formula(rate, parallel, cost, verification) / step
    return Split(parallel, width, num_drafts + 1, branches * (num_drafts + 1), speedup)


def best_split(
    workload: Workload,
    budget: int,
    *,
    max_parallel: int = MAX_PARALLEL,
    max_width: int = 1,
    law: Law = "relative",
    form: Form = "asynchronous",
) -> Split:
    """Return the fastest split whose passes hold at most ``budget`` tokens of a request (equations 1 and 5).

    Of splits that are equally fast the smallest is taken.

    Raises:
        SettingsError: the budget has no room for a token.
    """
    if budget < 1:
        raise SettingsError(f"budget is {budget}: a pass holds 1 token or more of a request")
    splits = list(_splits(workload, budget, max_parallel, max_width, law, form))
    best = max(split.speedup for split in splits)
    fastest = (split for split in splits if split.speedup >= best * (1 - 1e-9))
    return min(fastest, key=lambda split: (split.pass_tokens, split.parallel, split.width))


def _splits(
    workload: Workload, budget: int, max_parallel: int, max_width: int, law: Law, form: Form
) -> Iterator[Split]:
    for parallel in range(1, max_parallel + 1):
        for width in range(1, max_width + 1 if parallel > 1 else 2):
            for num_drafts in range(min(budget, _MAX_TOKENS)):
                split = expected_split(workload, parallel, width, num_drafts, law=law, form=form)
                if split.pass_tokens > budget:
                    if law == "product":
                        break
                    continue  # a longer step has fewer of them under way
                yield split


def hybrid_wins_synchronously(
    alpha_step: float, c_step: float, alpha_token: float, c_token: float, budget: int
) -> bool:
    """Tell by theorem 3 whether both levels together beat either alone, in rounds, at an even budget.

    Half the budget for one level and two of the other is compared with all of it for one level. The theorem
    asks for a budget of 4 or more and (1 + alpha) / (1 + c) > 1.157 on both levels.
    """

    def gains(alpha: float, cost: float, other: float, other_cost: float) -> bool:
        halved = 1.0 - other_cost + other_cost * budget / 2
        whole = 1.0 - other_cost + other_cost * budget
        return (1.0 + alpha) / (1.0 + cost) >= (1.0 + float(other ** (budget / 2))) * halved / whole

    return gains(alpha_step, c_step, alpha_token, c_token) and gains(alpha_token, c_token, alpha_step, c_step)


def hybrid_wins_asynchronously(
    alpha_step: float, c_step: float, alpha_token: float, c_token: float, budget: int
) -> bool:
    """Tell whether theorem 4 promises that both levels together are best; False is no promise."""
    rates = 0.52 < alpha_step < 0.8 and 0.52 < alpha_token < 0.8
    return rates and c_step < 1 / 3 and c_token < 1 / 5 and budget >= 16 and budget % 2 == 0
