"""The locks: made of what is wanted now, by hash, good for any index, and without a package for CUDA."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reason_spec.engines.gguf import PACKAGED

ROOT = Path(__file__).parents[2]
MODELS = {"smollm2", "gemma3"}
NAMES = ("dev", "cpu", "agents", "harness", "oldest", "crewai", "aiperf", "uv", "docs")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lock(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.txt").read_text()


def entries(name: str) -> list[str]:
    """Return what is locked, each entry with its hashes."""
    return re.split(r"\n(?=\w)", lock(name).rstrip())[1:]


def versions(name: str) -> dict[str, set[str]]:
    """Return the versions of each package: more than one where Pythons or platforms differ."""
    found: dict[str, set[str]] = {}
    for entry in entries(name):
        package, version = entry.split()[0].split("==")
        found.setdefault(package, set()).add(version)
    return found


def test_every_lock_has_its_test(script: ModuleType) -> None:
    files = {path.stem for path in (ROOT / "requirements").iterdir()}
    assert files - MODELS == set(NAMES) == {*script.EXTRAS, *script.VARIABLES}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_wheels_of_models_are_those_that_are_looked_for(name: str) -> None:
    """They are no environments: written by hand, and installed without dependencies."""
    requirements = {line for model in PACKAGED.values() for line in model.requirements}
    pinned = re.findall(r"^(\S+==\S+)", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE)
    assert set(pinned) <= requirements
    assert (ROOT / "requirements" / f"{name}.txt").read_text().count("--hash=sha256:") == len(pinned)


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_was_made_of_what_is_wanted_now(script: ModuleType, name: str) -> None:
    assert lock(name).startswith(script.first_line(name)), "dependencies have changed: run `make lock`"
    locked = versions(name)
    for requirement in map(Requirement, script.wanted(name)):
        package = canonicalize_name(requirement.name)
        if package not in script.LEFT_OUT:
            assert package in locked, requirement
            assert all(requirement.specifier.contains(version) for version in locked[package]), requirement


@pytest.mark.parametrize("name", NAMES)
def test_all_is_locked_by_hash_and_no_index_is_named(name: str) -> None:
    assert entries(name)
    assert [entry for entry in entries(name) if "--hash=sha256:" not in entry] == []
    assert not re.search(r"://|--(extra-)?index|--find-links|file:", lock(name))


@pytest.mark.parametrize("name", NAMES)
def test_no_package_for_cuda_is_locked(name: str) -> None:
    # A binding of a few kilobytes, which AIPerf imports: it needs no CUDA.
    found = {package for package in versions(name) if re.match(r"(nvidia|cuda)-|torch", package)}
    assert found <= {"nvidia-ml-py"}


def test_what_is_wanted_changes_what_a_lock_is_made_of(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = script.first_line("crewai")
    monkeypatch.setattr(script, "makefile_variables", lambda: {"CREWAI": "crewai==1", "TORCH_VERSION": "1"})
    assert script.first_line("crewai") != before
