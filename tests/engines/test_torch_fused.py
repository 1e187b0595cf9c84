"""The fused layers compute what the module computes, and hold no weight twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from reason_spec.engines.torch.fused import FusedDecoder, can_fuse
from reason_spec.engines.torch.layout import Chain, PassBuilder
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.products import Product
from reason_spec.errors import UnsupportedModelError
from reason_spec.settings import DTypeName, EngineSettings
from reason_spec.settings.engines import TorchSettings

FUSED = ["qwen3", "qwen2", "llama", "llama-scaled-biased"]
NOT_FUSED = ["gpt2", "mistral-sliding", "qwen2-sliding", "llama-dynamic", "llama-gelu", "mixtral"]


def load(folder: Path, layers: Literal["auto", "fused", "module"], dtype: DTypeName = "float32") -> Model:
    torch_settings = TorchSettings(layers=layers)
    return load_model(EngineSettings(model=str(folder), cache_tokens=256, torch=torch_settings, dtype=dtype))


def tree_logits(model: Model) -> list[torch.Tensor]:
    """A prompt, two branches from the middle of it in one pass, and one token alone."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, model.vocab_size, 40).tolist()
    slots = np.arange(60, dtype=np.int64)
    prompt = Chain(tokens[:12], slots[:0], 0, 12, 0, 0)
    left, right = Chain(tokens[12:20], slots[:12], 1, 8, 0, 7), Chain(tokens[20:25], slots[:7], 2, 5, 0, 7)
    single = Chain(tokens[25:26], slots[:20], 3, 1, 0, 0)
    with torch.inference_mode():
        return [
            model.run(PassBuilder().build([prompt], slots[:12].tolist())),
            model.run(PassBuilder().build([left, right], slots[12:25].tolist())),
            model.run(PassBuilder().build([single], slots[40:41].tolist())),
        ]


@pytest.mark.parametrize("kind", FUSED)
def test_fused_layers_give_the_modules_logits(kind: str, model_folder: Callable[[str], Path]) -> None:
    fused, module = load(model_folder(kind), "auto"), load(model_folder(kind), "module")
    assert fused.fused is not None
    assert module.fused is None
    for found, expected in zip(tree_logits(fused), tree_logits(module), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


def test_fused_layers_in_bfloat16_stay_as_near_to_float32_as_the_modules(
    model_folder: Callable[[str], Path],
) -> None:
    kind = "qwen3"  # Of random models, those without norms of queries and keys are chaotic in bfloat16.
    exact = tree_logits(load(model_folder(kind), "module"))
    found, expected = (
        tree_logits(load(model_folder(kind), layers, "bfloat16")) for layers in ("fused", "module")
    )
    for ours, theirs, right in zip(found, expected, exact, strict=True):
        error, their_error = ((logits.float() - right).square().mean() for logits in (ours, theirs))
        assert error < 2 * their_error


@pytest.mark.parametrize("kind", NOT_FUSED)
def test_other_models_run_through_their_module(kind: str, model_folder: Callable[[str], Path]) -> None:
    folder = model_folder(kind)
    model = load(folder, "auto")
    assert model.fused is None
    with pytest.raises(UnsupportedModelError, match="layers: auto"):
        load(folder, "fused")
    with pytest.raises(ValueError, match="no fused layers"):
        FusedDecoder(model.module, 64)


@pytest.mark.parametrize("kind", FUSED)
def test_the_products_share_the_modules_memory_and_leave_its_weights_as_they_are(
    kind: str, model_folder: Callable[[str], Path]
) -> None:
    model = load(model_folder(kind), "module")
    parameters = dict(model.module.named_parameters())
    before = {name: value.clone() for name, value in parameters.items()}
    assert can_fuse(model.module)
    decoder = FusedDecoder(model.module, 64)
    modules_own = {value.untyped_storage().data_ptr() for value in parameters.values()}
    products = [
        product
        for layer in decoder._layers
        for product in (layer.qkv, layer.output, layer.gate_up, layer.down)
    ]
    weights = [product.weight for product in products if isinstance(product, Product)]
    assert len(weights) == len(products)
    assert all(weight.untyped_storage().data_ptr() in modules_own for weight in weights)
    assert sum(weight.numel() for weight in weights) == sum(
        value.numel() for name, value in parameters.items() if name.endswith("proj.weight")
    )
    assert all(torch.equal(value, before[name]) for name, value in parameters.items())
