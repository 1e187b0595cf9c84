"""The check at the start: right passes pass it in every dtype, and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reason_spec.engines.torch import layout
from reason_spec.engines.torch import load as loading
from reason_spec.engines.torch.attention import BlockTensors
from reason_spec.engines.torch.check import Float32Arithmetic
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.errors import UnsupportedModelError
from reason_spec.settings import DTypeName, EngineSettings
from tests.engines.real_models import GEMMA3, SMOLLM2, real_model

DTYPES: tuple[DTypeName, ...] = ("float32", "bfloat16", "float16")
TINY = ("qwen3", "llama", "gemma2-sliding-softcap")


def see_everything(patch: pytest.MonkeyPatch) -> None:
    """A branch sees its siblings."""
    patch.setattr(layout.PassBuilder, "_mask", staticmethod(lambda runs, shared, start, end: None))


def shift_positions(patch: pytest.MonkeyPatch) -> None:
    """The second half of a text takes itself for one token nearer to the first."""
    run = Model.run

    def shifted(self: Model, passed: layout.PassLayout) -> torch.Tensor:
        passed.positions[:] = [position - (position >= 12) for position in passed.positions]
        return run(self, passed)

    patch.setattr(Model, "run", shifted)


def swap_heads(patch: pytest.MonkeyPatch) -> None:
    """The first two heads of attention read each other's values."""
    attend = BlockTensors.attend

    def swapped(self: BlockTensors, *arguments: Any) -> torch.Tensor:
        attended = attend(self, *arguments)
        return torch.cat([attended[:, 1:2], attended[:, :1], attended[:, 2:]], dim=1)

    patch.setattr(BlockTensors, "attend", swapped)


def see_less(patch: pytest.MonkeyPatch) -> None:
    """A token does not see the one before it."""
    visible = BlockTensors._visible

    def short(self: BlockTensors, window: int | None) -> Any:
        seen = visible(self, window)
        if seen is not None:
            for row, part in zip(self._block.rows, seen, strict=True):
                part[-1, len(row.columns) - 2] = False
        return seen

    patch.setattr(BlockTensors, "_visible", short)


Mutation = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: tuple[Mutation, ...] = (see_everything, shift_positions, swap_heads, see_less)


def load(folder: str | Path, dtype: DTypeName) -> Model:
    return load_model(EngineSettings(model=str(folder), dtype=dtype, cache_tokens=512))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TINY)
def test_right_passes_are_served_in_every_dtype(
    kind: str, dtype: DTypeName, model_folder: Callable[[str], Path]
) -> None:
    assert load(model_folder(kind), dtype).dtype is getattr(torch, dtype)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TINY)
def test_a_wrong_mask_position_or_head_is_refused_in_every_dtype(
    kind: str,
    dtype: DTypeName,
    mutate: Mutation,
    model_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="other logits"):
        load(model_folder(kind), dtype)


@pytest.mark.parametrize(
    ("name", "mutations"),
    [
        # One of positions and one of the mask; the tiny models have all four in every dtype.
        (SMOLLM2, (shift_positions, see_less)),
        pytest.param(GEMMA3, MUTATIONS, marks=pytest.mark.slow),
    ],
    ids=["smollm2-135m", "gemma3-270m"],
)
def test_real_models_are_served_in_bfloat16_and_their_mutants_are_not(
    name: str, mutations: tuple[Mutation, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = real_model(name)
    loaded: dict[str, Any] = {}
    load_module = loading._load_module

    def load_once(*arguments: Any) -> Any:
        if "module" not in loaded:
            loaded["module"] = load_module(*arguments)
        return loaded["module"]

    monkeypatch.setattr(loading, "_load_module", load_once)
    # Packing would take the weights away from the module, which is loaded once.
    monkeypatch.setattr(loading, "_make_fast", lambda *_: None)
    load(folder, "bfloat16")
    for mutate in mutations:
        with monkeypatch.context() as patch:
            mutate(patch)
            with pytest.raises(UnsupportedModelError, match="other logits"):
                load(folder, "bfloat16")


def test_passes_that_round_more_than_the_module_are_refused(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What float32 arithmetic cannot show: attention that loses bits in the model's own dtype alone."""
    attend = BlockTensors.attend

    def coarse(self: BlockTensors, *arguments: Any) -> torch.Tensor:
        attended = attend(self, *arguments)
        if attended.dtype is torch.float32:
            return attended
        step = attended.abs().max() / 8
        return (attended / step).round() * step

    monkeypatch.setattr(BlockTensors, "attend", coarse)
    with pytest.raises(UnsupportedModelError, match="in bfloat16 off by"):
        load(model_folder("qwen3"), "bfloat16")


def test_a_dtype_that_overflows_is_named(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_module = loading._load_module

    def too_large(*arguments: Any) -> Any:
        module = load_module(*arguments)
        with torch.no_grad():
            module.get_output_embeddings().weight.mul_(1e6)
        return module

    monkeypatch.setattr(loading, "_load_module", too_large)
    with pytest.raises(UnsupportedModelError, match="no numbers in float16; set dtype: bfloat16"):
        load(model_folder("qwen3"), "float16")


def test_quantized_weights_are_compared_as_they_are(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels take no float32, so the float32 comparison is left out; a wrong mask still shows."""
    load_module = loading._load_module

    def quantized(*arguments: Any) -> Any:
        module = load_module(*arguments)
        module.config.quantization_config = {"quant_method": "some"}
        return module

    monkeypatch.setattr(loading, "_load_module", quantized)
    load(model_folder("qwen3"), "bfloat16")
    see_everything(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="a token's logits are off by"):
        load(model_folder("qwen3"), "bfloat16")


def test_float32_arithmetic_gives_what_float32_weights_give(model_folder: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    folder = model_folder("llama")
    coarse: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    fine: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float()
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected = fine(tokens).logits
        with Float32Arithmetic():
            found = coarse(tokens).logits
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
