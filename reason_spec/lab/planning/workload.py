"""The rates, costs and sizes that formulas, splits and the simulator start from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from reason_spec.control.costs import PassCost
from reason_spec.errors import SettingsError

FLAT = PassCost(((1, 1.0),))
"""Every pass takes the same time."""
_CHANCES = {
    "alpha_step": "share of drafted steps that are accepted",
    "alpha_token": "share of drafted tokens that are accepted",
    "identical": "share of steps that both models write alike",
}
_AMOUNTS = {
    "c_step": "time of a drafted step over that of a target step",
    "c_token": "time of a drafted token over that of a target token",
    "verification": "time of a verdict over that of a target step",
    "step_tokens_std": "standard deviation of a step's tokens",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """One pair of models on one kind of problem.

    ``c_step`` and ``verification`` are over the time of a target step written alone and token by token,
    ``c_token`` over that of a target token. ``pass_cost`` and ``draft_pass_cost`` are T(n), of which only
    ratios count. ``step_tokens`` and ``answer_steps`` are means; None means that answers do not end.
    ``requests`` answers are written at once on the same engines.

    Raises:
        SettingsError: a value is impossible; the message names it and what is possible.
    """

    alpha_step: float
    c_step: float
    alpha_token: float = 0.0
    c_token: float = 0.0
    verification: float = 0.0
    identical: float = 0.0
    step_tokens: float = 100.0
    step_tokens_std: float = 0.0
    answer_steps: float | None = None
    pass_cost: PassCost = FLAT
    draft_pass_cost: PassCost = FLAT
    requests: int = 1

    def __post_init__(self) -> None:
        for mistake in self._mistakes():
            raise SettingsError(mistake)

    def _mistakes(self) -> Iterator[str]:
        for name, meaning in _CHANCES.items():
            if not 0.0 <= (value := getattr(self, name)) <= 1.0:
                yield f"{name} is {value:g}: the {meaning} is from 0 to 1"
        for name, meaning in _AMOUNTS.items():
            if not (isfinite(value := getattr(self, name)) and value >= 0.0):
                yield f"{name} is {value:g}: the {meaning} is 0 or more"
        if self.c_step > 1.0:
            yield f"c_step is {self.c_step:g}: it is from 0 to 1, a draft slower than the target is useless"
        if not (isfinite(self.step_tokens) and self.step_tokens >= 1.0):
            yield f"step_tokens is {self.step_tokens:g}: a step has 1 token or more"
        if self.answer_steps is not None and not self.answer_steps >= 1.0:
            yield f"answer_steps is {self.answer_steps:g}: an answer has 1 step or more"
        if self.requests < 1:
            yield f"requests is {self.requests}: it is 1 or more"
        if self.identical > self.alpha_step:
            yield (
                f"identical is {self.identical:g} and alpha_step {self.alpha_step:g}: identical steps are "
                "accepted, so identical is at most alpha_step"
            )

    def pass_ratio(self, num_tokens: float) -> float:
        """Return the time of a target pass of ``num_tokens`` over that of a pass of one token."""
        return self.pass_cost.seconds(num_tokens) / self.pass_cost.seconds(1)

    def draft_ratio(self, num_drafts: float) -> float:
        """Return the time of a draft pass for ``num_drafts`` steps at once, over that for one."""
        return self.draft_pass_cost.seconds(num_drafts) / self.draft_pass_cost.seconds(1)
