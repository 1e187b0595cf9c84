"""The recipe for AIPerf, as it stands, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from reason_spec.pair import embedded_path
from tests.server.processes import ROOT, ServeProcess

pytestmark = pytest.mark.harness
RECIPE = ROOT / "examples" / "harness" / "aiperf.sh"
# AIPerf does not get along with inspect_ai: it has an environment of its own.
PYTHON = os.environ.get("AIPERF_PYTHON")


def test_the_recipe_measures_each_load_and_reads_the_acceptance(
    pair_server: ServeProcess, tmp_path: Path
) -> None:
    if PYTHON is None:
        pytest.skip("AIPERF_PYTHON names no interpreter with AIPerf")
    # Where the Hugging Face Hub is switched off, AIPerf does not take a folder for a tokenizer either.
    left_out = ("PYTHONPATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}",
        "OPENAI_BASE_URL": f"{pair_server.url}/v1",
        "MODEL": "says",
        "TOKENIZER": str(embedded_path("target")),
        "REQUESTS": "3",
        "STREAMS": "1 2",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", str(RECIPE)], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for streams in (1, 2):
        found = json.loads((tmp_path / f"results/aiperf_{streams}/profile_export_aiperf.json").read_text())
        assert found["request_count"]["avg"] == 3
        assert not found.get("error_request_count")
        assert 0 < found["output_sequence_length"]["max"] <= 256
        assert 0 < found["spec_decode_draft_acceptance_rate"]["avg"] <= 100
