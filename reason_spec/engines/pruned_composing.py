"""A program that composes a pruned draft: ``python -m`` with the folders of base, draft and result."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from reason_spec.engines.model_files import copy_beside_weights, read_json, weight_files
from reason_spec.engines.pruned import CONFIG, PER_LAYER, VOCABULARY, WEIGHTS, PrunedConfig

_LAYER: Final = re.compile(r"\.layers\.\d+\.")


def compose(base: Path, draft: Path, folder: Path) -> None:
    """Write a model of the draft's layers and of all weights of the base model outside its layers.

    Raises:
        ValueError: the draft lacks a weight, or has one that the base model's layers have not.
    """
    config = PrunedConfig.model_validate_json((draft / CONFIG).read_bytes())
    weights = load_file(draft / WEIGHTS)
    tensors: dict[str, Tensor] = {}
    for path in weight_files(base):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in list(file.keys()) if not _LAYER.search(name)}
    check_names(weight_names(base), weights, len(config.layers))
    model_config = read_json(base / "config.json")
    _check(config, model_config)
    tensors |= weights
    folder.mkdir()
    copy_beside_weights(base, folder)
    model_config["num_hidden_layers"] = len(config.layers)
    for name in PER_LAYER:
        if isinstance(kinds := model_config.get(name), list):
            model_config[name] = [kinds[layer] for layer in config.layers]
    (folder / "config.json").write_text(json.dumps(model_config, indent=2), encoding="utf-8")
    if config.vocabulary is not None:
        (folder / VOCABULARY).write_text(json.dumps(config.vocabulary), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def weight_names(folder: Path) -> list[str]:
    """Return the names of the weights in a model's files.

    Raises:
        EngineError: it has no safetensors.
    """
    names: list[str] = []
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            names += list(file.keys())
    return names


def check_names(of_base: Collection[str], of_draft: Collection[str], num_layers: int) -> None:
    """Check that a draft has each weight of ``num_layers`` layers of its base model, and no other weight.

    Raises:
        ValueError: it has not; the message names a weight.
    """
    others = {name for name in of_base if not _LAYER.search(name)}
    in_layers = {_LAYER.sub(".layers.{}.", name, count=1) for name in {*of_base} - others}
    expected = {name.replace("{}", str(layer)) for name in in_layers for layer in range(num_layers)}
    if missing := expected - {*of_draft}:
        raise ValueError(f"the draft has no {min(missing)}")
    if unknown := {*of_draft} - expected - others:
        raise ValueError(f"the base model has nothing like {min(unknown)}")


def _check(config: PrunedConfig, model_config: dict[str, object]) -> None:
    for name, numbers, limit in (
        ("layers", config.layers, model_config.get("num_hidden_layers")),
        ("vocabulary", config.vocabulary or (0,), model_config.get("vocab_size")),
    ):
        if isinstance(limit, int) and numbers[-1] >= limit:
            raise ValueError(f"{name} has {numbers[-1]}, and the base model has {limit}")


if __name__ == "__main__":
    # An interrupt ends the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    compose(*map(Path, sys.argv[1:4]))
