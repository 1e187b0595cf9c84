"""The memory that an engine will need, from its settings and its model's configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reason_spec.engines.machine import auto_device
from reason_spec.engines.model_files import cached_numbers_per_token, read_config, resolve_model
from reason_spec.engines.vllm.arguments import on_cpu, parallel_sizes
from reason_spec.loading import empty_causal_lm
from reason_spec.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Sizes in bytes, over all ``num_devices`` that share the model.

    ``folder`` is that of the model's files, or its id. ``cache_tokens`` is None if vLLM sizes the cache by
    the memory that is left.
    """

    model: str
    folder: str
    kind: str
    device: str
    num_devices: int
    dtype: str
    num_parameters: int
    weights: int
    per_cached_token: int
    cache_tokens: int | None

    @property
    def places(self) -> tuple[str, ...]:
        """The devices that hold the model, by names that are equal for two engines on one device."""
        kind, _, numbers = self.device.partition(":")
        if kind != "cuda":
            return (kind,)
        return tuple(f"cuda:{n}" for n in (numbers.split(",") if numbers else range(self.num_devices)))

    @property
    def cache(self) -> int:
        return self.per_cached_token * (self.cache_tokens or 0)

    @property
    def on_each_device(self) -> int:
        """Weights, keys and values on each device, without the runtime and activations."""
        return (self.weights + self.cache) // self.num_devices


def footprint(name: str, settings: EngineSettings) -> Footprint:
    """Return the footprint of the engine called ``name``.

    Raises:
        EngineError: the model's configuration cannot be read.
    """
    folder = resolve_model(name, settings.model)
    config = read_config(settings.model_copy(update={"model": folder}))
    device, num_devices = _placement(settings)
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    num_parameters = _count_parameters(config, settings)
    # On a GPU vLLM fills its share of the memory with keys and values, unless their number is set.
    fills = settings.kind == "vllm" and device != "cpu" and "cache_tokens" not in settings.model_fields_set
    packs = settings.kind == "torch" and device == "cpu" and dtype != "float16"
    copied = _count_packed_twice(config) if packs else 0
    return Footprint(
        model=settings.model,
        folder=folder,
        kind=settings.kind,
        device=device,
        num_devices=num_devices,
        dtype=dtype,
        num_parameters=num_parameters,
        weights=(num_parameters + copied) * _BYTES[dtype],
        per_cached_token=cached_numbers_per_token(config) * _BYTES[dtype],
        cache_tokens=None if fills else settings.cache_tokens,
    )


def _placement(settings: EngineSettings) -> tuple[str, int]:
    """Return the kind of device with its indices, and the number of devices that share the model."""
    device = settings.device
    if settings.kind == "vllm":
        tensor, pipeline = parallel_sizes(settings)
        if device == "auto":
            device = "cpu" if on_cpu(settings) else "cuda"
        return device, tensor * pipeline
    return auto_device() if device == "auto" else device, 1


def _count_parameters(config: PretrainedConfig, settings: EngineSettings) -> int:
    """Count by building the model without memory for its weights; tied ones count once."""
    model: Any = empty_causal_lm(config, trust_remote_code=settings.trust_remote_code)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def _count_packed_twice(config: PretrainedConfig) -> int:
    """Count the weights of which the torch engine has a packed copy beside the plain one: tied embeddings."""
    from reason_spec.engines.torch.products import MIN_PACKED

    number = int(getattr(config, "vocab_size", 0)) * int(getattr(config, "hidden_size", 0))
    return number if config.tie_word_embeddings and number >= MIN_PACKED else 0
