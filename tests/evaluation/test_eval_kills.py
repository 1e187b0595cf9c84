"""An evaluation that is killed at random moments: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.timeline import read_timelines
from tests.evaluation.problems import build_world

ROOT = Path(__file__).parents[2]
STRATEGIES = ("autoregressive", "lookahead")
KILLED = -signal.SIGKILL


class Forks:
    """Starts `eval` in processes of its own, and kills some."""

    def __init__(self, folder: Path, num_problems: int, num_samples: int) -> None:
        self.folder = folder
        self.world = build_world(folder / "world", num_problems)
        self.num_answers = num_problems * num_samples * len(STRATEGIES)
        self._samples = str(num_samples)
        self._log = folder / "log"
        names = {name: value for name, value in os.environ.items() if not name.startswith("REASON_SPEC_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.evaluation.forked"], cwd=folder, text=True, start_new_session=True,
            env={**names, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def close(self) -> None:
        self._process.communicate()

    def run(self, output: str, kill_after: float | None = None) -> int:
        """Run the command, for so many seconds at the most; return its exit code."""
        arguments = [
            "eval", str(self.world.problems), *self.world.options("--compare", ",".join(STRATEGIES)),
            "--samples", self._samples, "--output", output,
        ]  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([arguments, str(self._log)]) + "\n")
        self._process.stdin.flush()
        pid = self._read()
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._read()

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    @property
    def said(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def starting(folder: Path, num_problems: int) -> Iterator[Forks]:
    forks = Forks(folder, num_problems, num_samples=2)
    try:
        yield forks
    finally:
        forks.close()


def stored(folder: Path) -> dict[UnitKey, str]:
    """Return the answers of a folder; none may be there twice."""
    records: list[dict[str, Any]] = [
        json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()
    ]
    found = {
        UnitKey(item["id"], item["sample"], item["strategy"]): f"{item['response']} {item['correct']}"
        for item in records
    }
    assert len(found) == len(records), "an answer is stored twice"
    return found


def whole_lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


def killed_runs(forks: Forks, num_kills: int, seed: int) -> Iterator[Path]:
    """Kill runs at random moments, so often in all; yield the folder of each that got to its end."""
    started = time.monotonic()
    assert forks.run("timed") == 0, forks.said
    seconds = time.monotonic() - started

    moments = random.Random(seed)
    num_done, num_runs = 0, 0
    while num_done < num_kills:
        name = f"killed-{num_runs}"
        num_runs += 1
        results = forks.folder / name / "results.jsonl"
        code = KILLED
        while code == KILLED and num_done < num_kills:
            before = whole_lines(results)
            # From the first import to several answers; later starts have the earlier answers to read.
            code = forks.run(name, kill_after=moments.uniform(0.0, 0.6 * seconds))
            assert code in (KILLED, 0), forks.said
            num_done += code == KILLED
            assert whole_lines(results)[: len(before)] == before, "what was stored has changed"
        if code == KILLED:
            assert forks.run(name) == 0, forks.said
        yield forks.folder / name


def told(folder: Path) -> dict[UnitKey, str]:
    """What the timelines say of each answer's text."""
    return {
        item.key: "".join(mark.text for mark in item.marks if mark.kind == "final")
        for item in read_timelines(folder)
    }


def is_complete(folder: Path) -> bool:
    summary = json.loads((folder / "summary.json").read_text())
    return bool(summary["complete"]) and summary["num_missing"] == 0


@pytest.mark.parametrize(
    ("num_problems", "num_kills"), [(15, 8), pytest.param(40, 100, marks=pytest.mark.slow)]
)
def test_random_kills_lose_nothing_and_double_nothing(
    num_problems: int, num_kills: int, tmp_path: Path
) -> None:
    with starting(tmp_path, num_problems=num_problems) as forks:
        assert forks.run("whole") == 0, forks.said
        expected, texts = stored(forks.folder / "whole"), told(forks.folder / "whole")
        assert len(expected) == forks.num_answers
        assert all(answer.startswith(texts[key]) for key, answer in expected.items())
        for folder in killed_runs(forks, num_kills, seed=num_kills):
            assert stored(folder) == expected
            assert told(folder) == texts
            assert all(texts.values())
            assert is_complete(folder)
