"""Choosing a build of PyTorch: no GPU seen means that no CUDA package may be asked for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_torch.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_torch", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("echo 'GPU 0: Some Model (UUID: GPU-1)'", True),
        ("echo 'No devices were found'", False),
        ("echo 'GPU 0: Some Model' >&2; exit 9", False),
    ],
)
def test_a_gpu_is_seen_where_the_driver_lists_one(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, seen: bool
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.sees_nvidia_gpu() is seen


def test_no_gpu_is_seen_without_the_driver(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.sees_nvidia_gpu() is False


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux", reason="elsewhere the plain build is a CPU build")
def test_where_no_cpu_build_is_found_it_stops_and_says_what_to_do(tmp_path: Path) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    venv.create(tmp_path / "environment", with_pip=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PATH": str(tmp_path)}
    command = [str(python), str(SCRIPT)]
    result = subprocess.run(command, env=kept | nowhere, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "(cpu build)" in result.stdout
    assert "PIP_EXTRA_INDEX_URL" in result.stderr


def test_an_importable_torch_is_kept() -> None:
    command = [sys.executable, str(SCRIPT), "--version", "0.0.1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"PyTorch {importlib.metadata.version('torch')}\n"


def test_an_installed_torch_that_fits_is_not_replaced() -> None:
    found = importlib.metadata.version("torch")
    command = [sys.executable, str(SCRIPT), "--replace", "--version", found.partition("+")[0]]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == f"PyTorch {found}\n", result.stderr


@pytest.mark.parametrize(
    ("found", "build", "is_right"),
    [
        ("2.13.0+cpu", "auto", True),
        ("2.13.0+cu130", "auto", True),
        ("2.13.0+cpu", "cpu", True),
        ("2.13.0", "gpu", True),
        ("2.13.0+cu130", "gpu", True),
        ("2.13.0+cpu", "gpu", False),
        ("2.13.0+cu130", "cpu", False),
        ("2.12.1+cpu", "auto", False),
        ("2.12.1+cpu", "cpu", False),
    ],
)
def test_a_torch_of_another_version_or_build_does_not_fit(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, found: str, build: str, is_right: bool
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert script.fits(found, build, "2.13.0") is is_right


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("arguments", "replaces"),
    [
        (["install"], False),
        (["install", "TORCH=gpu"], True),
        (["install", "TORCH_VERSION=2.12.1"], True),
        (["lint", "TORCH=cpu"], False),
    ],
)
def test_a_build_that_is_named_replaces_an_installed_one(
    tmp_path: Path, arguments: list[str], replaces: bool
) -> None:
    for name in (".created", ".uv", ".installed"):
        (tmp_path / name).touch()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "MAKE"))
    }
    command = ["make", "--dry-run", f"VENV={tmp_path}", *arguments]
    result = subprocess.run(
        command, cwd=SCRIPT.parents[1], env=environment, capture_output=True, text=True, check=True
    )
    assert ("install_torch.py" in result.stdout) is ("--replace" in result.stdout) is replaces
