"""The command with the demonstration pair: real models in worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.test_process import (
    BOTH,
    PATIENCE_SECONDS,
    answers,
    command,
    environment,
    num_lines,
    run,
    start,
    wait_for_lines,
)

SAMPLE = ("solve", "--sample")
SHORT = ("--max-tokens", "60")
# Without the measurement of both models at the start.
UNPLANNED = ("--set", "strategy.planner=false", "--set", 'load_control.use="off"')


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_under_the_exact_verifier_lookahead_writes_the_targets_tokens(tmp_path: Path) -> None:
    result = run(
        *SAMPLE,
        *UNPLANNED,
        *("--limit", "4", "--verifier", "exact", "--compare", BOTH, "--output", "out"),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "4 of 4 answers have the same tokens" in result.stdout
    by_strategy: dict[str, dict[str, list[int]]] = {name: {} for name in BOTH.split(",")}
    for record in records(tmp_path / "out"):
        tokens = [token for step in record["steps"] for token in step["token_ids"]]
        by_strategy[record["strategy"]][record["id"]] = tokens
        assert len(tokens) == record["tokens"] > 0
        assert record["usage"]["target"]["num_passes"] > 0
    assert by_strategy["lookahead"] == by_strategy["autoregressive"]
    ahead = [record for record in records(tmp_path / "out") if record["strategy"] == "lookahead"]
    assert sum(record["usage"]["draft"]["num_generated_tokens"] for record in ahead) > 0
    assert sum(sum(record["usage"]["verdicts"].values()) for record in ahead) > 0


def test_a_question_is_answered_out_of_the_box(tmp_path: Path) -> None:
    question = "Leo has 8 flowers. Dan has 3 flowers more than Leo does. How many flowers does Dan have?"
    result = run("solve", question, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    *steps, numbers = result.stdout.splitlines()
    assert any(line.startswith(("draft    | ", "target   | ")) for line in steps)
    assert "tokens/s | steps: " in numbers
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_sampled_run_goes_on_to_the_same_answers_and_leaves_no_worker(tmp_path: Path) -> None:
    limit = 6
    sampled = ("--temperature", "0.8", "--seed", "3", "--verifier", "exact")
    arguments = (*SAMPLE, *SHORT, *sampled, "--limit", str(limit))
    whole = run(*arguments, "--output", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    process = start(*arguments, "--output", "killed", cwd=tmp_path)
    wait_for_lines(tmp_path / "killed" / "results.jsonl", 2, process)
    process.kill()
    process.communicate()
    assert 2 <= num_lines(tmp_path / "killed" / "results.jsonl") < limit, "it was not killed in the middle"
    assert left_in_session(process.pid) == []
    again = run(*arguments, "--output", "killed", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert answers(tmp_path / "killed" / "results.jsonl") == answers(tmp_path / "whole" / "results.jsonl")


def test_control_c_reaches_the_workers_too_and_nobody_complains(tmp_path: Path) -> None:
    """A terminal interrupts every process of the command at once."""
    process = start(*SAMPLE, *SHORT, *UNPLANNED, "--verifier", "exact", "--output", "out", cwd=tmp_path)
    wait_for_lines(tmp_path / "out" / "results.jsonl", 1, process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, errors.decode()
    assert "Traceback" not in errors.decode()
    assert "the same command goes on from there" in errors.decode()
    assert left_in_session(process.pid) == []


def left_in_session(session: int) -> list[psutil.Process]:
    """Return what still runs of a killed command once its workers had time to notice."""
    deadline = time.monotonic() + 30
    while True:
        left = [process for process in psutil.process_iter() if _session_of(process) == session]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _session_of(process: psutil.Process) -> int | None:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return os.getsid(process.pid) if alive else None
    except (psutil.Error, OSError):
        return None


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_is_not_there_is_one_line(role: str, tmp_path: Path) -> None:
    result = run(*SAMPLE, "--limit", "1", f"--{role}", "./nowhere", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "nowhere" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_long_prompt_fails_alone_and_the_rest_is_solved(tmp_path: Path) -> None:
    lines = [
        {"id": "short", "question": "Leo has 8 flowers and gets 2. How many?", "answer": "10"},
        {"id": "long", "question": "Leo has 8 flowers. " * 2000 + "How many?", "answer": "8"},
        {"id": "last", "question": "Ana has 3 pens and buys 4. How many?", "answer": "7"},
    ]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = subprocess.run(
        command("solve", "mixed.jsonl", *SHORT, *UNPLANNED, "--output", "out"),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert "problem 'long', lookahead: not answered" in " ".join(result.stderr.split())
    assert [record["id"] for record in records(tmp_path / "out")] == ["short", "last"]


@pytest.mark.slow
def test_drafted_steps_are_labelled_by_what_the_target_makes_of_them(tmp_path: Path) -> None:
    collecting = ("router", "collect", "--generate", "4", "--generate-seed", "3", "--rollouts", "1", "--json")
    result = run(*collecting, "--output", "labels", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    counts = json.loads(result.stdout)
    labels = [json.loads(line) for line in (tmp_path / "labels" / "labels.jsonl").read_text().splitlines()]
    steps = [step for line in labels for step in line["steps"]]
    assert (counts["problems"], counts["steps"]) == (4, len(steps))
    for step in steps:
        assert (step["value_own"] is None) == (step["drafted"] == step["own"])
        assert len(step["logprobs"]) == len(step["has_digit"]) > 0
        assert 0 <= step["reward"] <= 1
    again = run(*collecting, "--output", "labels", cwd=tmp_path)
    assert json.loads(again.stdout)["steps"] == len(steps)
