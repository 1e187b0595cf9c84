"""A target of any depth: the same answers, at the real cost of more layers.

Layers whose two output projections are zero add nothing to the residual stream, but every pass pays for them.
Figures measured with such a model are figures of cost alone and must be called padded.
"""

from __future__ import annotations

from pathlib import Path

from reason_spec.engines.model_files import read_json
from reason_spec.errors import SettingsError
from reason_spec.pair.decoding import load_pair_model
from reason_spec.pair.model import append_new_layers, save_model


def pad(source: Path, layers: int, out: Path) -> None:
    """Write a copy of a model of the pair, made ``layers`` deep, into the new folder ``out``.

    Raises:
        SettingsError: the model is not built like those of the pair, or has as many layers.
    """
    kind = read_json(source / "config.json").get("model_type")
    if kind != "qwen3":
        raise SettingsError(f"{source} is a {kind} model, and only qwen3 can be padded; leave out --padded")
    model, tokenizer = load_pair_model(source)
    before = model.config.num_hidden_layers
    if layers <= before:
        raise SettingsError(f"{layers} layers must be more than the {before} of {source}")
    append_new_layers(model, layers)
    save_model(model, tokenizer, out)
