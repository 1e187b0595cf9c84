"""The tables and sentences about an evaluation, from real metrics of made-up outcomes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from rich.console import Console

from reason_spec.cli.questions import answer_line
from reason_spec.cli.results_table import notes, paired_lines, print_metrics
from reason_spec.cli.screen import Screen
from reason_spec.evaluation.metrics import RunMetrics, measure
from reason_spec.evaluation.outcome import AnswerUsage, Outcome, StepRecord
from reason_spec.types import Usage
from tests.evaluation.test_store import make_outcome

BOTH = ("autoregressive", "lookahead")


def outcomes(*, samples: int = 1, tasks: Iterable[str] = ("gsm8k",), **changes: object) -> list[Outcome]:
    """Lookahead takes half the time, and is wrong at the first problem."""
    return [
        make_outcome(
            number,
            strategy=strategy,
            sample=sample,
            **{
                "id": f"{task}:p{number}",
                "task": task,
                "index": 8 * place + number,
                "tokens": 10,
                "seconds": (2.0 if strategy == "autoregressive" else 1.0) * (1 + number / 10),
                "correct": not (strategy == "lookahead" and number == 0),
                **changes,
            },
        )
        for place, task in enumerate(tasks)
        for number in range(8)
        for sample in range(samples)
        for strategy in BOTH
    ]


def shown(metrics: RunMetrics, *, width: int = 100, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)
    screen = Screen()
    screen.out = console
    print_metrics(metrics, screen)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def row(text: str, name: str) -> str:
    return next(line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(name))


def test_one_task_has_one_table_without_rows_that_say_nothing() -> None:
    text = shown(measure(outcomes(), BOTH))
    assert re.fullmatch(r"100\.0 % +87\.5 %", row(text, "accuracy "))
    assert re.fullmatch(r"8 x 1 +8 x 1", row(text, "problems x samples"))
    assert re.match(r"1\.00x +2\.00x \(", row(text, "speed-up, paired"))
    for absent in ("pass@", "majority@", "cut at", "after a failure", "task gsm8k"):
        assert absent not in text


def test_rows_appear_where_there_is_something_to_say() -> None:
    metrics = measure(outcomes(samples=4, failed_tries=("trouble",), finish="length"), BOTH)
    text = shown(metrics)
    assert "accuracy (avg@4)" in text
    for name in ("pass@2", "pass@4", "majority@4"):
        assert row(text, name)
    assert "pass@3" not in text
    assert re.fullmatch(r"32 +32", row(text, "cut at the token limit"))
    assert re.fullmatch(r"32 +32", row(text, "answered after a failure"))


def test_several_tasks_have_a_table_each_and_one_together() -> None:
    text = shown(measure(outcomes(tasks=("gsm8k", "aime")), BOTH))
    headings = [line for line in text.splitlines() if line.startswith(("task ", "all tasks"))]
    assert headings == ["task gsm8k", "task aime", "all tasks together"]


def test_on_a_narrow_terminal_no_number_is_cut() -> None:
    metrics = measure(outcomes(), BOTH)
    narrow = shown(metrics, width=40, terminal=True)
    assert narrow.count("loss class") == 2
    assert "…" not in narrow


def test_a_pair_is_told_with_its_interval_test_and_warning() -> None:
    (first, *rest) = paired_lines(measure(outcomes(), BOTH))
    assert first.startswith("lookahead against autoregressive: 8 of 8 answers have the same tokens; ")
    assert "12.5 points of accuracy lost on 8 problems (0 better, 1 worse, interval " in first
    assert "exact McNemar p = 1)" in first
    assert re.search(r"the loss is at most \d+\.\d points with 95 % confidence\.$", first)
    assert rest
    assert all(line.startswith("  ") for line in rest)


def test_pairs_timed_in_different_starts_are_mentioned() -> None:
    made = outcomes()
    moved = [make_outcome(0, strategy=BOTH[1], id="gsm8k:p0", task="gsm8k", tokens=10, session="later")]
    kept = [item for item in made if item.key != moved[0].key]
    assert any(
        "1 of 8 pairs were timed in different starts of the command" in line
        for line in paired_lines(measure([*kept, *moved], BOTH))
    )


def test_notes_say_how_seconds_and_grades_were_made() -> None:
    said = " ".join(notes(measure(outcomes(concurrency=4, correct=None), BOTH)))
    assert "batch of 4 problems divided by its size" in said
    assert "16 answers could not be compared" in said


def test_three_strategies_fit_a_hundred_columns() -> None:
    token = [
        make_outcome(number, strategy="prompt_lookup", id=f"gsm8k:p{number}", task="gsm8k")
        for number in range(8)
    ]
    text = shown(measure([*outcomes(), *token], (*BOTH, "prompt_lookup")))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_one_answer_has_its_numbers_on_one_line() -> None:
    step = StepRecord("text", "draft", 4, "eos", None, (1, 2, 3, 4))
    target = Usage(num_drafted_tokens=10, num_accepted_draft_tokens=6)
    work = AnswerUsage(target, Usage(), {"accept": 2, "reject": 1, "unknown": 0}, 0.0)
    line = answer_line(make_outcome(0, steps=(step,), tokens=4, seconds=1.0, usage=work))
    assert line == "4 tokens, 1.00 s, 4.0 tokens/s | steps: draft 1 | alpha_step 0.67 | alpha_token 0.60"
