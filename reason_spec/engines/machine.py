"""The memory and the devices of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the free memory within the limit of the container."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = ("".join(read_words(cgroup / name)) for name in ("memory.max", "memory.current"))
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return free


def auto_device() -> str:
    """Return the best device that torch can use."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def mixed_precision(device: torch.device) -> torch.autocast:
    """Return a context of bfloat16 products where the device has them, of float32 elsewhere.

    A CPU without bfloat16 instructions (AVX512-BF16, AMX) emulates them in about eight times the time.
    """
    import torch

    supported = True
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return torch.autocast(device.type, torch.bfloat16, enabled=supported)


def read_words(file: Path) -> list[str]:
    """Return the words of a system file; none if it does not exist."""
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
