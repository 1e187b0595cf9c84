"""The recipe for lm-evaluation-harness, as it stands, against a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.harness

from tests.server.processes import ROOT, ServeProcess

RECIPE = ROOT / "examples" / "harness" / "lm_eval.sh"


def test_the_recipe_scores_the_served_pair(pair_server: ServeProcess, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OPENAI_BASE_URL": f"{pair_server.url}/v1",
        "MODEL": "says",
        "HF_HOME": str(tmp_path / "cache"),
        "HF_DATASETS_OFFLINE": "1",
        "HOME": str(tmp_path),
    }
    before = len(pair_server.log())
    done = subprocess.run(
        ["bash", str(RECIPE), "--limit", "4"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (results,) = (tmp_path / "results").rglob("results_*.json")
    scored = json.loads(results.read_text())["results"]["arithmetic_local"]
    (samples,) = (tmp_path / "results").rglob("samples_*.jsonl")
    records = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(records) == 4
    assert scored["exact_match,last-number"] == sum(record["exact_match"] for record in records) / 4 > 0
    for record in records:
        # The last number of the answer is what was scored, and not one of the steps before it.
        assert re.findall(r"-?[0-9]+", record["resps"][0][0])[-1] == record["filtered_resps"][0]
    assert any("The answer is" in record["resps"][0][0] for record in records)
    served = [line for line in pair_server.log()[before:] if line.get("path") == "/v1/chat/completions"]
    assert [line["status"] for line in served] == [200] * 4
