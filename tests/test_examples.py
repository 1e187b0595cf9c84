"""The examples run as they stand, on the demonstration pair."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


# Short answers, and no measurement of the models at the start.
SETTINGS = {
    "REASON_SPEC_SAMPLING__MAX_TOKENS": "80",
    "REASON_SPEC_STRATEGY__PLANNER": "false",
    "REASON_SPEC_LOAD_CONTROL__USE": "off",
}


def run_example(name: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **SETTINGS}
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], cwd=folder, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_who_wrote_each_step_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    lines = run_example(name, tmp_path).splitlines()
    steps = [line for line in lines if line.startswith(("[draft] ", "[target] "))]
    assert steps
    assert all(len(line.split()) > 1 for line in steps)
    assert " s" in lines[-1]
    assert list(tmp_path.iterdir()) == []
