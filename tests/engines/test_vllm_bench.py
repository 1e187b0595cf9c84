"""The recipe for ``vllm bench serve``, as it stands, against a server of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reason_spec.engines.vllm.arguments import installed_version
from tests.server.processes import ROOT, serving

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed; `make cpu` installs it"),
    pytest.mark.timeout(900),
]
RECIPE = ROOT / "examples" / "harness" / "vllm_bench.sh"


def test_the_recipe_measures_latency_and_acceptance(tmp_path: Path) -> None:
    with serving("--max-tokens", "256", cwd=tmp_path) as server:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "MODEL": "says",
            "REQUESTS": "3",
        }
        done = subprocess.run(
            ["bash", str(RECIPE), "--disable-tqdm"], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads((tmp_path / "results" / "vllm_bench.json").read_text())
        assert found["completed"] == 3
        assert 0 < found["spec_decode_accepted_tokens"] <= found["spec_decode_draft_tokens"]
        rates = found["spec_decode_per_position_acceptance_rates"]
        assert rates[0] > 0.5, "the pair's drafts are nearly always right"
        assert rates == sorted(rates, reverse=True)
