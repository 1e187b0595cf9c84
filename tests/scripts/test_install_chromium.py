"""Installing Chromium: tried where it is possible, and never a reason to stop."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_chromium.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_chromium", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def programs(folder: Path, **scripts: str) -> str:
    """Make programs and return a search path that has these alone."""
    for name, script in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return str(folder)


def run(path: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_one_that_starts_is_kept(tmp_path: Path) -> None:
    path = programs(tmp_path, chromium="exit 0", apt_get="exit 9")
    assert run(path) == f"Chromium is there: {tmp_path / 'chromium'}\n"


def test_one_that_only_points_elsewhere_does_not_count(tmp_path: Path) -> None:
    assert "Chromium is not installed" in run(programs(tmp_path, chromium="exit 1"))


def test_without_apt_it_says_what_to_do_and_ends_well(tmp_path: Path) -> None:
    said = run(programs(tmp_path))
    assert "there is no apt-get" in said
    assert "are skipped" in said


def test_what_apt_says_is_passed_on(tmp_path: Path, script: ModuleType) -> None:
    path = programs(tmp_path, apt_get="echo 'E: no network' >&2; exit 100")
    expected = "apt-get update failed: E: no network" if os.geteuid() == 0 else "only root may install it"
    assert expected in run(path)
