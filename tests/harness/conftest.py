"""Servers and settings that the tests with harnesses share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.server.processes import ServeProcess, serving

# Before any of them is imported: none may report to its makers or fetch lists.
os.environ |= {
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "INSPECT_TELEMETRY": "",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture(scope="session")
def pair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The demonstration pair behind a server."""
    options = ("--max-tokens", "448", "--verifier", "exact", "--set", "strategy.planner=false")
    with serving(*options, cwd=tmp_path_factory.mktemp("pair")) as server:
        yield server
