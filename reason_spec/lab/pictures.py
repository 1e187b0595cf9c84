"""Pictures need matplotlib, an extra: who wants one learns that before the work is done, not after it."""

from __future__ import annotations

from importlib.util import find_spec

from reason_spec.errors import MissingDependencyError


def require_matplotlib(needed_for: str) -> None:
    """Refuse to begin work whose picture could not be drawn.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingDependencyError("matplotlib", needed_for, extra="plots")
