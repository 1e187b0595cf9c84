"""What an engine will need, counted without loading it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors import safe_open

from reason_spec.engines.footprint import footprint
from reason_spec.errors import EngineError
from reason_spec.pair import embedded_path
from reason_spec.settings import EngineSettings
from reason_spec.settings.engines import VllmSettings

QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120,
    "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}  # fmt: skip
"""Shape of a model of 32.8 billion parameters."""


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_weights_are_those_of_the_file(role: str) -> None:
    found = footprint(role, EngineSettings(device="cpu"))
    with safe_open(str(embedded_path(role) / "model.safetensors"), "pt") as tensors:  # type: ignore[arg-type]
        stored = sum(tensors.get_tensor(name).numel() for name in tensors.keys())  # noqa: SIM118
    assert found.num_parameters == stored
    assert found.weights == 4 * stored
    assert (found.device, found.dtype, found.num_devices) == ("cpu", "float32", 1)
    assert found.cache == 32_768 * found.per_cached_token


@pytest.mark.parametrize(("dtype", "copies"), [("float32", 1), ("bfloat16", 1), ("float16", 0)])
def test_a_packed_output_layer_that_is_tied_is_in_memory_twice(
    dtype: Literal["float32", "bfloat16", "float16"],
    copies: int,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    config = json.loads((model_folder("llama") / "config.json").read_text())
    config |= {"vocab_size": 8192, "hidden_size": 64, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = footprint("target", EngineSettings(model=str(tmp_path), device="cpu", dtype=dtype))
    bytes_each = 4 if dtype == "float32" else 2
    assert found.weights == bytes_each * (found.num_parameters + copies * 8192 * 64)


def test_keys_and_values_are_what_the_model_caches(model_folder: Callable[[str], Path]) -> None:
    """Against the cache that transformers fills."""
    from transformers import AutoModelForCausalLM

    folder = model_folder("qwen3")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cache = model(torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    found = footprint("target", EngineSettings(model=str(folder), device="cpu"))
    assert 3 * found.per_cached_token == 4 * held


def test_a_large_model_is_counted_without_its_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B))
    settings = EngineSettings(
        model=str(tmp_path),
        kind="vllm",
        device="cuda:0,1",
        vllm=VllmSettings(arguments={"tensor_parallel_size": 2}),
    )
    found = footprint("target", settings)
    assert found.num_parameters == pytest.approx(32.76e9, rel=1e-3)
    assert found.weights == 2 * found.num_parameters
    assert found.on_each_device == found.num_parameters
    assert found.per_cached_token == 2 * 2 * 64 * 8 * 128
    assert found.cache_tokens is None


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match="nowhere"):
        footprint("target", EngineSettings(model="./nowhere", device="cpu"))
