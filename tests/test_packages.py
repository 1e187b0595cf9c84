"""What is built for a package index: three distributions, each from the project's files alone."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from reason_spec.errors import DataError
from reason_spec.shipped import shipped_weights
from tests.test_house import PACKAGE, ROOMS, ROOT, project_files

pytestmark = pytest.mark.packages

WEIGHTS = "reason-spec-weights"
VERSION = "9.8.7"
"""As of a tag."""
MOST_WHEEL_BYTES = 2_000_000
"""Of the code alone."""
LINKS = {"pair": PACKAGE / "pair" / "weights", "semantic": ROOT / "verifiers" / "weights"}
"""The folders of reason-spec-weights, and where a checkout keeps them."""


class Built(NamedTuple):
    """A copy of the project's files, and what was built from it."""

    tree: Path
    folder: Path
    wheel: Path
    sdist: Path
    wheel_from_sdist: Path
    weights: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    for path in project_files():
        copy = tree / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy, follow_symlinks=False)
    run(tree, "scripts/build_packages.py", "--version", VERSION, "--output", str(folder))
    (wheel,) = folder.glob("reason_spec-*.whl")
    (sdist,) = folder.glob("reason_spec-*.tar.gz")
    (weights,) = folder.glob("reason_spec_weights-*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    build(unpacked, folder / "again", "wheel")
    (wheel_from_sdist,) = (folder / "again").glob("*.whl")
    return Built(tree, folder, wheel, sdist, wheel_from_sdist, weights)


def build(source: Path, target: Path, *kinds: str) -> None:
    options = [option for kind in kinds for option in ("-t", kind)]
    run(source, "-m", "hatchling", "build", "-d", str(target), *options)


def run(folder: Path, *arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def packed_files(wheel: Path) -> dict[str, bytes]:
    """Return what a wheel puts into its package, none of which may be a link."""
    with zipfile.ZipFile(wheel) as archive:
        assert not any(stat.S_ISLNK(file.external_attr >> 16) for file in archive.infolist())
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def test_a_wheel_puts_the_package_alone_into_site_packages(built: Built) -> None:
    information = f"reason_spec-{VERSION}.dist-info"
    with zipfile.ZipFile(built.wheel) as wheel:
        assert {name.split("/")[0] for name in wheel.namelist()} == {"reason_spec", information}
        entry_points = wheel.read(f"{information}/entry_points.txt").decode()
        metadata = wheel.read(f"{information}/METADATA").decode()
    assert "reason-spec = reason_spec.__main__:main" in entry_points
    assert f"Requires-Dist: {WEIGHTS}" in metadata
    assert built.wheel.stat().st_size < MOST_WHEEL_BYTES


def test_a_wheel_holds_the_rooms_and_their_data_as_real_files_without_the_weights(built: Built) -> None:
    left_out = [built.tree / folder.relative_to(ROOT) for folder in LINKS.values()]
    expected = {}
    for room in ("reason_spec", *ROOMS):
        for path in (built.tree / room).rglob("*"):
            if path.is_file() and not any(path.is_relative_to(folder) for folder in left_out):
                place = path.relative_to(built.tree)
                packed = place if room == "reason_spec" else Path("reason_spec", place)
                expected[packed.as_posix()] = path.read_bytes()
    assert packed_files(built.wheel) == expected
    assert "reason_spec/py.typed" in expected


def test_the_weights_are_packed_as_real_files_from_where_a_checkout_keeps_them(built: Built) -> None:
    expected = {
        f"reason_spec_weights/{part}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for part, folder in LINKS.items()
        for path in folder.rglob("*")
        if path.is_file()
    }
    packed = packed_files(built.weights)
    code = {"reason_spec_weights/__init__.py", "reason_spec_weights/py.typed"}
    assert packed.keys() - expected.keys() == code
    assert {name: packed[name] for name in expected} == expected


def test_both_ways_to_a_wheel_pack_the_same_files(built: Built) -> None:
    assert packed_files(built.wheel) == packed_files(built.wheel_from_sdist)


def test_the_source_archives_hold_no_links(built: Built) -> None:
    archives = list(built.folder.glob("*.tar.gz"))
    assert len(archives) == 3
    for path in archives:
        with tarfile.open(path) as archive:
            assert [member.name for member in archive if member.issym() or member.islnk()] == []


def test_without_the_weights_the_way_to_them_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reason_spec_weights", None)
    monkeypatch.setattr("reason_spec.shipped._IN_CHECKOUT", {"semantic": tmp_path / "none"})
    with pytest.raises(DataError, match=f"pip install {WEIGHTS}"):
        shipped_weights("semantic")


# Installed -----------------------------------------------------------------------------------


class Environment:
    """A new environment with a CPU build of torch, and a folder in which nothing of the project lies."""

    def __init__(self, folder: Path, uv: str) -> None:
        self.folder = folder
        self._uv = uv
        self._python = folder / "venv" / "bin" / "python"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._variables = kept | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
        self._run(uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(folder / "venv"))
        self._run(str(self._python), str(ROOT / "scripts" / "install_torch.py"), "--build", "cpu")

    def install(self, *arguments: str) -> None:
        self._run(self._uv, "pip", "install", "--quiet", "--python", str(self._python), *arguments)

    def check(self) -> None:
        """Every package has what it asks for."""
        self._run(self._uv, "pip", "check", "--quiet", "--python", str(self._python))

    def place_of(self, module: str) -> Path:
        return Path(self._run(str(self._python), "-c", f"import {module}; print({module}.__file__)").strip())

    def reason_spec(self, *arguments: str) -> str:
        return self._run(str(self._python.with_name("reason-spec")), *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self._variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheels, and all that they ask for as new as in the lock."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is None:
        pytest.skip("needs uv; `make install` brings it")
    made = Environment(tmp_path_factory.mktemp("environment"), uv)
    made.install(
        f"--find-links={built.folder}", f"--constraints={ROOT / 'requirements' / 'dev.txt'}",
        f"reason-spec[real] @ {built.wheel.as_uri()}",
    )  # fmt: skip
    return made


SOLVE = ("solve", "--sample", "--limit", "2", "--max-tokens", "192", "--fresh")


@pytest.mark.timeout(600)
def test_wheels_in_an_empty_environment_solve_with_the_pair_and_find_the_models(
    environment: Environment,
) -> None:
    environment.check()
    for module in ("reason_spec", "reason_spec_weights", "reason_spec_models"):
        assert environment.place_of(module).is_relative_to(environment.folder)
    assert environment.reason_spec("--version").strip() == VERSION
    shown = environment.reason_spec(*SOLVE, "--strategy", "lookahead", "--output", "wheel")
    assert len((environment.folder / "wheel" / "results.jsonl").read_text().splitlines()) == 2, shown


@pytest.mark.timeout(600)
def test_source_archives_in_the_same_environment_solve_too(environment: Environment, built: Built) -> None:
    archives = sorted(map(str, built.folder.glob("*.tar.gz")))
    assert len(archives) == 3
    environment.install("--reinstall", "--no-deps", *archives)
    shown = environment.reason_spec(*SOLVE, "--strategy", "speculative", "--output", "source")
    assert len((environment.folder / "source" / "results.jsonl").read_text().splitlines()) == 2, shown
