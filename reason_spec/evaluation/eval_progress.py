"""What a person sees while an evaluation runs: a row for each task and strategy, growing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

from reason_spec.evaluation.outcome import Outcome, UnitKey, share
from reason_spec.evaluation.progress import LiveProgress, PlainProgress, SilentProgress
from reason_spec.evaluation.report import NONE, at_full_width, ratio_text, seconds_text
from reason_spec.evaluation.statistics import wilson_interval
from reason_spec.evaluation.summary import baseline_among

_HEADINGS = (
    "task",
    "strategy",
    "done",
    "right",
    "95 %",
    "s/problem",
    "speed-up",
    "alpha_step",
    "alpha_token",
)


_LESS_NEEDED = ("95 %", "alpha_token", "alpha_step", "task")
"""Left out, in this order, where a terminal is too narrow."""


@dataclass(slots=True)
class _Row:
    """Running totals of one strategy on one task."""

    right: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[tuple[str, int], float] = field(default_factory=dict)
    num_verdicts: int = 0
    num_accepted: int = 0
    num_token_drafts: int = 0
    num_accepted_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        if outcome.answer is not None:
            self.right[outcome.id].append(outcome.correct is True)
        self.seconds[outcome.id, outcome.sample] = outcome.seconds
        self.num_verdicts += outcome.usage.num_verdicts
        self.num_accepted += outcome.usage.verdicts["accept"]
        self.num_token_drafts += outcome.usage.target.num_drafted_tokens
        self.num_accepted_tokens += outcome.usage.target.num_accepted_draft_tokens

    def accuracy(self) -> tuple[str, str]:
        """Return the mean over problems of the share of right samples, and its interval, as text."""
        if not self.right:
            return NONE, NONE
        total = sum(sum(samples) / len(samples) for samples in self.right.values())
        interval = wilson_interval(total, len(self.right))
        return (
            f"{100 * total / len(self.right):.1f} %",
            f"{100 * interval.low:.0f}-{100 * interval.high:.0f} %",
        )

    def speedup_over(self, baseline: _Row) -> float | None:
        """Return the ratio of the seconds on the answers that both have, None where there are none."""
        both = self.seconds.keys() & baseline.seconds.keys()
        own = sum(self.seconds[key] for key in both)
        return sum(baseline.seconds[key] for key in both) / own if own else None


class Board:
    """Running totals by task and strategy.

    Args:
        totals: the answers that each will have at the end.
    """

    def __init__(self, totals: Mapping[tuple[str, str], int]) -> None:
        self._totals = totals
        self._rows = {key: _Row() for key in totals}
        self._baseline = baseline_among(strategy for _, strategy in totals)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome of this run; others that its folder holds are passed over."""
        if (row := self._rows.get((outcome.task, outcome.strategy))) is not None:
            row.add(outcome)

    def cells(self) -> list[tuple[str, ...]]:
        """Return a row of text for each task and strategy, in the order of `_HEADINGS`."""
        return [self._cells(*key) for key in self._totals]

    def _cells(self, task: str, strategy: str) -> tuple[str, ...]:
        row = self._rows[task, strategy]
        done = f"{len(row.seconds)}/{self._totals[task, strategy]}"
        if not row.seconds:
            return (task, strategy, done, *[NONE] * (len(_HEADINGS) - 3))
        speedup = row.speedup_over(self._rows[task, self._baseline])
        return (
            task,
            strategy,
            done,
            *row.accuracy(),
            seconds_text(sum(row.seconds.values()) / len(row.seconds)),
            NONE if speedup is None else f"{speedup:.2f}x",
            ratio_text(share(row.num_accepted, row.num_verdicts)),
            ratio_text(share(row.num_accepted_tokens, row.num_token_drafts)),
        )


def _table(headings: Sequence[str], rows: Iterable[Mapping[str, str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _HEADINGS[:2] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


class LiveBoard(LiveProgress):
    """Draws the board in place, under a bar with the time left."""

    def __init__(
        self, console: Console, strategies: Sequence[str], total: int, done: Iterable[Outcome], board: Board
    ) -> None:
        self._board = board
        self._console = console
        super().__init__(console, strategies, total, done)

    def _count(self, outcome: Outcome) -> None:
        super()._count(outcome)
        self._board.add(outcome)

    def _rows(self) -> Table:
        rows = [dict(zip(_HEADINGS, cells, strict=True)) for cells in self._board.cells()]
        shown = list(_HEADINGS)
        table = _table(shown, rows)
        for heading in _LESS_NEEDED:
            if at_full_width(table, self._console).max_width <= self._console.width:
                break
            shown.remove(heading)
            table = _table(shown, rows)
        return table


class PlainBoard(PlainProgress):
    """Prints a line every few seconds."""

    def __init__(
        self, console: Console, strategies: Sequence[str], total: int, done: Iterable[Outcome], board: Board
    ) -> None:
        self._board = board
        super().__init__(console, strategies, total, done)

    def _count(self, outcome: Outcome) -> None:
        super()._count(outcome)
        self._board.add(outcome)

    def _parts(self) -> list[str]:
        rows = [dict(zip(_HEADINGS, cells, strict=True)) for cells in self._board.cells()]
        several = len({row["task"] for row in rows}) > 1
        return [
            f"{row['task'] + ' ' if several else ''}{row['strategy']} {row['done']}, {row['right']} right, "
            f"{row['s/problem']} s, {row['speed-up']}"
            for row in rows
            if not row["done"].startswith("0/")
        ]


def board_view(
    console: Console,
    strategies: Sequence[str],
    totals: Mapping[tuple[str, str], int],
    done: Sequence[Outcome],
    *,
    quiet: bool,
) -> LiveBoard | PlainBoard | SilentProgress:
    """Return what follows an evaluation: drawn in place on a terminal, else lines at times."""
    total = sum(totals.values())
    if quiet:
        return SilentProgress(strategies, total, done)
    view = LiveBoard if console.is_terminal else PlainBoard
    return view(console, strategies, total, done, Board(totals))


def totals_of(wanted: Iterable[UnitKey], tasks: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Count the answers of a run by task and strategy; ``tasks`` names the task of each problem id."""
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for key in wanted:
        totals[tasks[key.problem_id], key.strategy] += 1
    return dict(totals)
