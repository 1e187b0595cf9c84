"""Errors of the user or the environment. A message names the fault, the value and the remedy.

The command line prints them without a traceback. Bugs of this package are assertions instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class ReasonSpecError(Exception):
    """Base class of errors with a remedy; ``str(error)`` is a complete message."""

    exit_code = 2


class SettingsError(ReasonSpecError):
    """A setting has an unknown name or a value out of range."""


class DataError(ReasonSpecError):
    """An input file is missing or damaged, or lacks a field."""


class EngineError(ReasonSpecError):
    """An engine could not start, or failed during generation."""


class UnsupportedModelError(EngineError):
    """A model cannot run on the chosen engine."""


class PromptTooLongError(EngineError):
    """A prompt fills the model's context; the engine is not at fault."""


class MissingDependencyError(ReasonSpecError):
    """An optional package is missing; the message holds the install command."""

    def __init__(self, package: str, needed_for: str, extra: str | None = None) -> None:
        target = f"reason-spec[{extra}]" if extra else package
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install '{target}'"
        )


class ResumeError(ReasonSpecError):
    """An output folder holds a run of other settings, or cannot be continued."""


def first_mistake(error: ValidationError) -> str:
    """Return pydantic's first error message, with the path of the field."""
    found = error.errors()[0]
    place = ".".join(map(str, found["loc"]))
    return f"{place}: {found['msg']}" if place else found["msg"]


def unknown_name(kind: str, name: str, known: Iterable[str]) -> SettingsError:
    """Return the error for an unknown name; its message suggests the nearest of ``known`` and lists all."""
    names = list(known)
    guess = did_you_mean(name, names) or "."
    return SettingsError(f"unknown {kind} {name!r}{guess} Known: {', '.join(names)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest of ``known``, or an empty text if none is near."""
    folded = {candidate.casefold(): candidate for candidate in known}
    close = get_close_matches(name.casefold(), folded, n=1)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


class RequestError(ReasonSpecError):
    """A request cannot be served. The message names the reason and the remedy, ``param`` the field."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ConstraintError(RequestError):
    """A constraint cannot be compiled, is too large, or is not supported by the engine."""
