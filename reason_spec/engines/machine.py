"""The memory and the devices of this machine."""

from __future__ import annotations

from pathlib import Path


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


def read_words(file: Path) -> list[str]:
    """Return the words of a system file; none if it does not exist."""
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
