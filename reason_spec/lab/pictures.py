"""Figures need matplotlib, an optional dependency that is checked before the work and loaded late."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from reason_spec.errors import MissingDependencyError


def require_matplotlib(needed_for: str) -> None:
    """Fail before the work whose figure could not be drawn.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingDependencyError("matplotlib", needed_for, extra="plots")


def new_figure(width: float, height: float, **subplots: Any) -> tuple[Any, Any]:
    """Return a figure of this size in inches and its axes, without any window system."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**subplots)
