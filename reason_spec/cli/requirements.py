"""Declared requirements of this distribution, compared with the installed packages."""

from __future__ import annotations

import importlib.metadata
import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "reason-spec"


class Requirements(NamedTuple):
    """Packages this distribution asks for: always, and for each extra."""

    base: list[Requirement]
    extras: dict[str, list[Requirement]]


def declared_requirements() -> Requirements | None:
    """Read the requirements from the installed metadata; None where nothing is installed."""
    from packaging.requirements import Requirement

    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    parsed = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or []]
    extras = {
        extra: [
            r for r in parsed if r.marker and "extra" in str(r.marker) and r.marker.evaluate({"extra": extra})
        ]
        for extra in metadata.get_all("Provides-Extra") or []
    }
    base = [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return Requirements(base, extras)


def requirement_problem(requirement: Requirement) -> str | None:
    """Say how an installed package misses its requirement, None where it does not."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} {version} is outside {requirement.specifier}"
    return None


def install_line(extra: str | None = None) -> str:
    """Return the command that installs this distribution the way it was installed here."""
    suffix = f"[{extra}]" if extra else ""
    folder = editable_folder()
    return f"pip install '{DISTRIBUTION}{suffix}'" if folder is None else f"pip install -e '{folder}{suffix}'"


def editable_folder() -> str | None:
    """Return the folder of an editable install, None for any other (PEP 610)."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(text) if text else {}
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return str(origin["url"]).removeprefix("file://")
