"""Numbers as people read them: amounts, ratios, percentages, seconds, intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from reason_spec.evaluation.statistics import Interval

NONE = "-"


def size(num_bytes: float) -> str:
    """Return a number of bytes with its unit."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def ago(seconds: float | None) -> str:
    """Return the time since a moment, which is given in seconds since 1970."""
    if seconds is None:
        return NONE
    passed = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"{passed / length:.0f} {unit} ago"
    return "now"


def ratio_text(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def times_text(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def points_text(share: float) -> str:
    """Return a share in percentage points, without zeros at the end."""
    points = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{points} point{'' if points == '1' else 's'}"


def seconds_text(seconds: float) -> str:
    """Return seconds with three significant digits."""
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def range_text(interval: Interval | None, text: Callable[[float], str]) -> str:
    return NONE if interval is None else f"{text(interval.low)}-{text(interval.high)}"


def percent_range(interval: Interval | None) -> str:
    return NONE if interval is None else f"{range_text(interval, lambda end: f'{100 * end:.1f}')} %"
