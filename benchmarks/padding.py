"""A target of any depth: the same answers, at the real cost of more layers.

    python benchmarks/padding.py MODEL LAYERS FOLDER

Layers whose two output projections are zero add nothing to the residual stream, but every pass pays for them.
Figures measured with such a model are figures of cost alone and must be called padded.
"""

from __future__ import annotations

import copy
import shutil
import sys
from pathlib import Path

from reason_spec.engines.model_files import read_json, resolve_model
from reason_spec.errors import SettingsError

_LAYOUT = ("llama", "qwen2", "qwen3")
"""Kinds of models whose layers have ``self_attn.o_proj`` and ``mlp.down_proj``, and nothing behind them."""


def pad(source: Path, layers: int, out: Path) -> None:
    """Write a copy of a model, made ``layers`` deep, into the new folder ``out``, in its own dtype.

    Raises:
        SettingsError: the model is of another kind, or has as many layers.
    """
    from torch.nn.init import zeros_
    from transformers import AutoModelForCausalLM

    kind = read_json(source / "config.json").get("model_type")
    if kind not in _LAYOUT:
        raise SettingsError(f"{source} is a {kind} model, and only {', '.join(_LAYOUT)} can be padded")
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", local_files_only=True)
    stack, config = model.model.layers, model.config
    if layers <= len(stack):
        raise SettingsError(f"{layers} layers must be more than the {len(stack)} of {source}")
    idle = copy.deepcopy(stack[-1])
    zeros_(idle.self_attn.o_proj.weight)
    zeros_(idle.mlp.down_proj.weight)
    for index in range(len(stack), layers):
        # A copy each: shared weights would be read from the cache of the processor.
        stack.append(copy.deepcopy(idle))
        stack[-1].self_attn.layer_idx = index
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[-1]] * layers
    model.save_pretrained(out)
    for path in source.iterdir():
        # Tokenizer and chat template, as they are: other releases of transformers write them otherwise.
        if path.suffix in (".json", ".jinja", ".txt", ".model") and not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    pad(Path(resolve_model("target", sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3]))
