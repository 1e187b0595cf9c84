"""A program that merges a LoRA adapter: ``python -m`` with the folders of base, adapter and result.

It prints the numbers of merged tensors and of all tensors.
"""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from reason_spec.engines.lora import CONFIG, WEIGHTS, scale_of
from reason_spec.engines.model_files import INDEX, WHOLE, copy_beside_weights, read_json, weight_files

_PREFIX = "base_model.model."


def merge(base: Path, adapter: Path, folder: Path) -> None:
    """Write the base model with W + scale B A in the place of each adapted W.

    Raises:
        ValueError: a module of the adapter is not in the base model, or has another shape.
    """
    config = read_json(adapter / CONFIG)
    weights = {name.removeprefix(_PREFIX): tensor for name, tensor in load_file(adapter / WEIGHTS).items()}
    modules = {name.removesuffix(".lora_A.weight") for name in weights if name.endswith(".lora_A.weight")}
    others = sorted(name for name in weights if not name.endswith((".lora_A.weight", ".lora_B.weight")))
    if others:
        raise ValueError(f"{others[0]} is no part of a low-rank sum")
    folder.mkdir()
    copy_beside_weights(base, folder)
    files = weight_files(base)
    if files != [base / WHOLE]:
        shutil.copyfile(base / INDEX, folder / INDEX)
    left, done = set(modules), 0
    for path in files:
        tensors: dict[str, Tensor] = {}
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            for name in names:
                tensors[name] = file.get_tensor(name)
                module = name.removesuffix(".weight")
                if module in modules:
                    tensors[name] = _adapted(tensors[name], weights, module, config)
                    left.discard(module)
                    done += 1
                    sys.stdout.write(f"{done} {len(modules)}\n")
                    sys.stdout.flush()
        save_file(tensors, folder / path.name, metadata={"format": "pt"})
    if left:
        raise ValueError(f"the base model has no weight of {min(left)}")


def _adapted(weight: Tensor, weights: dict[str, Tensor], module: str, config: dict[str, object]) -> Tensor:
    down, up = weights[f"{module}.lora_A.weight"], weights[f"{module}.lora_B.weight"]
    if config.get("fan_in_fan_out"):
        weight = weight.T
    if weight.shape != (up.shape[0], down.shape[1]):
        raise ValueError(
            f"{module} is {tuple(weight.shape)} in the base model, {(up.shape[0], down.shape[1])} here"
        )
    change = scale_of(config, module, len(down)) * (up.float() @ down.float())
    result = (weight.float() + change).to(weight.dtype)
    return (result.T if config.get("fan_in_fan_out") else result).contiguous()


if __name__ == "__main__":
    # An interrupt ends the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    merge(*map(Path, sys.argv[1:4]))
