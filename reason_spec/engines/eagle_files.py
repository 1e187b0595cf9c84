"""Folders of EAGLE-3 heads, in the form that vLLM's method ``eagle3`` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from reason_spec.engines.config_files import read_config_file

ARCHITECTURE: Final = "LlamaForCausalLMEagle3"
CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"


class HeadConfig(BaseModel):
    """What is read of ``config.json``; other fields are for vLLM.

    ``target_layers`` are those before which the target's hidden states are taken, ``temperatures``
    those of the answers that it was trained on.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    draft_vocab_size: int = Field(ge=1)
    rms_norm_eps: float
    rope_theta: float
    base: str = ""
    temperatures: tuple[float, ...] = ()
    target_layers: tuple[int, int, int] = Field(alias="eagle_aux_hidden_state_layer_ids")


def middle_layers(num_layers: int) -> tuple[int, int, int]:
    """Return the layers whose input states EAGLE-3 takes: low, middle and high."""
    return min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0)


def is_head(folder: Path) -> bool:
    """Return whether a folder holds a head, by its configuration."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ARCHITECTURE in (config.get("architectures") or ())


def read_head_config(folder: Path) -> HeadConfig:
    """Return the configuration of a head.

    Raises:
        EngineError: it cannot be read; the message names the file and the field.
    """
    return read_config_file(folder / CONFIG, HeadConfig, "the head")


def vllm_config(config: HeadConfig, max_positions: int) -> dict[str, Any]:
    """Return the content of ``config.json``, for this project and for vLLM's method ``eagle3``."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": max_positions,
        **config.model_dump(mode="json", by_alias=True),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": list(config.target_layers),
        },
    }
