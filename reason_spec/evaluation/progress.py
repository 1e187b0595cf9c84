"""What a person sees while problems are solved: a live view on a terminal, else a line at times."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.report import percent, ratio_text
from reason_spec.evaluation.run import UnitListener
from reason_spec.events import Event

REFRESHES_PER_SECOND = 2.0
"""Few: drawing takes time from the cores whose speed is being measured."""

PLAIN_SECONDS = 10.0


@dataclass(slots=True)
class _Tally:
    """Running totals of one strategy."""

    num_answers: int = 0
    num_graded: int = 0
    num_correct: int = 0
    num_verdicts: int = 0
    num_accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.num_answers += 1
        self.num_graded += outcome.answer is not None
        self.num_correct += outcome.correct is True
        self.num_verdicts += outcome.usage.num_verdicts
        self.num_accepted += outcome.usage.verdicts["accept"]
        self.tokens += outcome.tokens
        self.seconds += outcome.seconds

    def describe(self) -> list[str]:
        """Return speed, acceptance and accuracy so far."""
        alpha_step = self.num_accepted / self.num_verdicts if self.num_verdicts else None
        accuracy = self.num_correct / self.num_graded if self.num_graded else None
        return [
            f"{self.tokens / self.seconds if self.seconds else 0.0:.1f} tokens/s",
            f"alpha_step {ratio_text(alpha_step)}",
            f"{percent(accuracy)} right" if accuracy is not None else "",
        ]


class ProgressView(ABC):
    """Follows a run; a context manager.

    Args:
        strategies: their names, in the order of the run.
        total: all answers of the run.
        done: the outcomes that exist already.
    """

    def __init__(self, strategies: Sequence[str], total: int, done: Iterable[Outcome]) -> None:
        self._tallies = {name: _Tally() for name in strategies}
        self._total = total
        self._num_done = 0
        self._num_new = 0
        self._started = time.monotonic()
        for outcome in done:
            self._count(outcome)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def add(self, outcome: Outcome) -> None:
        """Count a new outcome."""
        self._num_new += 1
        self._count(outcome)
        self._show()

    @property
    def listener(self) -> UnitListener | None:
        """What wants to hear of every event of the answers under way."""
        return None

    @abstractmethod
    def _show(self) -> None: ...

    def _count(self, outcome: Outcome) -> None:
        self._num_done += 1
        self._tallies.setdefault(outcome.strategy, _Tally()).add(outcome)

    @property
    def _time_left(self) -> str:
        """Time for what is left at the pace of this start, earlier ones not counted."""
        if not self._num_new:
            return "-:--:--"
        pace = (time.monotonic() - self._started) / self._num_new
        return str(timedelta(seconds=round(pace * (self._total - self._num_done))))


class SilentProgress(ProgressView):
    """Shows nothing."""

    def _show(self) -> None:
        return None


class PlainProgress(ProgressView):
    """Prints a line every few seconds, for logs."""

    def __init__(
        self, console: Console, strategies: Sequence[str], total: int, done: Iterable[Outcome]
    ) -> None:
        super().__init__(strategies, total, done)
        self._console = console
        self._last_shown = float("-inf")

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._last_shown < PLAIN_SECONDS and self._num_done < self._total:
            return
        self._last_shown = now
        line = f"{self._num_done}/{self._total} answers, {self._time_left} left; {'; '.join(self._parts())}"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _parts(self) -> list[str]:
        return [
            f"{name} " + ", ".join(filter(None, tally.describe()))
            for name, tally in self._tallies.items()
            if tally.num_answers
        ]


class LiveProgress(ProgressView):
    """Draws a bar and a line for each strategy, in place."""

    def __init__(
        self, console: Console, strategies: Sequence[str], total: int, done: Iterable[Outcome]
    ) -> None:
        super().__init__(strategies, total, done)
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    @property
    def listener(self) -> UnitListener:
        return self._listen

    def _listen(self, key: UnitKey, event: Event) -> None:
        if event.kind == "started" and event.step_index == 0 and key != self._current:
            self._current, self._num_steps = key, 0
        elif event.kind == "final" and key == self._current:
            self._num_steps += 1

    def _show(self) -> None:
        """The drawing thread does it."""

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
        return Group(bar, self._rows(), Text(now, style="dim", no_wrap=True, overflow="ellipsis"))

    def _rows(self) -> Table:
        rows = Table.grid(padding=(0, 2))
        for name, tally in self._tallies.items():
            rows.add_row(Text(name, style="bold"), *(tally.describe() if tally.num_answers else ()))
        return rows
