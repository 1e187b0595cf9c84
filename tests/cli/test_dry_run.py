"""`reason-spec solve --dry-run`: where the models would go, and that nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_runner import fail, invoke, succeed


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_both_models_are_placed_and_nothing_is_written() -> None:
    printed = succeed("solve", "--dry-run", "--set", "target.device=cpu", "--set", "draft.device=cpu").stdout
    for word in ("target", "draft", "torch", "cpu, cores", "float32", "nothing was started"):
        assert word in printed
    assert not list(Path().iterdir())


def test_a_strategy_without_a_draft_needs_no_draft() -> None:
    arguments = ("solve", "--dry-run", "--json", "--strategy", "autoregressive", "--set", "target.device=cpu")
    printed = json.loads(succeed(*arguments).stdout)
    assert [row["engine"] for row in printed["engines"]] == ["target"]
    assert printed["shortages"] == []


def test_what_does_not_fit_is_said_and_fails() -> None:
    """Keys and values of both are counted together: they share the machine's memory."""
    both = (
        "--set",
        "target.cache_tokens=2000000000",
        "--set",
        "target.device=cpu",
        "--set",
        "draft.device=cpu",
    )
    result = invoke("solve", "--dry-run", *both)
    assert result.exit_code == 1
    assert "does not fit: cpu:" in result.stdout


def test_a_served_model_needs_nothing_here() -> None:
    result = succeed(
        "solve", "--dry-run", "--target-url", "http://gpu-1:8000/v1", "--set", "draft.device=cpu"
    )
    assert "http://gpu-1:8000/v1" in result.stdout


def test_a_model_that_is_not_there_is_an_error() -> None:
    assert "nowhere" in fail("solve", "--dry-run", "--target", "./nowhere")


def test_the_verifier_that_would_be_used_is_named_and_its_model_placed() -> None:
    on_cpu = ("--set", "target.device=cpu", "--set", "draft.device=cpu")
    assert "verifier semantic" in succeed("solve", "--dry-run", *on_cpu).stdout
    assert "verifier none" in succeed("solve", "--dry-run", "--strategy", "speculative", *on_cpu).stdout
    hybrid = succeed("solve", "--dry-run", "--strategy", "hybrid", *on_cpu).stdout
    assert "verifier likelihood+semantic" in hybrid
    asked = ("--json", "--strategy", "specreason", "--verifier", "utility")
    printed = json.loads(succeed("solve", "--dry-run", *asked, *on_cpu).stdout)
    assert [row["engine"] for row in printed["engines"]] == ["target", "draft", "judge"]


def test_a_served_reward_model_is_shown_where_it_is_asked() -> None:
    on_cpu = ("--set", "target.device=cpu", "--set", "draft.device=cpu")
    served = ("--json", "--set", "verifier.reward_url=http://gpu-2:8000/v1", *on_cpu)
    printed = json.loads(succeed("solve", "--dry-run", "--strategy", "rsd", *served).stdout)
    assert [row["engine"] for row in printed["engines"]] == ["target", "draft", "reward"]
    assert printed["engines"][-1]["urls"] == ["http://gpu-2:8000/v1"]
    printed = json.loads(succeed("solve", "--dry-run", *served).stdout)
    assert [row["engine"] for row in printed["engines"]] == ["target", "draft"]
