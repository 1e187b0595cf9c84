"""Runs with the demonstration pair, killed at random moments: nothing is lost, and no process stays."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.test_process import PATIENCE_SECONDS, answers, run, start
from tests.server.processes import until

NUM_KILLS = 3
OPTIONS = (
    "--sample", "--limit", "3", "--max-tokens", "32", "--compare", "autoregressive,lookahead",
    "--verifier", "exact",
)  # fmt: skip


def killed_after(seconds: float, *arguments: str, cwd: Path) -> tuple[bool, list[psutil.Process]]:
    """Run a command for so long; return whether it was killed, and the processes that it had started."""
    process = start(*arguments, cwd=cwd)
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    workers: list[psutil.Process] = []
    if process.poll() is None:
        workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode != 0, workers


def whole_lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
@pytest.mark.parametrize("name", ["solve", "eval"])
def test_random_kills_of_the_pair_lose_nothing_and_leave_nothing(tmp_path: Path, name: str) -> None:
    began = time.monotonic()
    whole = run(name, *OPTIONS, "--output", "whole", cwd=tmp_path)
    seconds = time.monotonic() - began
    assert whole.returncode == 0, whole.stderr
    expected = answers(tmp_path / "whole" / "results.jsonl")
    assert len(expected) == 3 * 2

    moments = random.Random(name)
    results = tmp_path / "out" / "results.jsonl"
    num_kills = 0
    while num_kills < NUM_KILLS:
        before = whole_lines(results)
        killed, workers = killed_after(
            moments.uniform(0.1, 0.9) * seconds, name, *OPTIONS, "--output", "out", cwd=tmp_path
        )
        num_kills += killed
        if not killed:
            # It was faster than the first.
            seconds /= 2
        assert whole_lines(results)[: len(before)] == before
        until(lambda workers=workers: not any(worker.is_running() for worker in workers))  # type: ignore[misc]
    last = run(name, *OPTIONS, "--output", "out", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert answers(results) == expected
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["complete"] is True
