"""A load controller on a clock of its own, with answers that begin, generate and end."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from reason_spec.control.budget import RequestedBudget, SpeculationBudget
from reason_spec.control.constants import LOAD_CONSTANTS
from reason_spec.control.costs import BatchCosts
from reason_spec.control.load_controller import LoadController
from reason_spec.engines.stats import PassTime
from reason_spec.settings import LoadControlSettings, SpeculationMode
from reason_spec.speculation.goodput import BatchTime

SIZES = [(n * r, r) for r in (1, 4, 16, 64) for n in (1, 4, 9)]
REQUESTED = RequestedBudget(2, 8)


def batch_time(base: float, token: float, request: float = 0.0) -> BatchTime:
    return BatchTime([PassTime(n, base + token * n + request * r, 50, r) for n, r in SIZES])


def costs(
    token: float = 0.001, *, alone: float = 0.5, draft: float = 0.002, base: float = 0.02
) -> BatchCosts:
    """A target of 20 ms a pass and ``token`` more for each; ``alone`` of that on all cores."""
    return BatchCosts(
        batch_time(base, token), batch_time(alone * base, alone * token), batch_time(draft, draft / 20)
    )


class World:
    """A load controller on a clock of its own, and answers that begin and end."""

    def __init__(
        self, known: BatchCosts | None, at_most: SpeculationMode = "steps", hold_seconds: float = 1.0
    ) -> None:
        self.now = 0.0
        self.costs = known
        self.cores: list[bool] = []
        self.controller = LoadController(
            LoadControlSettings(at_most=at_most),
            lambda: self.costs,
            self.cores.append,
            lambda: self.now,
            replace(LOAD_CONSTANTS, hold_seconds=hold_seconds),
        )
        self._held: list[ExitStack] = []
        self.live: list[SpeculationBudget] = []

    def load(self, number: int, requested: RequestedBudget = REQUESTED) -> None:
        while len(self.live) > number:
            self._held.pop().close()
            self.live.pop()
        while len(self.live) < number:
            self._held.append(ExitStack())
            self.live.append(self._held[-1].enter_context(self.controller.admit(requested)))
        self.now += 0.05
        self.controller.refresh()

    def wait(self, seconds: float, round_seconds: float = 0.3) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += round_seconds
            self.controller.refresh()

    @property
    def drafted(self) -> int:
        return sum(live.num_draft_tokens for live in self.live)


def write(world: World, seconds: float, *, of_expected: float) -> None:
    """Let all answers generate at a share of the goodput that is predicted of the present mode."""
    for _ in range(round(seconds / 0.3)):
        world.now += 0.3
        pace = world.controller.predicted * of_expected
        for live in world.live:
            live.record_step(round(pace * 0.3 / len(world.live)))
        world.controller.refresh()


def written(world: World, seconds: float, *, none: float) -> list[str]:
    """Let all answers write as is expected, without drafts at a share of that; return the modes."""
    modes = []
    for _ in range(round(seconds / 0.3)):
        modes.append(world.controller.mode)
        write(world, 0.3, of_expected=none if modes[-1] == "none" else 1.0)
    return [*modes, world.controller.mode]
