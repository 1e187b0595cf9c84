"""The terminal: results on standard output, notes and progress on standard error."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segments
from rich.table import Table

from reason_spec.cli.run_progress import run_progress
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.view import CountAnswer, ShowPhase, Totals

_T = TypeVar("_T")
_LONG_SECONDS = 10.0
"""Seconds after which a phase is printed, if no status line can show it."""


class Screen:
    """Implements `RunView` for people; ``quiet`` and ``as_json`` leave only results and warnings."""

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        # Emoji codes are plain text here.
        self.out = Console(highlight=False, markup=False, emoji=False)
        self.err = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.as_json = as_json
        self.quiet = quiet or as_json

    def say(self, text: str) -> None:
        if not self.quiet:
            self.err.print(text, soft_wrap=not self.err.is_terminal)

    def warn(self, text: str) -> None:
        self.err.print(text, style="yellow", soft_wrap=not self.err.is_terminal)

    def print(self, text: str) -> None:
        self.out.print(text, soft_wrap=not self.out.is_terminal)

    def write(self, line: str) -> None:
        """Print a line for a program: unchanged at any width."""
        self.out.file.write(line + "\n")
        self.out.file.flush()

    def write_json(self, content: Any, *, indent: int | None = 2) -> None:
        self.write(json.dumps(content, indent=indent, ensure_ascii=False))

    def fits(self, table: Table) -> bool:
        """Whether a table is shown whole: always in a pipe, on a terminal where it is wide enough."""
        return not self.out.is_terminal or full_width(table, self.out) <= self.out.width

    def print_table(self, table: Table) -> None:
        """Print a table at its full width, so that no number is cut."""
        options = self.out.options.update(max_width=full_width(table, self.out))
        self.out.print(Segments(self.out.render(table, options)), soft_wrap=True)

    @contextmanager
    def status(self, text: str) -> Iterator[ShowPhase]:
        if self.quiet or not self.err.is_terminal:
            self.say(text)
            shown = ""

            def say_phase(phase: str, seconds: float) -> None:
                nonlocal shown
                if phase and seconds > _LONG_SECONDS and phase != shown:
                    shown = phase
                    self.say(f"  after {seconds:.0f} s: {phase}")

            yield say_phase
            return
        with self.err.status(text) as status:
            yield lambda phase, seconds: status.update(
                f"{text} ({'; '.join(filter(None, (phase, f'{seconds:.0f} s')))})"
            )

    def bar(self, unit: str = "") -> Progress:
        """Return a bar that counts ``unit``, shown to people only; add tasks to it."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
        )
        return Progress(
            *columns, console=self.err, disable=self.quiet or not self.err.is_terminal, transient=True
        )

    @contextmanager
    def counting(self, text: str, total: int | None, unit: str = "") -> Iterator[Callable[[], None]]:
        """Show a bar; yields a function that advances it by one."""
        with self.bar(unit) as bar:
            task = bar.add_task(text, total=total)
            yield lambda: bar.advance(task)

    async def for_each(
        self,
        items: Sequence[_T],
        concurrency: int,
        work: Callable[[_T], Awaitable[None]],
        text: str,
        unit: str,
    ) -> None:
        """Work on items, ``concurrency`` at once, and show a bar of them. The first failure is raised."""
        places = asyncio.Semaphore(concurrency)
        with self.counting(text, len(items), unit) as advance:

            async def work_on(item: _T) -> None:
                async with places:
                    await work(item)
                advance()

            try:
                async with asyncio.TaskGroup() as group:
                    for item in items:
                        group.create_task(work_on(item))
            except BaseExceptionGroup as failed:
                raise failed.exceptions[0] from None

    def progress(self, totals: Totals, done: Sequence[Outcome]) -> AbstractContextManager[CountAnswer]:
        return run_progress(self.err, totals, done, quiet=self.quiet)


def plain_table(*headings: str, num_names: int = 1, wraps: bool = False) -> Table:
    """Return a table of ``num_names`` columns of names and further ones of numbers, which may be wrapped."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings[:num_names]:
        table.add_column(heading, no_wrap=True)
    for heading in headings[num_names:]:
        table.add_column(heading, justify="right", no_wrap=not wraps)
    return table


def full_width(table: Table, console: Console) -> int:
    """Return the width of a table's content in characters."""
    return console.measure(table, options=console.options.update(max_width=sys.maxsize)).maximum
