"""What a person sees while settings are searched."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import Progress, TaskID

from reason_spec.evaluation.console import Screen
from reason_spec.lab.tuning.calibration import LossTest
from reason_spec.lab.tuning.halving import FINAL_STAGE, Answers, Candidate, stand

_LEADER_SECONDS = 1.0
_PLAIN_SECONDS = 10.0


class TuneProgress:
    """A bar with the time that is left and the leader, or, where there is no terminal, a line at times.

    Args:
        total: answers that the search takes at the most.
    """

    def __init__(self, screen: Screen, total: int) -> None:
        self._screen = screen
        self._bar: Progress = screen.bar("answers")
        self._task: TaskID = self._bar.add_task("starting", total=total)
        self._is_live = not self._bar.disable
        self._stage = ""
        self._last_shown = 0.0
        self._num_done = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it, from entering to leaving."""
        with self._bar:
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Make room for something else that draws in place."""
        self._bar.stop()
        try:
            yield
        finally:
            if self._is_live:
                self._bar.start()

    def begin(self, stage: str, num_candidates: int, num_problems: int) -> None:
        """Begin a stage of the search."""
        ways = "1 candidate" if num_candidates == 1 else f"{num_candidates} candidates"
        self._stage = f"{stage}: {ways} on {num_problems} problems"
        self._bar.update(self._task, description=self._stage)
        if stage == FINAL_STAGE:
            # Fewer candidates may be left than could be, and rungs may have been passed over.
            self._bar.update(self._task, total=self._num_done + (num_candidates + 1) * num_problems)
        if not self._is_live:
            self._screen.say(self._stage)

    def count(self) -> None:
        """Count an answer, a new one or one of an earlier start."""
        self._num_done += 1
        self._bar.advance(self._task, 1)

    @property
    def is_due(self) -> bool:
        """Whether it is time to name the leader."""
        pause = _LEADER_SECONDS if self._is_live else _PLAIN_SECONDS
        return not self._screen.quiet and time.monotonic() - self._last_shown >= pause

    def show(self, answers: Answers, candidates: Sequence[Candidate], test: LossTest) -> None:
        """Name the leader."""
        self._last_shown = time.monotonic()
        standings = [stand(candidate, answers, test) for candidate in candidates]
        leader = max(standings, key=lambda standing: standing.speed)
        leads = f"; leads: {leader.candidate.name} {leader.speed:.2f}x" if leader.speed else ""
        text = self._stage + leads
        self._bar.update(self._task, description=text)
        if not self._is_live:
            self._screen.say(f"{self._num_done} answers; {text}")
