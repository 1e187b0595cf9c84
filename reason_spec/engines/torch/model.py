"""Loads a Hugging Face causal LM and runs passes over its slots."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reason_spec.engines.machine import auto_device
from reason_spec.engines.torch.attention import ActivePass, KeyValueStore, register_attention, set_active_pass
from reason_spec.engines.torch.check import check_against_plain_forward
from reason_spec.engines.torch.fused import FusedDecoder, can_fuse
from reason_spec.engines.torch.layout import Chain, PassBuilder, PassLayout
from reason_spec.errors import EngineError, UnsupportedModelError
from reason_spec.loading import LOADING
from reason_spec.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_DEFAULT_MAX_CONTEXT = 4096
_SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(slots=True)
class Model:
    """A loaded model and its keys and values."""

    module: PreTrainedModel
    store: KeyValueStore
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    max_context: int
    fused: FusedDecoder | None = None
    """The module's layers in few operations; None: the module runs them itself."""

    def run(self, layout: PassLayout) -> Tensor:
        """Run one pass; return the logits [entries with logits, vocabulary].

        Keys and values of all entries are in their slots afterwards.
        """
        active = ActivePass(layout, self.store, self.device, self.dtype)
        tokens = torch.tensor(layout.tokens, device=self.device)
        positions = torch.tensor(layout.positions, device=self.device)
        entries = torch.tensor(layout.logits_entries, dtype=torch.long, device=self.device)
        if self.fused is not None:
            logits = self.fused.run(tokens, positions, active, entries)
        else:
            logits = self._run_module(tokens, positions, active, entries)
        assert active.num_calls == self.store.num_layers, "a layer's attention did not run"
        return logits

    def _run_module(self, tokens: Tensor, positions: Tensor, active: ActivePass, entries: Tensor) -> Tensor:
        set_active_pass(active)
        try:
            output = self.module(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=entries,
            )
        finally:
            set_active_pass(None)
        logits = output.logits
        assert isinstance(logits, Tensor)
        return logits[0]


def load_model(settings: EngineSettings) -> Model:
    """Load a model and check it.

    Raises:
        EngineError: the model cannot be found or read.
        UnsupportedModelError: it is not a causal LM made of plain attention layers.
    """
    register_attention()
    device = _pick_device(settings.device)
    dtype = _pick_dtype(settings.dtype, device)
    config = _load_config(settings)
    _refuse_other_architectures(settings.model, config)
    module = _load_module(settings, config, dtype).to(device).eval()
    max_context = min(_context_of(config, settings), settings.cache_tokens)
    model = Model(
        module=module,
        store=KeyValueStore(settings.cache_tokens),
        device=device,
        dtype=dtype,
        vocab_size=int(module.get_output_embeddings().weight.shape[0]),
        max_context=max_context,
        fused=_fuse(settings, module, max_context),
    )
    check_against_plain_forward(settings.model, model)
    return model


def _fuse(settings: EngineSettings, module: PreTrainedModel, max_context: int) -> FusedDecoder | None:
    if settings.torch.layers == "module":
        return None
    if can_fuse(module):
        return FusedDecoder(module, max_context)
    if settings.torch.layers == "fused":
        raise UnsupportedModelError(
            f"model {settings.model!r} ({type(module).__name__}) has no fused layers; set layers: auto. "
            "Fused are Llama, Qwen2 and Qwen3 with full attention in every layer and weights as they are."
        )
    return None


def measure_single_token_pass(model: Model, context: int = 128, repeats: int = 5) -> float:
    """Return the median seconds of a pass with one token behind ``context`` others."""
    context = min(context, model.max_context - 1)
    seconds = []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            chain = Chain([0], np.arange(context, dtype=np.int64), 0, 1, 0, 0)
            layout = PassBuilder().build([chain], [context])
            started = time.perf_counter()
            model.run(layout).argmax(-1).tolist()
            seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])[repeats // 2]


def _pick_device(name: str) -> torch.device:
    if name == "auto":
        name = auto_device()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).splitlines()[0]
        raise EngineError(f"device {name!r} cannot be used: {first_line}; try device: cpu") from None
    return device


def _pick_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _source_arguments(settings: EngineSettings) -> dict[str, Any]:
    return {"trust_remote_code": settings.trust_remote_code, "revision": settings.revision}


def _load_config(settings: EngineSettings) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(settings.model, **_source_arguments(settings))
    except Exception as error:
        raise _not_loadable(settings.model, error) from error
    assert not isinstance(config, dict)
    return config


def _load_module(settings: EngineSettings, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with LOADING:
            module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                settings.model,
                config=config,
                dtype=dtype,
                attn_implementation="eager",
                **_source_arguments(settings),
            )
    except Exception as error:
        raise _not_loadable(settings.model, error) from error
    return module


def _not_loadable(model: str, error: Exception) -> EngineError:
    detail = str(error).strip().splitlines() or [type(error).__name__]
    return EngineError(
        f"model {model!r} could not be loaded: {detail[0]} "
        "Give a folder that holds config.json and weights, or the id of a model that this machine has "
        "cached or can download."
    )


def _refuse_other_architectures(name: str, config: PretrainedConfig) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = f"model {name!r} (type {config.model_type!r})"
    served = "the torch engine serves causal LMs made of plain attention layers."
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{kind} is an encoder-decoder model; {served}")
    if getattr(config, "vision_config", None) or getattr(config, "audio_config", None):
        raise UnsupportedModelError(f"{kind} is a multimodal model; {served}")
    has_remote_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not has_remote_code:
        raise UnsupportedModelError(f"{kind} is not a causal LM; {served}")
    other = set(getattr(config, "layer_types", None) or ()) - _SERVED_LAYER_TYPES
    if other:
        raise UnsupportedModelError(f"{kind} has layers of type {', '.join(sorted(other))}; {served}")


def _context_of(config: PretrainedConfig, settings: EngineSettings) -> int:
    made_for = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if made_for is None:
        return settings.max_context or _DEFAULT_MAX_CONTEXT
    if settings.max_context is not None and settings.max_context > made_for:
        raise EngineError(
            f"max_context={settings.max_context} is more than the {made_for} tokens that model "
            f"{settings.model!r} was made for; set {made_for} or less"
        )
    return int(settings.max_context or made_for)
