"""Runs the command in this process and reads what it left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from reason_spec.cli.main import app
from tests.evaluation.problems import World, build_world

BOTH = "autoregressive,lookahead"


def enter_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Make a folder with scripted models the working directory, and the terminal 80 columns wide."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    return build_world(folder / "world")


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def succeed(*arguments: str, stdin: str | None = None) -> Result:
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments: str, code: int = 2, stdin: str | None = None) -> str:
    """Run a command that must fail with one line on standard error and nothing on standard output."""
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def settings_of(folder: Path) -> dict[str, Any]:
    content = yaml.safe_load((folder / "settings.yaml").read_text())
    assert isinstance(content, dict)
    return content
