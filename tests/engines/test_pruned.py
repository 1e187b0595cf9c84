"""Pruned drafts are composed with their base model, and predict only the tokens of their vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from reason_spec.engines.generation import EngineRequest, Score
from reason_spec.engines.model_files import INDEX, WHOLE, resolve_model
from reason_spec.engines.pruned import CONFIG, WEIGHTS, find_pruned
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.torch.trimmed_head import TrimmedHead
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings
from reason_spec.types import Prefix, Sampling
from tests.engines.tiny_models import drain, save_model, write

VOCABULARY = tuple(range(40, 90))
PROMPT = (65, 66, 67, 68)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_model("llama", tmp_path / "base")


def save_draft(base: Path, folder: Path, **config: Any) -> Path:
    """Write a draft that is the second layer of the base model as it is."""
    return write_draft(base, folder, config)


def write_draft(base: Path, folder: Path, config: dict[str, Any], layer: int = 1) -> Path:
    weights = load_file(base / "model.safetensors")
    own = {
        name.replace(f".layers.{layer}.", ".layers.0."): tensor.clone()
        for name, tensor in weights.items()
        if f".layers.{layer}." in name
    }
    own["model.norm.weight"] = weights["model.norm.weight"] * 1.5
    folder.mkdir()
    save_file(own, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"base": str(base), "layers": [layer]} | config))
    return folder


def test_a_composed_draft_is_the_base_model_without_the_other_layers(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = resolve_model("draft", str(save_draft(base, tmp_path / "draft")))
    found: Any = AutoModelForCausalLM.from_pretrained(folder)
    expected: Any = AutoModelForCausalLM.from_pretrained(base)
    expected.model.layers = nn.ModuleList([expected.model.layers[1]])
    expected.model.layers[0].self_attn.layer_idx = 0
    expected.model.norm.weight.data *= 1.5
    tokens = torch.tensor([PROMPT])
    with torch.inference_mode():
        assert torch.equal(found(tokens, use_cache=False).logits, expected(tokens, use_cache=False).logits)
    assert (Path(folder) / "tokenizer.json").exists()


def in_two_forms(base: Path) -> set[str]:
    """Divide the weights of a model into shards, and put the same ones beside them under other names.

    Returns:
        The names of the shards.
    """
    weights = load_file(base / WHOLE)
    (base / WHOLE).unlink()
    renamed = {name.removeprefix("model."): one for name, one in weights.items()}
    save_file(renamed, base / "consolidated.safetensors")
    (base / "pytorch_model.bin").write_bytes(b"once more")
    of_shard: dict[str, dict[str, torch.Tensor]] = {}
    index = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(weights)}
    for name, shard in index.items():
        of_shard.setdefault(shard, {})[name] = weights[name]
    for shard, tensors in of_shard.items():
        save_file(tensors, base / shard, metadata={"format": "pt"})
    (base / INDEX).write_text(json.dumps({"weight_map": index}))
    return set(of_shard)


def test_only_the_weights_that_are_loaded_are_composed(base: Path, tmp_path: Path) -> None:
    draft = save_draft(base, tmp_path / "draft")
    whole = Path(resolve_model("draft", str(draft)))
    in_two_forms(base)
    folder = Path(resolve_model("draft", str(draft)))
    assert folder != whole
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}
    found, expected = load_file(folder / WHOLE), load_file(whole / WHOLE)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], one) for name, one in expected.items())
    for path in base.glob("model*"):
        path.unlink()
    with pytest.raises(EngineError, match=f"holds neither {WHOLE} nor {INDEX}"):
        resolve_model("draft", str(draft))


def serve(folder: Path) -> Scheduler:
    """Serve a draft in this process."""
    model = resolve_model("draft", str(folder))
    settings = EngineSettings(model=model, device="cpu", dtype="float32", cache_tokens=512)
    return Scheduler(load_model(settings), load_tokenizer(model), num_slots=512, debug=True)


def written(folder: Path) -> list[tuple[int, ...]]:
    """Return a greedy text and a sampled one of twenty tokens."""
    scheduler = serve(folder)
    return [
        write(scheduler, EngineRequest(Prefix(PROMPT), 20, sampling=sampling)).tokens
        for sampling in (Sampling(), Sampling(temperature=1.0))
    ]


def test_a_draft_with_a_vocabulary_predicts_no_other_token(base: Path, tmp_path: Path) -> None:
    whole = written(save_draft(base, tmp_path / "whole"))
    trimmed = written(save_draft(base, tmp_path / "trimmed", vocabulary=VOCABULARY))
    assert any(token not in VOCABULARY for text in whole for token in text)
    assert all(len(text) == 20 and set(text) <= set(VOCABULARY) for text in trimmed)


def test_its_predictions_are_those_of_the_whole_head_among_its_tokens(base: Path, tmp_path: Path) -> None:
    scores = []
    for vocabulary in (None, VOCABULARY):
        scheduler = serve(save_draft(base, tmp_path / f"draft-{vocabulary is None}", vocabulary=vocabulary))
        for number, token in enumerate((50, 60, 70)):
            scheduler.score(number, Prefix(PROMPT), (token,))
        found = drain(scheduler)
        scores.append([score.logprobs[0] for _, score in sorted(found.items()) if isinstance(score, Score)])
    whole, trimmed = (torch.tensor(found) for found in scores)
    torch.testing.assert_close(whole - whole[0], trimmed - trimmed[0], atol=1e-4, rtol=0)
    assert (trimmed > whole).all()


@given(st.sets(st.integers(0, 19), min_size=1), st.integers(0, 1000))
def test_a_trimmed_head_is_the_head_with_the_other_logits_removed(tokens: set[int], seed: int) -> None:
    torch.manual_seed(seed)
    head, states = nn.Linear(6, 20, bias=seed % 2 == 0), torch.randn(3, 6)
    ids = sorted(tokens)
    with torch.inference_mode():
        whole, trimmed = head(states), TrimmedHead(head, ids)(states)
    torch.testing.assert_close(trimmed[:, ids], whole[:, ids])
    others = [token for token in range(20) if token not in tokens]
    assert bool((trimmed[:, others] == float("-inf")).all())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layers": []}, "layers: Tuple should have at least 1 item"),
        ({"layers": [1, 0]}, "layers must ascend"),
        ({"vocabulary": [3, 3]}, "vocabulary must ascend"),
        ({"base": ""}, "base: String should have at least 1 character"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_a_damaged_configuration_is_refused_by_field(
    base: Path, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    folder = write_draft(base, tmp_path / "draft", config)
    with pytest.raises(EngineError, match=rf"{CONFIG}'.*{message}"):
        find_pruned(str(folder))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layers": [0, 1]}, "the draft has no model.layers.1"),
        ({"layers": [7]}, "layers has 7, and the base model has 2"),
        ({"vocabulary": [5, 5000]}, "vocabulary has 5000, and the base model has"),
    ],
)
def test_a_draft_of_another_base_model_is_refused(
    base: Path, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    folder = save_draft(base, tmp_path / "draft", **config)
    with pytest.raises(EngineError, match=f"could not be composed.*{message}.*belongs to another base model"):
        resolve_model("draft", str(folder))
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_draft_is_not_its_own_base_model(base: Path, tmp_path: Path) -> None:
    folder = save_draft(base, tmp_path / "draft")
    (folder / CONFIG).write_text(json.dumps({"base": str(folder), "layers": [1]}))
    with pytest.raises(EngineError, match="base names the draft itself"):
        find_pruned(str(folder))


def test_a_folder_without_layers_is_refused_and_other_folders_are_other_models(
    base: Path, tmp_path: Path
) -> None:
    assert find_pruned(str(base)) is None
    folder = save_draft(base, tmp_path / "draft")
    (folder / WEIGHTS).unlink()
    with pytest.raises(EngineError, match=f"has no {WEIGHTS}"):
        find_pruned(str(folder))
