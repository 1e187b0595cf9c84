"""The memory and the devices of this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from reason_spec.errors import EngineError

if TYPE_CHECKING:
    import torch

_WORTH_CASTING: Final = 0.75
"""Relative time of bfloat16 products from which on the casts around them cost more than they save."""


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


def pick_device(name: str) -> torch.device:
    """Return a device by name, or the best one for ``auto``.

    Raises:
        EngineError: torch cannot use it.
    """
    import torch

    name = auto_device() if name == "auto" else name
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).splitlines()[0]
        raise EngineError(f"device {name!r} cannot be used: {first_line}; try device: cpu") from None
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return a dtype by name; ``auto`` is float32 on a CPU, else bfloat16."""
    import torch

    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def mixed_precision(device: torch.device) -> torch.autocast:
    """Return a context of bfloat16 products where the device is faster at them, of float32 elsewhere."""
    import torch

    faster = True
    if device.type == "cuda":
        faster = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        faster = bfloat16_time_on_cpu() < _WORTH_CASTING
    return torch.autocast(device.type, torch.bfloat16, enabled=faster)


@cache
def bfloat16_time_on_cpu() -> float:
    """Return the measured time of bfloat16 products over that of float32, each at its best of some.

    What a CPU names says too little: with AVX512-BF16 they take half the time on one CPU and longer on
    another, and without it eight times as long.
    """
    import torch

    def seconds(dtype: torch.dtype) -> float:
        rows, weights = torch.ones(512, 768, dtype=dtype), torch.ones(768, 768, dtype=dtype)
        times = []
        for _ in range(6):
            started = perf_counter()
            torch.mm(rows, weights)
            times.append(perf_counter() - started)
        return min(times)

    with torch.no_grad():
        return seconds(torch.bfloat16) / seconds(torch.float32)


def read_words(file: Path) -> list[str]:
    """Return the words of a system file; none if it does not exist."""
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
