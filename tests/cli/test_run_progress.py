from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from reason_spec.cli import run_progress as module
from reason_spec.cli.run_progress import Board, run_progress
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


def test_rows_count_by_task_and_strategy_and_compare_what_both_have() -> None:
    board = Board(TOTALS, some())
    assert [(board.name(key), board.num_done(key), board.numbers(key)) for key in TOTALS] == [
        ("gsm8k autoregressive", 2, "50.0 % right, 3.00 s, 3.3 tokens/s, 1.00x"),
        ("gsm8k lookahead", 2, "100.0 % right, 1.00 s, 10.0 tokens/s, 3.00x"),
        ("aime autoregressive", 0, ""),
        ("aime lookahead", 1, "100.0 % right, 90.0 s, 0.1 tokens/s, -"),
    ]


def test_samples_of_a_problem_count_as_one() -> None:
    key = ("gsm8k", "autoregressive")
    samples = [outcome(0, "autoregressive", sample=sample, correct=sample > 0) for sample in range(4)]
    samples.append(outcome(1, "autoregressive", correct=False))
    board = Board({key: 8}, samples)
    assert (board.num_done(key), board.name(key)) == (5, "autoregressive")
    assert board.numbers(key).startswith("37.5 % right")


def follow(*, terminal: bool, done: Sequence[Outcome]) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, no_color=True)
    with run_progress(console, TOTALS, done, quiet=False) as add:
        for item in some()[len(done) :]:
            add(item)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_on_a_terminal_each_strategy_has_a_bar_with_its_numbers() -> None:
    shown = follow(terminal=True, done=some()[:2])
    assert re.search(r"gsm8k lookahead .* 2/4 .*100\.0 % right, 1\.00 s, 10\.0 tokens/s, 3\.00x", shown)
    assert re.search(r"aime autoregressive .* 0/2 ", shown)


def test_in_a_log_a_line_tells_of_all_rows_that_have_begun() -> None:
    (line,) = follow(terminal=False, done=some()[:4]).splitlines()
    assert line.startswith(
        "5/12 answers, 0:00:00 left; gsm8k autoregressive 2/4, 50.0 % right, 3.00 s, 3.3 tokens/s, 1.00x"
    )
    assert "aime lookahead 1/2" in line
    assert "aime autoregressive" not in line


@pytest.mark.parametrize(("concurrency", "left"), [(1, "1:13:20"), (4, "0:18:20")])
def test_the_first_answer_of_a_group_has_not_taken_the_time_of_all(
    monkeypatch: pytest.MonkeyPatch, concurrency: int, left: str
) -> None:
    clock = iter([0.0, 400.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    console = Console(file=io.StringIO(), width=200)
    with run_progress(console, TOTALS, [], quiet=False) as add:
        add(replace(outcome(0, "lookahead", seconds=400.0 / concurrency), concurrency=concurrency))
    assert console.file.getvalue().startswith(f"1/12 answers, {left} left")  # type: ignore[attr-defined]


def test_quiet_shows_nothing() -> None:
    console = Console(file=io.StringIO())
    with run_progress(console, TOTALS, [], quiet=True) as add:
        add(some()[0])
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
