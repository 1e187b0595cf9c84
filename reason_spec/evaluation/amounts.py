"""Amounts as people read them."""

from __future__ import annotations

import time


def size(num_bytes: float) -> str:
    """Return a number of bytes with its unit."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural where it has one."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def ago(seconds: float | None) -> str:
    """Return how long ago a time in seconds since 1970 is, as people say it."""
    if seconds is None:
        return "-"
    passed = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"{passed / length:.0f} {unit} ago"
    return "now"
