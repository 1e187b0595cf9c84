"""LoRA adapters are merged into their base model, once, and refused with a reason where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from reason_spec.engines.factory import create_engine
from reason_spec.engines.lora import CONFIG, WEIGHTS, find_adapter, scale_of
from reason_spec.engines.model_files import INDEX, resolve_model
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings
from reason_spec.types import Prefix
from tests.engines.test_pruned import in_two_forms
from tests.engines.tiny_models import save_model

RANK = 2
MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_model("llama", tmp_path / "base")


def save_adapter(base: Path, folder: Path, **config: Any) -> dict[str, torch.Tensor]:
    """Write an adapter of random weights; return these."""
    weights = load_file(base / "model.safetensors")
    made: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(1)
    for module in MODULES:
        num_out, num_in = weights[f"{module}.weight"].shape
        for name, shape in (("lora_A", (RANK, num_in)), ("lora_B", (num_out, RANK))):
            made[f"base_model.model.{module}.{name}.weight"] = torch.randn(shape, generator=generator)
    folder.mkdir()
    save_file(made, folder / WEIGHTS)
    given = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": RANK, "lora_alpha": 6}
    (folder / CONFIG).write_text(json.dumps(given | config))
    return made


def test_a_merged_model_has_the_low_rank_sum_added_and_all_else_unchanged(base: Path, tmp_path: Path) -> None:
    made = save_adapter(base, tmp_path / "adapter")
    folder = Path(resolve_model("target", str(tmp_path / "adapter")))
    before, after = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    for name, weight in before.items():
        module = name.removesuffix(".weight")
        if module in MODULES:
            down, up = (made[f"base_model.model.{module}.{part}.weight"] for part in ("lora_A", "lora_B"))
            torch.testing.assert_close(after[name], weight + 3.0 * up @ down)
        else:
            assert torch.equal(after[name], weight)
    assert (folder / "config.json").read_text() == (base / "config.json").read_text()
    assert (folder / "tokenizer.json").exists()


def test_only_the_weights_that_are_loaded_are_merged(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "adapter")
    shards = in_two_forms(base)
    folder = Path(resolve_model("target", str(tmp_path / "adapter")))
    assert {path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin")} == shards
    assert (folder / INDEX).read_text() == (base / INDEX).read_text()
    assert (folder / "tokenizer.json").exists()


async def test_an_engine_serves_the_adapters_folder(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "adapter")
    adapter = str(tmp_path / "adapter")
    merged, unmerged = logprobs_of(Path(resolve_model("target", adapter))), logprobs_of(base)
    engine = create_engine("target", EngineSettings(model=adapter, device="cpu", cache_tokens=512))
    await engine.start()
    try:
        found = (await engine.score(Prefix((1, 2, 3)), (4, 5))).logprobs
    finally:
        await engine.close()
    assert found == pytest.approx(merged, abs=1e-3)
    assert found != pytest.approx(unmerged, abs=1e-3)


@torch.inference_mode()
def logprobs_of(folder: Path) -> list[float]:
    """Return what the plain module gives 4 and 5 after 1, 2 and 3."""
    from transformers import AutoModelForCausalLM

    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logprobs = module(torch.tensor([[1, 2, 3, 4]])).logits[0].log_softmax(-1)
    return [float(logprobs[2, 4]), float(logprobs[3, 5])]


def test_a_merged_model_is_written_once_and_anew_for_other_weights(base: Path, tmp_path: Path) -> None:
    made = save_adapter(base, tmp_path / "adapter")
    first = resolve_model("target", str(tmp_path / "adapter"))
    written = (Path(first) / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("target", str(tmp_path / "adapter")) == first
    assert (Path(first) / "model.safetensors").stat().st_mtime_ns == written
    save_file({name: 2 * tensor for name, tensor in made.items()}, tmp_path / "adapter" / WEIGHTS)
    assert resolve_model("target", str(tmp_path / "adapter")) != first


def test_a_merged_model_takes_over_what_changes_in_its_base_model(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "adapter")
    resolve_model("target", str(tmp_path / "adapter"))
    for name in ("generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
        path = base / name
        changed = (path.read_text() if path.exists() else "{}") + "\n"
        path.write_text(changed)
        folder = Path(resolve_model("target", str(tmp_path / "adapter")))
        assert (folder / name).read_text() == changed


@pytest.mark.parametrize(
    ("config", "rank", "expected"),
    [
        ({}, 2, 3.0),
        ({"use_rslora": True}, 2, 6 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 2}}, 2, 1.0),
        ({"alpha_pattern": {r"layers\.\d+\.self_attn\.[qk]_proj": 2, "q_proj": 9}}, 2, 1.0),
        ({"alpha_pattern": {r"^model\.layers\.0\..*": 2}}, 2, 1.0),
        ({"alpha_pattern": {r"^layers\.0\..*": 2, "proj": 2, "other": 2}}, 2, 3.0),
        ({"rank_pattern": {r".*\.q_proj": 6}}, 6, 1.0),
    ],
)
def test_the_scale_follows_the_configuration_and_the_rank(
    config: dict[str, Any], rank: int, expected: float
) -> None:
    """As PEFT reads it: keys of patterns are regular expressions for the end of a name."""
    assert scale_of({"r": 2, "lora_alpha": 6} | config, MODULES[0], rank) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path names no base model"),
        ({"use_dora": True}, "use_dora is set.*merge_and_unload"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is 'pissa_niter_16'.*_conversion"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights is 'OLoRA'.*merge_and_unload"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused_by_field(
    base: Path, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    save_adapter(base, tmp_path / "adapter", **config)
    with pytest.raises(EngineError, match=message):
        find_adapter(str(tmp_path / "adapter"))


def test_weights_that_are_no_part_of_the_sum_are_refused(base: Path, tmp_path: Path) -> None:
    made = save_adapter(base, tmp_path / "adapter")
    bias = {f"base_model.model.{MODULES[0]}.lora_B.bias": torch.ones(1)}
    save_file(made | bias, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(EngineError, match=r"q_proj\.lora_B\.bias is no part of a low-rank sum"):
        resolve_model("target", str(tmp_path / "adapter"))


def test_an_adapter_of_another_base_model_is_refused(base: Path, tmp_path: Path) -> None:
    made = save_adapter(base, tmp_path / "adapter")
    wider = {name: torch.cat([tensor, tensor], -1) for name, tensor in made.items()}
    save_file(wider, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(EngineError, match=r"could not be merged.*is \(.*belongs to another base model"):
        resolve_model("target", str(tmp_path / "adapter"))
    assert not list((tmp_path / "cache").rglob("*.part"))
    save_file({"base_model.model.nothing.lora_A.weight": torch.zeros(1, 1)}, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(EngineError, match="no weight of nothing"):
        resolve_model("target", str(tmp_path / "adapter"))


def test_an_adapter_is_not_its_own_base_model(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "adapter"))
    with pytest.raises(EngineError, match="names no base model"):
        resolve_model("target", str(tmp_path / "adapter"))


def test_a_base_model_that_cannot_be_fetched_is_named(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "adapter", base_model_name_or_path="nobody/nothing")
    with pytest.raises(EngineError, match=r"of model 'nobody/nothing' could not be fetched"):
        resolve_model("target", str(tmp_path / "adapter"))


def test_folders_without_an_adapter_are_other_models(base: Path, tmp_path: Path) -> None:
    assert find_adapter(str(base)) is None
    assert find_adapter("org/model") is None
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / CONFIG).write_text('{"peft_type": "LORA", "base_model_name_or_path": "x"}')
    with pytest.raises(EngineError, match=f"has no {WEIGHTS}"):
        find_adapter(str(tmp_path / "empty"))
