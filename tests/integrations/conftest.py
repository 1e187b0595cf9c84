"""Models and servers that the tests of wrappers and recipes share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reason_spec.integrations.base import InProcess
from tests.server.processes import ServeProcess, serving

# Before any framework is imported: none may report to its makers or fetch lists.
os.environ |= {
    "ANONYMIZED_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}

SCRIPT = Path(__file__).parent / "script.yaml"


@pytest.fixture(scope="session")
def models() -> Iterator[InProcess]:
    """The script, drafted and checked."""
    scripted: dict[str, Any] = {"target__kind": "scripted", "draft__kind": "scripted"}
    with InProcess(
        target__model=str(SCRIPT), draft__model=str(SCRIPT), verifier__name="exact", **scripted
    ) as opened:
        yield opened


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A script that thinks before it answers."""
    script = tmp_path_factory.mktemp("thinker") / "thinks.yaml"
    script.write_text('{answers: {"?": "Hm.\\n</think>\\n\\nYes."}, thinking: true}')
    with InProcess(
        target__model=str(script), target__kind="scripted", strategy__name="autoregressive"
    ) as opened:
        yield opened


@pytest.fixture(scope="session")
def pair() -> Iterator[InProcess]:
    """The demonstration pair."""
    with InProcess(sampling__max_tokens=64, strategy__planner=False) as opened:
        yield opened


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The script behind a server."""
    options = ["--target", str(SCRIPT), "--strategy", "autoregressive", "--set", "target.kind=scripted"]
    with serving(*options, cwd=tmp_path_factory.mktemp("scripted")) as server:
        yield server


@pytest.fixture(scope="session")
def pair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The demonstration pair behind a server."""
    with serving("--max-tokens", "64", cwd=tmp_path_factory.mktemp("pair")) as server:
        yield server
