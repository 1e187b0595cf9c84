"""Loads a Hugging Face causal LM and checks it."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from reason_spec.engines.machine import pick_device, pick_dtype
from reason_spec.engines.model_files import not_loadable, read_config
from reason_spec.engines.torch.attention import ATTENTION_NAME, KeyValueStore, register_attention
from reason_spec.engines.torch.check import check_against_plain_forward
from reason_spec.engines.torch.fused import FusedDecoder, can_fuse
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.products import pack_linears
from reason_spec.engines.torch.trimmed_head import TrimmedHead, read_vocabulary
from reason_spec.errors import EngineError, UnsupportedModelError
from reason_spec.loading import load_causal_lm
from reason_spec.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_DEFAULT_MAX_CONTEXT = 4096
_SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}


def load_model(settings: EngineSettings) -> Model:
    """Load a model, check it, and pack its weights.

    Raises:
        EngineError: the model cannot be found or read.
        UnsupportedModelError: it is not a causal LM made of plain attention layers.
    """
    model = load_unpacked(settings)
    _make_fast(settings.model, model)
    return model


def load_unpacked(settings: EngineSettings) -> Model:
    """Load a model and check it; its weights stay as they were read.

    Raises:
        EngineError: the model cannot be found or read.
        UnsupportedModelError: it is not a causal LM made of plain attention layers.
    """
    register_attention()
    device = pick_device(settings.device)
    dtype = pick_dtype(settings.dtype, device)
    config = read_config(settings)
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


def replace_layers(model: Model, settings: EngineSettings, file: Path) -> None:
    """Load a pruned draft again, with the layers and the last norm of a file.

    Raises:
        EngineError: the file is damaged, or is of a draft of another shape; the model stays as it was.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{str(file)!r} cannot be read: {error}; train the draft again") from None
    # The weights of the running model may be packed.
    module = _load_module(settings, read_config(settings), model.dtype).to(model.device).eval()
    trained = ("model.layers.", "model.norm.")
    own = {name: one for name, one in module.named_parameters() if name.startswith(trained)}
    if other := own.keys() ^ weights.keys():
        raise EngineError(f"{str(file)!r} is of a draft with other layers: {min(other)}")
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            shapes = f"{list(weight.shape)} instead of {list(own[name].shape)}"
            raise EngineError(f"{str(file)!r} is of a draft of another size: {name} is {shapes}")
        if not bool(weight.isfinite().all()):
            raise EngineError(f"{str(file)!r}: {name} is not finite; train the draft again")
        own[name].data.copy_(weight)
    # Modules are loaded with their own attention, which knows no slots.
    module.set_attn_implementation(ATTENTION_NAME)
    model.module, model.fused = module, _fuse(settings, module, model.max_context)
    _make_fast(settings.model, model)


def _make_fast(name: str, model: Model) -> None:
    """Trim the output layer of a draft, and pack the weights."""
    module = model.module
    if (vocabulary := read_vocabulary(name)) is not None:
        module.set_output_embeddings(TrimmedHead(module.get_output_embeddings(), vocabulary))
    if model.fused is not None:
        model.fused.pack()
    # Code that came with a model may read the weights of its layers itself.
    if not type(module).__module__.startswith("transformers_modules"):
        pack_linears(module, shared=module.get_input_embeddings().weight)
    if model.fused is not None:
        model.fused.head = module.get_output_embeddings()
    _return_freed_memory()


def _return_freed_memory() -> None:
    """Give the memory of weights that were joined and packed back to the system; glibc would keep it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # Another C library: nothing is known of what it keeps.
        return
    trim(0)


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


def _load_module(settings: EngineSettings, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        return load_causal_lm(
            settings.model,
            dtype,
            config=config,
            attn_implementation="eager",
            trust_remote_code=settings.trust_remote_code,
            revision=settings.revision,
        )
    except Exception as error:
        raise not_loadable(settings.model, error) from error


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
