"""The recipe for GuideLLM, as it stands, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("guidellm")
pytestmark = pytest.mark.harness

from tests.server.processes import ROOT, ServeProcess

RECIPE = ROOT / "examples" / "harness" / "guidellm.sh"


def test_the_recipe_measures_each_load(pair_server: ServeProcess, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OPENAI_BASE_URL": f"{pair_server.url}/v1",
        "MODEL": "says",
        "REQUESTS": "3",
        "STREAMS": "[1, 2]",
        "HF_DATASETS_OFFLINE": "1",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", str(RECIPE), "--disable-progress"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results" / "guidellm.json").read_text())
    assert len(found["benchmarks"]) == 2
    for benchmark in found["benchmarks"]:
        totals = benchmark["metrics"]["request_totals"]
        # On a busy machine GuideLLM may end a load before it has read the last answer.
        assert (totals["successful"] + totals["incomplete"], totals["errored"]) == (3, 0)
        assert totals["successful"] >= 2
        answers = benchmark["requests"]["successful"]
        assert all(0 < answer["output_tokens"] <= 256 for answer in answers)
        assert all(answer["time_to_first_token_ms"] > 0 for answer in answers)
