"""Timed runs of `load.py`, and the rows that summarise them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from arms import printer
from table_columns import LOAD
from table_forms import Column, number, text

BASELINES: Final = ("alone", "alone-shared")
CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True)
class Run:
    """An arm on the questions of one repeat, in a closed loop of ``load`` or arriving at ``share``.

    Attributes:
        capacity_of: the arm whose capacity ``share`` is of.
        live: answers under way on average over the run, waiting ones among them.
    """

    arm: str
    load: int
    share: float | None
    repeat: int
    seconds: float
    num_tokens: int
    num_answers: int
    seconds_per_token: float
    mode: str
    num_changes: int
    live: float
    capacity_of: str | None = None

    @property
    def key(self) -> tuple[str, int, float | None, str | None, int]:
        return self.arm, self.load, self.share, self.capacity_of, self.repeat

    @property
    def place(self) -> tuple[str, float, int]:
        """What rows are grouped by, in the order of the table."""
        return self.capacity_of or "", self.share or 0.0, self.load

    @property
    def pace(self) -> float:
        """The compared quantity: tokens per second of all answers, or of one answer including its wait."""
        return 1 / self.seconds_per_token if self.share is not None else self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row of an arm at a load, relative to the better baseline."""

    load: str
    arm: str
    live: float
    tokens_per_s: float
    s_per_token: float
    speedup: float
    low: float
    high: float
    of_best_fixed: float
    mode: str
    num_changes: float


def rows_of(runs: Sequence[Run], arms: Sequence[str]) -> list[Row]:
    """Return a row for each arm at each load, relative to the faster baseline there."""
    rows: list[Row] = []
    for place in sorted({run.place for run in runs}):
        here = {
            arm: sorted(
                (run for run in runs if (run.arm, run.place) == (arm, place)), key=lambda run: run.repeat
            )
            for arm in arms
        }
        paces = {arm: [run.pace for run in own] for arm, own in here.items()}
        alone = max((arm for arm in arms if arm in BASELINES), key=lambda arm: statistics.median(paces[arm]))
        fixed = [arm for arm in arms if arm != CONTROLLER]
        best = max(fixed, key=lambda arm: statistics.median(paces[arm]))
        rows += [_row(arm, here[arm], _ratios(paces, arm, alone), _ratios(paces, arm, best)) for arm in arms]
    return rows


def _ratios(paces: dict[str, list[float]], arm: str, other: str) -> list[float]:
    return [own / base for own, base in zip(paces[arm], paces[other], strict=True)]


def _row(arm: str, own: Sequence[Run], ratios: Sequence[float], of_best: Sequence[float]) -> Row:
    capacity, share, load = own[0].place
    return Row(
        load=f"arrivals, {share:g} of the capacity of {capacity}" if share else str(load),
        arm=arm,
        live=statistics.median(run.live for run in own),
        tokens_per_s=statistics.median(run.num_tokens / run.seconds for run in own),
        s_per_token=statistics.median(run.seconds_per_token for run in own),
        speedup=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        of_best_fixed=statistics.median(of_best),
        mode=own[len(own) // 2].mode,
        num_changes=statistics.fmean(run.num_changes for run in own),
    )


print_rows = printer(*LOAD, Column("s/token", number("s_per_token", 3)), Column("mode", text("mode")))
