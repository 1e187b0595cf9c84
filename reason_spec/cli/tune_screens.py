"""`reason-spec tune` on the screen: progress, tables and conclusions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from reason_spec.cli.screen import Screen, plain_table
from reason_spec.evaluation.amounts import NONE, counted, percent, ratio_text, times_text
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.lab.tuning import calibration_report, report
from reason_spec.lab.tuning.calibration import ThresholdTrials
from reason_spec.lab.tuning.halving import FINAL_STAGE, CandidateResult, Rung
from reason_spec.lab.tuning.report import Tuning
from reason_spec.lab.tuning.verifier import VerifierTuning

EXIT_NONE_SAFE = 1
MAX_SHOWN = 8
"""Rows of a rung in the table; the file of numbers has all."""
_LEADER_SECONDS = 1.0
_PLAIN_SECONDS = 10.0


class TuneScreen(Screen):
    """Implements `SearchView`."""

    @contextmanager
    def searching(self, total: int) -> Iterator[TuneProgress]:
        with self.bar("answers") as bar:
            yield TuneProgress(self, bar, total)


class TuneProgress:
    """A bar with the time that is left and the leader, or, where there is no terminal, a line at times."""

    def __init__(self, screen: Screen, bar: Progress, total: int) -> None:
        self._screen = screen
        self._bar = bar
        self._task = bar.add_task("starting", total=total)
        self._is_live = not bar.disable
        self._stage = ""
        self._last_shown = 0.0
        self._num_done = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._bar.stop()
        try:
            yield
        finally:
            if self._is_live:
                self._bar.start()

    def begin(self, stage: str, num_candidates: int, num_problems: int) -> None:
        self._stage = f"{stage}: {counted(num_candidates, 'candidate')} on {num_problems} problems"
        self._bar.update(self._task, description=self._stage)
        if stage == FINAL_STAGE:
            # Rungs may have been skipped, and fewer candidates may be left than planned.
            self._bar.update(self._task, total=self._num_done + (num_candidates + 1) * num_problems)
        if not self._is_live:
            self._screen.say(self._stage)

    def count(self) -> None:
        self._num_done += 1
        self._bar.advance(self._task, 1)

    @property
    def is_due(self) -> bool:
        pause = _LEADER_SECONDS if self._is_live else _PLAIN_SECONDS
        return not self._screen.quiet and time.monotonic() - self._last_shown >= pause

    def show(self, leader: CandidateResult) -> None:
        self._last_shown = time.monotonic()
        leads = f"; leads: {leader.candidate.name} {times_text(leader.speed)}" if leader.speed else ""
        text = self._stage + leads
        self._bar.update(self._task, description=text)
        if not self._is_live:
            self._screen.say(f"{self._num_done} answers; {text}")


# Pairs -----------------------------------------------------------------------------------------


def show_tuning(found: Tuning, screen: Screen, *, quiet: bool) -> None:
    """Print the tables of a search and its conclusion, or both as JSON."""
    if screen.as_json:
        screen.write_json({**found.to_dict(), "run": str(found.run)}, indent=None)
        return
    if not quiet:
        for title, rung in report.titled(found.choice):
            chosen = found.choice.chosen if rung is found.choice.final else None
            screen.print_table(_rung_table(title, rung, chosen))
            screen.out.print()
    screen.out.print(report.conclusion(found), soft_wrap=True)
    for warning in report.warnings(found):
        screen.warn(warning)
    screen.out.print(f"Use it with: --config {found.output}", soft_wrap=True)
    screen.say(f"Answers and numbers: {found.run}")


def _rung_table(title: str, rung: Rung, chosen: CandidateResult | None = None) -> Table:
    """Return a row for each of the fastest candidates of a rung, and for those that went on."""
    title = f"{title}, {rung.num_problems} problems"
    shown = plain_table(title, "speed-up", "95 %", "right", "lost", "points at most")
    shown.add_column("", no_wrap=True)
    alone = percent(rung.baseline_right / max(1, rung.num_problems))
    shown.add_row(f"{BASELINE} (the target alone)", "1.00x", "", alone, "", "", "")
    rows = [item for place, item in enumerate(rung.results) if place < MAX_SHOWN or not item.dropped]
    for item in rows:
        why = f"dropped: {item.dropped}" if item.dropped else ""
        shown.add_row(*_cells(item), "chosen" if item is chosen else why)
    if len(rows) < len(rung.results):
        shown.add_row(f"and {len(rung.results) - len(rows)} more, dropped", *[""] * 6)
    return shown


def _cells(item: CandidateResult) -> tuple[str, ...]:
    speed = item.speedup
    return (
        item.candidate.name,
        NONE if speed is None else times_text(speed.value),
        NONE if speed is None else f"{ratio_text(speed.low)}-{ratio_text(speed.high)}",
        percent(item.num_right / max(1, item.num_problems)),
        str(item.num_lost),
        "exact" if item.candidate.is_exact else f"{100 * item.loss_upper:.2f}",
    )


# Verifiers ---------------------------------------------------------------------------------------


def show_verifier_tuning(found: VerifierTuning, screen: Screen, *, plot: bool) -> int:
    """Print the thresholds and the conclusion, or both as JSON; return the exit code."""
    trials, folder = found
    code = EXIT_NONE_SAFE if trials.chosen is None else 0
    if screen.as_json:
        screen.write_json({**trials.to_dict(), "output": str(folder)}, indent=None)
        return code
    screen.out.print(_threshold_table(trials))
    screen.out.print(calibration_report.conclusion(trials), soft_wrap=True)
    if trials.chosen is not None:
        use: Path = folder / calibration_report.SETTINGS
        screen.out.print(f"Use it with: --config {use}", soft_wrap=True)
    screen.say(f"Results: {folder / calibration_report.CURVES if plot else folder}")
    return code


def _threshold_table(found: ThresholdTrials) -> Table:
    """Return one row for each threshold that was tried."""
    headings = ("solved", "steps by the draft", "alpha_step", "right", "lost", "points at most", "")
    shown = plain_table("threshold", *headings, wraps=True)
    for trial in found.trials:
        shown.add_row(
            f"{trial.threshold:g}",
            str(trial.num_solved),
            percent(trial.drafted_steps),
            ratio_text(trial.accepted),
            percent(trial.num_right / trial.num_problems),
            str(trial.num_lost),
            f"{100 * found.test.bound(trial):.2f}",
            "passes" if found.test.passes(trial) else "fails",
        )
    return shown
