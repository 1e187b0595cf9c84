"""Digests of models, so that a folder of results is not continued with other weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from reason_spec.engines.digests import digest_file, digest_model
from reason_spec.engines.gguf import find_gguf
from reason_spec.engines.lora import find_adapter
from reason_spec.engines.model_package import find_packaged
from reason_spec.engines.pruned import find_pruned
from reason_spec.errors import DataError, ReasonSpecError
from reason_spec.pair import embedded_path
from reason_spec.settings import EngineSettings, Settings


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
    target, draft = (
        _digest_files(role, engine.model) if engine.kind in ("torch", "vllm") else None
        for role, engine in (("target", settings.target), ("draft", settings.draft))
    )
    return WeightDigests(
        target=target,
        draft=draft,
        verifier=_digest_part(verifier.embedding_model),
        router=None if settings.router.file is None else _digest_named(settings.router.file),
        semantic=_digest_part(verifier.semantic_model),
        # A server names its reward model.
        reward=None if verifier.reward_url else _digest_part(verifier.reward_model),
        judge=None if judge is None or judge.kind in ("remote", "scripted") else _digest_part(judge.model),
        exit_policy=None if settings.exit.policy is None else _digest_named(settings.exit.policy),
        drafter=_digest_part(settings.target.drafter),
        token_judge=_digest_part(torch.judge),
    )


def identify_model(role: str, engine: EngineSettings) -> str:
    """Return the identity of a model: the digest of its files on this machine, or its id.

    Raises:
        DataError: a file cannot be read, or the embedded weights are missing.
    """
    if engine.kind == "scripted":
        return f"script {engine.model}"
    digest = _digest_files(role, engine.model)
    return f"sha256 {digest}" if digest else f"{engine.model}@{engine.revision or 'main'}"


def digest_folder(folder: Path) -> str:
    """Return a sha256 over configuration, tokenizer and weights of a model's folder; large files are sampled.

    Raises:
        DataError: a file cannot be read.
    """
    try:
        return digest_model(folder)
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read ({error.strerror}).") from error


def _digest_files(role: str, model: str) -> str | None:
    """Return the digest of a model's files, and of those of the base model that an adapter or draft needs."""
    if model == "embedded":
        return digest_folder(embedded_path("draft" if role == "draft" else "target"))
    try:
        model = str(find_packaged(model) or model)
        gguf = find_gguf(model)
        adapter, pruned = find_adapter(model), find_pruned(model)
    except ReasonSpecError as error:
        raise DataError(str(error)) from None
    if gguf is not None:
        return gguf.sha256 or _digest_named(gguf.parts[0])
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return None
    own, base = digest_folder(folder), None
    if adapter is not None:
        base = _digest_files(role, adapter.base)
    elif pruned is not None:
        base = _digest_files("target", pruned.config.base)
    # A base model without files here is named by the folder's configuration.
    return own if base is None else hashlib.sha256(f"{own} {base}".encode()).hexdigest()


def _digest_part(model: str | None) -> str | None:
    return None if model is None else _digest_files("verifier", model)


def _digest_named(path: Path) -> str:
    try:
        return digest_file(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
