"""Renew the lock files: the packages of each environment of the Makefile, by version and hash.

A lock is good for every platform and Python, and names no index: the files of a mirror have the same hashes.
torch is in none: its build differs by machine. `install_torch.py` installs it, as the Makefile says which.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
EXTRAS = {
    "dev": ("dev",),
    "cpu": ("dev", "cpu"),
    "agents": ("dev", "agents"),
    "harness": ("dev", "inspect", "harness", "guidellm", "ray", "ray-serve"),
}
"""The extras of the package that an environment has."""
VARIABLES = {"oldest": "OLDEST", "crewai": "CREWAI", "aiperf": "AIPERF", "uv": "INSTALLER", "docs": "DOCS"}
"""Environments without the package itself, and the variable of the Makefile with their requirements."""
OURS = "reason-spec"
"""Distributions of this repository are installed from it."""
OLDEST_PYTHON = "3.11"
# Builds of the last three for a CPU torch are nowhere to be had; those that come with vLLM break imports of
# model classes.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
# What the CPU build asks for: the one of the index asks for CUDA packages.
TORCH_ASKS_FOR = (
    "filelock", "fsspec>=0.8.5", "jinja2", "networkx>=2.5.1", "setuptools>=77.0.3", "sympy>=1.13.3",
    "typing-extensions>=4.10.0",
)  # fmt: skip


def makefile_variables() -> dict[str, str]:
    """Return the variables that the Makefile gives a default."""
    return dict(re.findall(r"^(\w+) *\?= *(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))


def wanted(name: str) -> list[str]:
    """Return the requirements of an environment, from `pyproject.toml` and the Makefile."""
    if name in VARIABLES:
        return makefile_variables()[VARIABLES[name]].split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS[name] for line in optional[extra])]
    return [line for line in lines if not line.startswith(OURS)]


def first_line(name: str) -> str:
    """Return the first line of a lock file: a digest of the requirements it was made from."""
    made_of = [sorted(wanted(name)), makefile_variables()["TORCH_VERSION"], LEFT_OUT, TORCH_ASKS_FOR]
    return f"# Made by `make lock`, of {hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]}\n"


@contextmanager
def uv(folder: Path) -> Iterator[str]:
    """Yield the command uv: of this environment or the machine, else one for as long as it is needed."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-qq", "--target", folder / "uv", "uv"], check=True
        )
        found = str(folder / "uv" / "bin" / "uv")
    yield found


def resolve(command: str, name: str, folder: Path, *, upgrade: bool) -> str:
    """Return the lock of an environment, resolved now; versions of the one before stay where they fit."""
    settings, versions, source = folder / "uv.toml", folder / "versions.txt", folder / f"{name}.in"
    metadata = {"name": "torch", "requires-dist": list(TORCH_ASKS_FOR)}
    pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in metadata.items())
    settings.write_text(f"dependency-metadata = [{{ {pairs} }}]\n")
    # vLLM asks for a CPU build by name, which the index does not have.
    versions.write_text(f"torch=={makefile_variables()['TORCH_VERSION']}\n")
    source.write_text("\n".join(wanted(name)) + "\n")
    left_out = [option for package in LEFT_OUT for option in ("--no-emit-package", package)]
    options = ["--universal", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    options += ["--python-version", OLDEST_PYTHON, "--override", str(versions), *left_out]
    made = folder / f"{name}.txt"
    if not upgrade and (before := FOLDER / made.name).exists():
        shutil.copy(before, made)
    subprocess.run(
        [command, "--config-file", settings, "pip", "compile", *options, "--output-file", made, source],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return made.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reason-spec-lock-") as place, uv(Path(place)) as command:
        for name in (*EXTRAS, *VARIABLES):
            text = first_line(name) + resolve(command, name, Path(place), upgrade=upgrade)
            (FOLDER / f"{name}.txt").write_text(text)
            print(
                f"requirements/{name}.txt: {len(re.findall('^[a-z]', text, re.MULTILINE))} packages",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
