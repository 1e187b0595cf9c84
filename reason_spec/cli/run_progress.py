"""Progress of a run: a table that grows in place on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reason_spec.evaluation.amounts import NONE, percent, percent_range, ratio_text, seconds_text, times_text
from reason_spec.evaluation.grouping import baseline_among
from reason_spec.evaluation.outcome import Outcome, UnitKey, share
from reason_spec.evaluation.statistics import exact_interval
from reason_spec.evaluation.view import Totals
from reason_spec.events import Event

REFRESHES_PER_SECOND = 2.0
"""Low, because drawing takes time from the cores that are being measured."""
PLAIN_SECONDS = 10.0

HEADINGS = (
    "task",
    "strategy",
    "done",
    "right",
    "95 %",
    "s/problem",
    "tokens/s",
    "speed-up",
    "alpha_step",
    "alpha_token",
)
_LESS_NEEDED = ("95 %", "alpha_token", "tokens/s", "alpha_step", "task")
"""Columns left out, in this order, where a terminal is too narrow."""


@dataclass(slots=True)
class _Row:
    """Running totals of one strategy on one task."""

    right: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[tuple[str, int], float] = field(default_factory=dict)
    num_tokens: int = 0
    num_verdicts: int = 0
    num_accepted: int = 0
    num_token_drafts: int = 0
    num_accepted_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        if outcome.answer is not None:
            self.right[outcome.id].append(outcome.correct is True)
        self.seconds[outcome.id, outcome.sample] = outcome.seconds
        self.num_tokens += outcome.tokens
        self.num_verdicts += outcome.usage.num_verdicts
        self.num_accepted += outcome.usage.verdicts["accept"]
        self.num_token_drafts += outcome.usage.target.num_drafted_tokens
        self.num_accepted_tokens += outcome.usage.target.num_accepted_draft_tokens

    def accuracy(self) -> tuple[str, str]:
        """Return the mean over problems of the share of right samples, and its interval, as text."""
        if not self.right:
            return NONE, NONE
        total = sum(sum(samples) / len(samples) for samples in self.right.values())
        number = len(self.right)
        return percent(total / number), percent_range(exact_interval(min(total, number), number))

    def speedup_over(self, baseline: _Row) -> float | None:
        """Return the ratio of the seconds on the answers that both have, None where there are none."""
        both = self.seconds.keys() & baseline.seconds.keys()
        own = sum(self.seconds[key] for key in both)
        return sum(baseline.seconds[key] for key in both) / own if own else None


class Board:
    """Running totals by task and strategy.

    Args:
        totals: the number of answers that each will have at the end.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._rows = {key: _Row() for key in totals}
        self._baseline = baseline_among(strategy for _, strategy in totals)

    def add(self, outcome: Outcome) -> None:
        # Results of earlier versions do not name their task.
        if (row := self._rows.get((outcome.task, outcome.strategy))) is not None:
            row.add(outcome)

    def rows(self) -> list[dict[str, str]]:
        """Return texts by heading for each task and strategy."""
        return [dict(zip(HEADINGS, self._cells(*key), strict=True)) for key in self._totals]

    def _cells(self, task: str, strategy: str) -> tuple[str, ...]:
        row = self._rows[task, strategy]
        done = f"{len(row.seconds)}/{self._totals[task, strategy]}"
        if not row.seconds:
            return (task, strategy, done, *[NONE] * (len(HEADINGS) - 3))
        seconds = sum(row.seconds.values())
        baseline = self._rows.get((task, self._baseline), _Row())
        return (
            task,
            strategy,
            done,
            *row.accuracy(),
            seconds_text(seconds / len(row.seconds)),
            f"{row.num_tokens / seconds if seconds else 0.0:.1f}",
            times_text(row.speedup_over(baseline)),
            ratio_text(share(row.num_accepted, row.num_verdicts)),
            ratio_text(share(row.num_accepted_tokens, row.num_token_drafts)),
        )


class RunProgress:
    """Counts the answers of a run and shows nothing; a context manager.

    Args:
        done: the outcomes of earlier starts.
    """

    def __init__(self, console: Console, totals: Totals, done: Iterable[Outcome]) -> None:
        self._console = console
        self._board = Board(totals)
        self._total = sum(totals.values())
        self._num_done = 0
        self._num_new = 0
        self._started = time.monotonic()
        for outcome in done:
            self._count(outcome)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def listen(self, key: UnitKey, event: Event) -> None:
        """Take an event of an answer in progress."""

    def add(self, outcome: Outcome) -> None:
        """Count a new outcome."""
        self._num_new += 1
        self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        self._num_done += 1
        self._board.add(outcome)

    @property
    def _time_left(self) -> str:
        """Time for the missing answers at the pace of this start."""
        if not self._num_new:
            return "-:--:--"
        pace = (time.monotonic() - self._started) / self._num_new
        return str(timedelta(seconds=round(pace * (self._total - self._num_done))))


class PlainProgress(RunProgress):
    """Prints a line every few seconds, for logs."""

    _last_shown = float("-inf")

    def add(self, outcome: Outcome) -> None:
        super().add(outcome)
        now = time.monotonic()
        if now - self._last_shown < PLAIN_SECONDS and self._num_done < self._total:
            return
        self._last_shown = now
        line = f"{self._num_done}/{self._total} answers, {self._time_left} left; {'; '.join(self._parts())}"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _parts(self) -> list[str]:
        rows = self._board.rows()
        several = len({row["task"] for row in rows}) > 1
        return [
            f"{row['task'] + ' ' if several else ''}{row['strategy']} {row['done']}, {row['right']} right, "
            f"{row['s/problem']} s, {row['tokens/s']} tokens/s, {row['speed-up']}"
            for row in rows
            if not row["done"].startswith("0/")
        ]


class LiveProgress(RunProgress):
    """Draws a bar and the board in place."""

    def __init__(self, console: Console, totals: Totals, done: Iterable[Outcome]) -> None:
        super().__init__(console, totals, done)
        self._num_steps = 0
        self._current: UnitKey | None = None
        self._live = Live(
            get_renderable=self._render,
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def listen(self, key: UnitKey, event: Event) -> None:
        if event.kind == "started" and event.step_index == 0 and key != self._current:
            self._current, self._num_steps = key, 0
        elif event.kind == "final" and key == self._current:
            self._num_steps += 1

    def _render(self) -> RenderableType:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self._total, completed=self._num_done, width=24),
            f"{self._num_done}/{self._total} answers",
            f"{self._time_left} left",
        )
        now = ""
        if self._current is not None:
            now = f"problem {self._current.problem_id}, {self._current.strategy}, {self._num_steps} steps"
        return Group(bar, self._table(), Text(now, style="dim", no_wrap=True, overflow="ellipsis"))

    def _table(self) -> Table:
        rows, shown = self._board.rows(), list(HEADINGS)
        table = _table(shown, rows)
        for heading in _LESS_NEEDED:
            unlimited = self._console.options.update(max_width=sys.maxsize)
            if self._console.measure(table, options=unlimited).maximum <= self._console.width:
                break
            shown.remove(heading)
            table = _table(shown, rows)
        return table


def _table(headings: Sequence[str], rows: Iterable[Mapping[str, str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def progress_view(console: Console, totals: Totals, done: Sequence[Outcome], *, quiet: bool) -> RunProgress:
    """Return the progress of a run: drawn in place on a terminal, else lines at times."""
    kind = RunProgress if quiet else LiveProgress if console.is_terminal else PlainProgress
    return kind(console, totals, done)
