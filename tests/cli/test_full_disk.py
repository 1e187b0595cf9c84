"""Commands on a full disk: an error that says what to do, nothing lost, and a run that goes on later."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_process import PATIENCE_SECONDS, answers, command, environment, run
from tests.evaluation.problems import World, build_world

STRATEGIES = ("autoregressive", "lookahead")


def run_on_full_disk(*arguments: str, cwd: Path, num_bytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=PATIENCE_SECONDS, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes)),
    )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> World:
    return build_world(tmp_path / "world", 6)


@pytest.mark.parametrize("name", ["solve", "eval"])
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    world: World, tmp_path: Path, name: str
) -> None:
    arguments = [name, str(world.problems), *world.options("--compare", ",".join(STRATEGIES))]
    whole = run(*arguments, "--output", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    expected = answers(tmp_path / "whole" / "results.jsonl")

    # Some answers fit, and what else a run writes.
    size = max(8000, (tmp_path / "whole" / "results.jsonl").stat().st_size // 2)
    stopped = run_on_full_disk(*arguments, "--output", "out", cwd=tmp_path, num_bytes=size)
    assert stopped.returncode == 2, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert "cannot be written (File too large). Its content is kept; make room" in stopped.stderr
    kept = answers(tmp_path / "out" / "results.jsonl")
    assert 0 < len(kept) < len(expected)
    assert f"{len(kept)} answers are kept in out" in stopped.stderr

    again = run(*arguments, "--output", "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    found = answers(tmp_path / "out" / "results.jsonl")
    assert found == expected
    assert kept.items() <= found.items()
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["complete"] is True
