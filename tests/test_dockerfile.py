"""The Dockerfile without a container tool: what it names exists, and its steps run where they can."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from typing import Any

import pytest

from reason_spec.settings.server import ServerSettings
from tests.cli_runner import fail

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLING = (ROOT / "docs" / "how-to" / "install.md").read_text()
PYTHON = "/opt/reason-spec/bin/python"


def texts(keyword: str) -> list[str]:
    """Return what follows a keyword, for each such instruction; continued lines are one."""
    code = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))
    instructions = re.sub(r"\\\n\s*", "", code).splitlines()
    return [line.partition(" ")[2] for line in instructions if line.startswith(f"{keyword} ")]


def arguments() -> dict[str, str]:
    """Return the build arguments with their defaults."""
    return dict(re.findall(r"^(\w+)=(.*)$", "\n".join(texts("ARG")), re.MULTILINE))


def healthcheck() -> list[str]:
    (text,) = texts("HEALTHCHECK")
    command = json.loads(text.partition("CMD ")[2])
    assert isinstance(command, list)
    return command


def needed_files() -> Iterator[PurePath]:
    """Yield what is copied by name, and what the packages are built from."""
    for text in texts("COPY"):
        if not text.startswith("--from="):
            yield from map(PurePath, text.split()[:-1])
    for name in ("pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "reason_spec"):
        yield PurePath(name)
    for link in (ROOT / "reason_spec").iterdir():
        if link.is_symlink():
            yield link.resolve().relative_to(ROOT.resolve())
    yield PurePath("reason-spec-weights", "pyproject.toml")


def test_what_is_copied_is_there_and_not_left_out_of_the_context() -> None:
    left_out = (ROOT / ".dockerignore").read_text().split()
    for needed in needed_files():
        assert (ROOT / needed).exists(), needed
        for folder in (needed, *needed.parents):
            assert not [pattern for pattern in left_out if fnmatch(str(folder), pattern)], needed


def test_all_stages_agree_on_the_image_and_on_the_defaults_of_arguments() -> None:
    assert len(set(texts("ARG"))) == len(arguments())
    (image,) = {text.split()[0] for text in texts("FROM")}
    version = re.match(r"python:(3\.\d+)-slim", image)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_each_stage_declares_the_arguments_that_it_uses() -> None:
    for stage in re.split(r"^FROM ", TEXT, flags=re.MULTILINE)[1:]:
        used = set(re.findall(r"\$\{?(\w+)", stage)) - {"PATH"}
        assert used == set(re.findall(r"^ARG (\w+)", stage, re.MULTILINE))


def test_torch_has_the_version_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"\nTORCH_VERSION ?= {arguments()['TORCH_VERSION']}\n" in makefile


def test_the_arguments_that_are_described_exist_with_their_defaults() -> None:
    described = re.findall(r"^\| `([A-Z]+)` \| (?:`(\w+)` )?\|", INSTALLING, re.MULTILINE)
    assert described
    assert set(described) == set(arguments().items()) - {("TORCH_VERSION", arguments()["TORCH_VERSION"])}


def test_locks_and_extras_that_are_named_exist() -> None:
    named = re.findall(r"--build-arg (\w+)=(\w+)", TEXT + INSTALLING)
    assert named
    assert {name for name, _ in named} <= set(arguments())
    for lock in {arguments()["LOCK"], *(value for name, value in named if name == "LOCK")}:
        assert (ROOT / "requirements" / f"{lock}.txt").is_file()
    for extra in (value for name, value in named if name == "EXTRAS"):
        assert extra in PROJECT["optional-dependencies"]


@pytest.mark.parametrize("step", texts("RUN"))
def test_steps_are_right_for_the_shell(step: str) -> None:
    result = subprocess.run(["sh", "-n", "-c", step], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_step_for_torch_runs() -> None:
    (step,) = (text for text in texts("RUN") if "install_torch.py" in text)
    result = subprocess.run(
        ["sh", "-c", step.replace(PYTHON, sys.executable)],
        cwd=ROOT, env=os.environ | arguments(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("PyTorch ")


def test_the_port_is_that_of_the_server() -> None:
    port = str(ServerSettings().port)
    assert texts("EXPOSE") == [port]
    assert f"127.0.0.1:{port}/health" in healthcheck()[-1]
    assert f"docker run -p {port}:{port} " in INSTALLING


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
def test_the_health_check_fails_where_the_server_is_unhealthy(status: int, exit_code: int) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command, *options = healthcheck()
        assert command == "python"
        here = [option.replace(":8000/", f":{server.server_port}/") for option in options]
        result = subprocess.run([sys.executable, *here], capture_output=True, timeout=20, check=False)
        server.shutdown()
    assert result.returncode == exit_code, result.stderr


def test_it_starts_the_command_which_lets_in_only_those_with_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REASON_SPEC_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (entry,), (command,) = texts("ENTRYPOINT"), texts("CMD")
    (script,) = json.loads(entry)
    assert script in PROJECT["scripts"]
    assert "reason-spec keys new" in fail(*json.loads(command))
