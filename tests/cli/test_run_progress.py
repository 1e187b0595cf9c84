from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from reason_spec.cli.run_progress import Board, LiveProgress, PlainProgress, RunProgress, progress_view
from reason_spec.evaluation.outcome import Outcome
from tests.evaluation.test_store import make_outcome

BOTH = ("autoregressive", "lookahead")
TOTALS = {("gsm8k", name): 4 for name in BOTH} | {("aime", name): 2 for name in BOTH}


def outcome(
    number: int,
    strategy: str,
    *,
    task: str = "gsm8k",
    sample: int = 0,
    correct: bool = True,
    seconds: float = 1.0,
) -> Outcome:
    return make_outcome(
        number, strategy=strategy, task=task, sample=sample, correct=correct, seconds=seconds, tokens=10
    )


def some() -> list[Outcome]:
    return [
        outcome(0, "autoregressive", seconds=4.0),
        outcome(0, "lookahead", seconds=1.0),
        outcome(1, "autoregressive", seconds=2.0, correct=False),
        outcome(1, "lookahead", seconds=1.0),
        outcome(2, "lookahead", seconds=90.0, task="aime"),
    ]


def cells(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row.values())


def test_rows_count_by_task_and_strategy_and_compare_what_both_have() -> None:
    board = Board(TOTALS)
    for item in some():
        board.add(item)
    assert [cells(row)[:8] for row in board.rows()] == [
        ("gsm8k", "autoregressive", "2/4", "50.0 %", "1.3-98.7 %", "3.00", "3.3", "1.00x"),
        ("gsm8k", "lookahead", "2/4", "100.0 %", "15.8-100.0 %", "1.00", "10.0", "3.00x"),
        ("aime", "autoregressive", "0/2", "-", "-", "-", "-", "-"),
        ("aime", "lookahead", "1/2", "100.0 %", "2.5-100.0 %", "90.0", "0.1", "-"),
    ]


def test_samples_of_a_problem_count_as_one() -> None:
    board = Board({("gsm8k", "autoregressive"): 4})
    for sample in range(4):
        board.add(outcome(0, "autoregressive", sample=sample, correct=sample > 0))
    assert cells(board.rows()[0])[2:5] == ("4/4", "75.0 %", "0.6-100.0 %")


def test_what_the_run_does_not_ask_for_is_passed_over() -> None:
    board = Board({("gsm8k", "autoregressive"): 1})
    board.add(outcome(0, "oracle"))
    assert board.rows()[0]["done"] == "0/1"


def follow(*, terminal: bool, done: Sequence[Outcome]) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, no_color=True)
    view = progress_view(console, TOTALS, done, quiet=False)
    assert isinstance(view, LiveProgress if terminal else PlainProgress)
    with view:
        for item in some()[len(done) :]:
            view.add(item)
        if isinstance(view, LiveProgress):
            console.print(view._render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_on_a_terminal_the_table_stands_under_a_bar_with_the_time_left() -> None:
    shown = follow(terminal=True, done=some()[:2])
    assert "5/12 answers" in shown
    assert re.search(r"\d:\d\d:\d\d left", shown)
    assert re.search(r"gsm8k +lookahead +2/4 +100\.0 % +15\.8-100\.0 % +1\.00 +10\.0 +3\.00x", shown)


def test_in_a_log_a_line_tells_of_all_rows_that_have_begun() -> None:
    (line,) = follow(terminal=False, done=some()[:4]).splitlines()
    assert line.startswith(
        "5/12 answers, 0:00:00 left; gsm8k autoregressive 2/4, 50.0 % right, 3.00 s, 3.3 tokens/s, 1.00x"
    )
    assert "aime lookahead 1/2" in line
    assert "aime autoregressive" not in line


def test_quiet_shows_nothing() -> None:
    console = Console(file=io.StringIO())
    assert type(progress_view(console, TOTALS, [], quiet=True)) is RunProgress


@pytest.mark.parametrize("terminal", [True, False])
def test_before_the_first_answer_a_terminal_shows_the_bar_and_a_log_nothing(terminal: bool) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=120, no_color=True)
    view = progress_view(console, TOTALS, [], quiet=False)
    with view:
        if isinstance(view, LiveProgress):
            console.print(view._render())
    if terminal:
        assert "0/12 answers" in shown.getvalue()
        assert "-:--:-- left" in shown.getvalue()
    else:
        assert shown.getvalue() == ""


def test_a_narrow_terminal_has_fewer_columns_and_whole_cells() -> None:
    for width, gone in (
        (120, ()),
        (90, ("95 %", "alpha_token")),
        (70, ("95 %", "alpha_token", "alpha_step")),
    ):
        console = Console(file=io.StringIO(), force_terminal=True, width=width, no_color=True)
        console.print(LiveProgress(console, TOTALS, some())._table())
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert "…" not in shown
        assert [
            name for name in ("95 %", "alpha_token", "alpha_step", "speed-up") if name not in shown
        ] == list(gone)
