"""The models: their shapes, how they start, how a model is made deeper, and how it is saved."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from reason_spec.loading import LOADING
from reason_spec.pair.tokenizer import MAX_LENGTH

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Role: TypeAlias = Literal["target", "draft", "judge"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model.

    ``start_layers`` is its depth when training begins; ``judge_layers`` are added after those, to
    learn to judge.
    """

    layers: int
    width: int
    intermediate: int
    heads: int
    kv_heads: int
    start_layers: int
    head_dim: int = 32
    judge_layers: int = 0


SHAPES: Mapping[Role, Shape] = {
    "target": Shape(layers=24, width=192, intermediate=512, heads=6, kv_heads=3, start_layers=4),
    "draft": Shape(layers=2, width=96, intermediate=384, heads=6, kv_heads=3, start_layers=2),
    "judge": Shape(
        layers=8, width=192, intermediate=512, heads=6, kv_heads=3, start_layers=4, judge_layers=4
    ),
}


def new_model(
    shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int, layers: int | None = None
) -> Qwen3ForCausalLM:
    """Make a model with random weights in float32, ``layers`` deep (default: its start depth)."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=layers or shape.start_layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.02,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).float()


def deepen(model: Qwen3ForCausalLM, layers: int) -> Mapping[str, str]:
    """Grow ``model`` in place to ``layers`` layers, without changing what it computes.

    Each layer is followed by idle copies of it, which add nothing until they are trained. Returns
    the new name of each old parameter, for the state of the optimizer.
    """
    old = list(model.model.layers)
    copies, rest = divmod(layers, len(old))
    assert rest == 0, f"{layers} layers are not a multiple of {len(old)}"
    _set_layers(model, [new for layer in old for new in (layer, *_idle_copies(layer, copies - 1))])
    renamed = {f"model.layers.{i}.": f"model.layers.{i * copies}." for i in range(len(old))}
    names: dict[str, str] = {}
    for name, _ in model.named_parameters():
        for before, after in renamed.items():
            if name.startswith(after):
                names[before + name[len(after) :]] = name
        if not name.startswith("model.layers."):
            names[name] = name
    return names


def append_new_layers(model: Qwen3ForCausalLM, layers: int) -> None:
    """Make ``model`` ``layers`` deep, in place, by layers at its end that are new but add nothing yet."""
    old = list(model.model.layers)
    new = [copy.deepcopy(old[-1]) for _ in range(layers - len(old))]
    for layer in new:
        layer.apply(model._init_weights)
        _silence(layer)
    _set_layers(model, [*old, *new])


def _idle_copies(layer: Qwen3DecoderLayer, count: int) -> list[Qwen3DecoderLayer]:
    """Copy a layer; the output projections of the copies are zero, so they add nothing to the stream."""
    copies = [copy.deepcopy(layer) for _ in range(count)]
    for new in copies:
        _silence(new)
    return copies


def _silence(layer: Qwen3DecoderLayer) -> None:
    torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    torch.nn.init.zeros_(layer.mlp.down_proj.weight)


def _set_layers(model: Qwen3ForCausalLM, layers: Sequence[Qwen3DecoderLayer]) -> None:
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index
    model.model.layers = torch.nn.ModuleList(layers)
    model.config.num_hidden_layers = len(layers)
    model.config.layer_types = ["full_attention"] * len(layers)


def save_model(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model and tokenizer in Hugging Face format, the weights as bfloat16 safetensors."""
    stored = copy.deepcopy(model).cpu().to(torch.bfloat16)
    stored.config.use_cache = True
    stored.save_pretrained(folder)
    # Weights are written readable by their owner alone, which would hide them in a shared install.
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)
    # The class name of transformers 5 is unknown to older releases and to other programs.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_model(folder: Path) -> Qwen3ForCausalLM:
    """Load a saved model in float32."""
    with LOADING:
        model: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()
