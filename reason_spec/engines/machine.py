"""What this machine has to give: read from the system, control groups of containers included."""

from __future__ import annotations

from pathlib import Path


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that is free to this process; a container's limit counts too."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = ("".join(read_words(cgroup / name)) for name in ("memory.max", "memory.current"))
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return free


def auto_device() -> str:
    """Return the device that ``auto`` stands for: the best one that torch can use here."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def read_words(file: Path) -> list[str]:
    """Return the words of a file of the system, none where there is no such file."""
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
