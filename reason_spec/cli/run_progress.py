"""Progress of a run: a bar for each task and strategy on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from reason_spec.evaluation.amounts import NONE, percent, seconds_text, times_text
from reason_spec.evaluation.grouping import baseline_among
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.view import Totals

_REFRESHES_PER_SECOND = 2.0
"""Low, because drawing takes time from the cores that are being measured."""
_PLAIN_SECONDS = 10.0
_ESTIMATE_SECONDS = 3600.0
"""The time left is estimated from the answers of so many seconds: an answer may take a minute."""


@dataclass(slots=True)
class _Row:
    """Running totals of one strategy on one task."""

    right: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[tuple[str, int], float] = field(default_factory=dict)
    num_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        if outcome.answer is not None:
            self.right[outcome.id].append(outcome.correct is True)
        self.seconds[outcome.id, outcome.sample] = outcome.seconds
        self.num_tokens += outcome.tokens

    def numbers(self, baseline: _Row) -> str:
        """Return accuracy, seconds of an answer, tokens a second and speed-up."""
        if not self.seconds:
            return ""
        seconds = sum(self.seconds.values())
        speed = self.num_tokens / seconds if seconds else 0.0
        return (
            f"{self._accuracy} right, {seconds_text(seconds / len(self.seconds))} s, {speed:.1f} tokens/s, "
            f"{times_text(self._speedup_over(baseline))}"
        )

    @property
    def _accuracy(self) -> str:
        """The mean over problems of the share of right samples."""
        shares = [sum(samples) / len(samples) for samples in self.right.values()]
        return percent(sum(shares) / len(shares)) if shares else NONE

    def _speedup_over(self, baseline: _Row) -> float | None:
        """Return the ratio of the seconds on the answers that both have, None where there are none."""
        both = self.seconds.keys() & baseline.seconds.keys()
        own = sum(self.seconds[key] for key in both)
        return sum(baseline.seconds[key] for key in both) / own if own else None


class Board:
    """Running totals by task and strategy.

    Args:
        totals: the number of answers that each will have at the end.
        done: the answers of earlier starts.
    """

    def __init__(self, totals: Totals, done: Sequence[Outcome] = ()) -> None:
        self.totals = totals
        self._rows = {key: _Row() for key in totals}
        self._baseline = baseline_among(strategy for _, strategy in totals)
        for outcome in done:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        self._rows[outcome.task, outcome.strategy].add(outcome)

    def name(self, key: tuple[str, str]) -> str:
        task, strategy = key
        return f"{task} {strategy}" if len({task for task, _ in self.totals}) > 1 else strategy

    def num_done(self, key: tuple[str, str]) -> int:
        return len(self._rows[key].seconds)

    def numbers(self, key: tuple[str, str]) -> str:
        task, _ = key
        return self._rows[key].numbers(self._rows.get((task, self._baseline), _Row()))


@contextmanager
def run_progress(
    console: Console, totals: Totals, done: Sequence[Outcome], *, quiet: bool
) -> Iterator[Callable[[Outcome], None]]:
    """Show the progress of a run; yields a function that counts a new answer."""
    board = Board(totals, done)
    if quiet:
        yield board.add
    elif console.is_terminal:
        with _bars(console, board) as add:
            yield add
    else:
        yield _Lines(console, board).add


@contextmanager
def _bars(console: Console, board: Board) -> Iterator[Callable[[Outcome], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(10),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=_REFRESHES_PER_SECOND,
        speed_estimate_period=_ESTIMATE_SECONDS,
    ) as bars:
        tasks = {
            key: bars.add_task(
                board.name(key), total=total, completed=board.num_done(key), numbers=board.numbers(key)
            )
            for key, total in board.totals.items()
        }

        def add(outcome: Outcome) -> None:
            board.add(outcome)
            for key, task in tasks.items():
                bars.update(task, completed=board.num_done(key), numbers=board.numbers(key))

        yield add


class _Lines:
    """Prints a line every few seconds, for logs."""

    def __init__(self, console: Console, board: Board) -> None:
        self._console = console
        self._board = board
        self._started = time.monotonic()
        self._last_shown = float("-inf")
        self._num_new = 0
        self._seconds = 0.0

    def add(self, outcome: Outcome) -> None:
        board, now = self._board, time.monotonic()
        board.add(outcome)
        self._num_new += 1
        self._seconds += outcome.seconds
        num_done, total = sum(map(board.num_done, board.totals)), sum(board.totals.values())
        if now - self._last_shown < _PLAIN_SECONDS and num_done < total:
            return
        self._last_shown = now
        seconds_each = (now - self._started) / self._num_new
        if outcome.concurrency > 1:
            # The first answer of a group is counted when the whole group has taken its time.
            seconds_each = min(seconds_each, self._seconds / self._num_new)
        left = timedelta(seconds=round(seconds_each * (total - num_done)))
        rows = (
            f"{board.name(key)} {board.num_done(key)}/{wanted}, {board.numbers(key)}"
            for key, wanted in board.totals.items()
            if board.num_done(key)
        )
        line = f"{num_done}/{total} answers, {left} left; {'; '.join(rows)}"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)
