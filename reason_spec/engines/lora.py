"""LoRA adapters: merged once into their base model, and then loaded like other models.

A model is named by the folder of its adapter, in PEFT's format: ``adapter_config.json``, which names the base
model, and ``adapter_model.safetensors``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reason_spec.engines.model_cache import joined_with_base
from reason_spec.errors import EngineError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LAYOUT: Final = 2
"""The version of the folders in the cache; older ones are not read."""
_UNSUPPORTED: Final = (
    "use_dora",
    "use_qalora",
    "alora_invocation_tokens",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
)
"""Options of PEFT's whose weights are more than a low-rank sum."""
_CHANGING_THE_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of values of ``init_lora_weights`` under which PEFT first changes the base model."""


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter and the name of its base model."""

    folder: Path
    base: str


def find_adapter(model: str) -> LoraAdapter | None:
    """Return the adapter in a folder, None if the folder holds none or is no folder.

    Raises:
        EngineError: its configuration cannot be used; the message names the field.
    """
    folder = Path(model).expanduser()
    if not (folder / CONFIG).is_file() or (folder / "config.json").exists():
        return None
    from reason_spec.engines.model_files import read_json

    config = read_json(folder / CONFIG)
    kind, base = config.get("peft_type"), config.get("base_model_name_or_path")
    place = str(folder / CONFIG)
    if kind != "LORA":
        raise EngineError(f"{place!r}: peft_type is {kind!r}; only LORA adapters are merged")
    if not isinstance(base, str) or not base or Path(base).expanduser().resolve() == folder.resolve():
        raise EngineError(f"{place!r}: base_model_name_or_path names no base model; write its name there")
    for name in _UNSUPPORTED:
        if config.get(name):
            raise EngineError(
                f"{place!r}: {name} is set, which is not supported; merge the adapter with PEFT "
                "(merge_and_unload) and name the merged folder"
            )
    initial = config.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_CHANGING_THE_BASE):
        raise EngineError(
            f"{place!r}: init_lora_weights is {initial!r}, so the adapter belongs to changed weights of its "
            "base model; save it with path_initial_model_for_weight_conversion in PEFT's save_pretrained, or "
            "merge it with PEFT (merge_and_unload) and name the merged folder"
        )
    if not (folder / WEIGHTS).is_file():
        raise EngineError(f"adapter {model!r} has no {WEIGHTS}")
    return LoraAdapter(folder, base)


def merged(adapter: LoraAdapter, base: Path) -> Path:
    """Return a folder with the base model's files, and its weights with the adapter added.

    Args:
        base: the folder of the base model, with safetensors.

    Raises:
        EngineError: the adapter does not fit the base model, or a file cannot be read.
    """
    return joined_with_base(
        adapter.folder,
        (CONFIG, WEIGHTS),
        base,
        "reason_spec.engines.lora_merging",
        layout=_LAYOUT,
        doing="Merging",
        failure=f"could not be merged into {adapter.base!r}",
    )


def scale_of(config: dict[str, Any], module: str, rank: int) -> float:
    """Return the factor of B A for a module: alpha / rank, or alpha / sqrt(rank) with ``use_rslora``.

    ``alpha_pattern`` may name other values of alpha. As in PEFT its keys are regular expressions for the end
    of a module's name, and the first one that matches counts.
    """
    patterns: dict[str, float] = config.get("alpha_pattern") or {}
    found = (alpha for key, alpha in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    return float(next(found, config["lora_alpha"])) / (rank**0.5 if config.get("use_rslora") else rank)
