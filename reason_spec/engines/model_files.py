"""The files of a model, given by folder, Hugging Face id, packaged name, GGUF file or LoRA adapter."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reason_spec.engines.gguf import dequantized, find_gguf
from reason_spec.engines.lora import find_adapter, merged
from reason_spec.engines.model_package import find_packaged
from reason_spec.engines.pruned import PrunedConfig, composed, find_pruned
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The weights in one file, and the names of the files that hold them otherwise."""
_BESIDE_WEIGHTS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Endings of the files of configuration, tokenizer and code."""


def resolve_model(name: str, model: str) -> str:
    """Return the folder or id that the engine called ``draft``, ``target`` or ``judge`` loads.

    At the first use a GGUF file is dequantized, a LoRA adapter merged into its base model, and a pruned draft
    composed with it (`reason_spec.engines.gguf`, `lora`, `pruned`).

    Raises:
        EngineError: there is no such embedded model, a model cannot be converted, or its package is not
            installed.
        MissingDependencyError: a package that reading GGUF takes is not installed.
        SettingsError: there is no such packaged model.
    """
    if model != "embedded":
        model = str(find_packaged(model) or model)
        gguf = find_gguf(model)
        if gguf is not None:
            return str(dequantized(gguf))
        if (adapter := find_adapter(model)) is not None:
            return str(merged(adapter, local_folder(resolve_model(name, adapter.base))))
        if (draft := find_pruned(model)) is not None:
            return str(composed(draft, base_folder(draft.config)))
        return str(Path(model).expanduser()) if model.startswith("~") else model
    from reason_spec.pair import embedded_path

    match name:
        case "draft" | "target" | "judge":
            return str(embedded_path(name))
    raise EngineError(f"there is no embedded model for an engine called {name!r}; name a folder or an id")


def local_folder(model: str, revision: str | None = None) -> Path:
    """Return the folder of a model's files; those of a Hugging Face id are fetched.

    Args:
        revision: branch, tag or commit of an id.

    Raises:
        EngineError: they cannot be fetched.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            model,
            revision=revision,
            allow_patterns=["*.json", "*.jinja", "*.py", "*.safetensors"],
            # The same weights once more, in another form.
            ignore_patterns=["consolidated*"],
        )
        return Path(folder)
    except Exception as error:
        raise _not_fetched(model, "*.safetensors", error) from error


def base_folder(config: PrunedConfig) -> Path:
    """Return the folder of the model that a pruned draft was made of.

    Raises:
        EngineError, MissingDependencyError, SettingsError: as `resolve_model` and `local_folder` do.
    """
    # The demonstration pair has two models; drafts are made of its target.
    return local_folder(resolve_model("target", config.base), config.revision)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights that transformers loads; others may hold the same ones in another form.

    Raises:
        EngineError: it has no safetensors.
    """
    if (whole := folder / WHOLE).is_file():
        return [whole]
    index = folder / INDEX
    if not index.is_file():
        raise EngineError(
            f"{str(folder)!r} holds neither {WHOLE} nor {INDEX}; save the model there with save_pretrained "
            "of transformers"
        )
    return [folder / name for name in sorted(set(read_json(index)["weight_map"].values()))]


def copy_beside_weights(source: Path, folder: Path) -> None:
    """Copy what a model's folder holds beside its weights: configuration, tokenizer and code."""
    for path in source.iterdir():
        if path.is_file() and path.suffix in _BESIDE_WEIGHTS and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)


def read_config(settings: EngineSettings) -> PretrainedConfig:
    """Return the configuration of a model.

    Raises:
        EngineError: it cannot be read.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            settings.model, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:
        raise not_loadable(settings.model, error) from error


def not_loadable(model: str, error: Exception) -> EngineError:
    detail = str(error).strip().splitlines() or [type(error).__name__]
    return EngineError(
        f"model {model!r} could not be loaded: {detail[0]} "
        "Give a folder that holds config.json and weights, or the id of a model that this machine has "
        "cached or can download."
    )


def cached_numbers_per_token(config: Any) -> int:
    """Return how many numbers the keys and values of one token have, over all layers."""
    config = config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * num_kv_heads(config) * width)


def num_kv_heads(config: Any) -> int:
    config = config.get_text_config()
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def find_file(model: str, name: str, revision: str | None, *, required: bool = False) -> Path | None:
    """Return a file of a model, None where the model has none of that name.

    A file that is not ``required`` also counts as missing if it is not in this machine's cache and the Hub
    cannot be reached.

    Raises:
        EngineError: the file cannot be fetched for another reason; the message names it and the remedy.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    # It logs each attempt; the error that follows has all of it.
    logger.setLevel(logging.ERROR)
    try:
        cached = try_to_load_from_cache(model, name, revision=revision)
        if cached is not None:
            # Not a string: the cache remembers that the model has no such file.
            return Path(cached) if isinstance(cached, str) else None
        return Path(hf_hub_download(model, name, revision=revision))
    except LocalEntryNotFoundError as error:
        # Raised for a server that answers with an error, and for one that does not answer.
        if not required and not isinstance(error.__cause__, HfHubHTTPError):
            return None
        raise _not_fetched(model, name, error) from error
    except EntryNotFoundError:
        return None
    except Exception as error:
        raise _not_fetched(model, name, error) from error
    finally:
        logger.setLevel(level)


def _not_fetched(model: str, name: str, error: Exception) -> EngineError:
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    login = "log in with 'hf auth login'"
    match error:
        case HFValidationError():
            reason, remedy = "this is neither a folder nor the id of a model", "check the spelling"
        case GatedRepoError():
            reason, remedy = "its owner gives access on request", f"ask for it on its page and {login}"
        case RepositoryNotFoundError():
            reason = "the Hugging Face Hub shows no such model"
            remedy = f"check the spelling; if it is a private one, {login}"
        case RevisionNotFoundError():
            reason, remedy = "it has no such revision", "name one of its branches, tags or commits"
        case _:
            # The hub wraps the cause: no connection, offline mode, an error of the server.
            cause = error.__cause__ or error
            detail = " ".join(str(cause).split()).rstrip(".")
            reason = f"it is not in this machine's cache, and downloading it failed: {type(cause).__name__}"
            reason += f", {detail}" if detail else ""
            remedy = "check the connection and the variable HF_HUB_OFFLINE"
    return EngineError(
        f"{name} of model {model!r} could not be fetched: {reason}; {remedy}, or give a folder that holds "
        "the model."
    )


def read_json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{str(path)!r} cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}
