"""Digests of models, so that a folder of results is not continued with other weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from reason_spec.engines.digests import digest_file
from reason_spec.engines.gguf import find_gguf
from reason_spec.engines.model_package import find_packaged
from reason_spec.errors import DataError, ReasonSpecError
from reason_spec.pair import embedded_path
from reason_spec.settings import EngineSettings, Settings

_CONFIGURATION: Final = (
    "config.json",
    "generation_config.json",
    "*.index.json",
    "*token*.json",
    "vocab.json",
    "*.jinja",
    "*.onnx",
    "calibration.json",
    "merges.txt",
    "vocab.txt",
    "*.model",
    "*.py",
)


@dataclass(frozen=True, slots=True)
class WeightDigests:
    """The digest of each model's files.

    None stands for models without files on this machine: scripts, the pinned sentence encoder, and Hugging
    Face ids, which are named by id and ``revision``.
    """

    target: str | None
    draft: str | None
    verifier: str | None
    router: str | None = None
    semantic: str | None = None
    reward: str | None = None
    judge: str | None = None
    exit_policy: str | None = None
    drafter: str | None = None
    token_judge: str | None = None


def digest_weights(settings: Settings) -> WeightDigests:
    """Read the local model files that the settings name.

    Raises:
        DataError: a file cannot be read, or the embedded weights are missing.
    """
    verifier, judge, torch = settings.verifier, settings.verifier.judge, settings.target.torch
    return WeightDigests(
        target=_digest_files("target", settings.target) if settings.target.kind == "torch" else None,
        draft=_digest_files("draft", settings.draft) if settings.draft.kind == "torch" else None,
        verifier=_digest_part(verifier.embedding_model),
        router=None if settings.router.file is None else _digest_named(settings.router.file),
        semantic=_digest_part(verifier.semantic_model),
        # A server names its reward model.
        reward=None if verifier.reward_url else _digest_part(verifier.reward_model),
        judge=None if judge is None or judge.kind in ("remote", "scripted") else _digest_part(judge.model),
        exit_policy=None if settings.exit.policy is None else _digest_named(settings.exit.policy),
        drafter=_digest_part(torch.drafter),
        token_judge=_digest_part(torch.judge),
    )


def identify_model(role: str, engine: EngineSettings) -> str:
    """Return the identity of a model: the digest of its files on this machine, or its id.

    Raises:
        DataError: a file cannot be read, or the embedded weights are missing.
    """
    if engine.kind == "scripted":
        return f"script {engine.model}"
    digest = _digest_files(role, engine)
    return f"sha256 {digest}" if digest else f"{engine.model}@{engine.revision or 'main'}"


def digest_folder(folder: Path) -> str:
    """Return a sha256 over configuration, tokenizer and weights of a model's folder; large files are sampled.

    Raises:
        DataError: a file cannot be read.
    """
    total = hashlib.sha256()
    try:
        for path in _model_files(folder):
            total.update(f"{path.name}\0{digest_file(path)}\n".encode())
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read ({error.strerror}).") from error
    return total.hexdigest()


def _digest_files(role: str, engine: EngineSettings) -> str | None:
    if engine.model == "embedded":
        return digest_folder(embedded_path("draft" if role == "draft" else "target"))
    return _digest_local(engine.model)


def _digest_local(model: str) -> str | None:
    try:
        model = str(find_packaged(model) or model)
        gguf = find_gguf(model)
    except ReasonSpecError as error:
        raise DataError(str(error)) from None
    if gguf is not None:
        return gguf.sha256 or _digest_named(gguf.parts[0])
    folder = Path(model).expanduser()
    return digest_folder(folder) if folder.is_dir() else None


def _digest_part(model: str | None) -> str | None:
    return None if model is None else _digest_local(model)


def _model_files(folder: Path) -> list[Path]:
    """Return the files that transformers loads; it prefers safetensors."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    weights = [path for path in files if path.suffix == ".safetensors"]
    weights = weights or [path for path in files if path.suffix == ".bin"]
    return [path for path in files if any(fnmatch(path.name, name) for name in _CONFIGURATION)] + weights


def _digest_named(path: Path) -> str:
    try:
        return digest_file(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
