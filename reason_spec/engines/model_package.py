"""Models of the distribution ``reason-spec-models``, named ``models:NAME``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from reason_spec.errors import EngineError, unknown_name

PREFIX: Final = "models:"


def packaged_folders() -> dict[str, Path]:
    """Return the folder of each model by its name with `PREFIX`.

    Raises:
        ModuleNotFoundError: the distribution is not installed.
    """
    from reason_spec_models import model_folders

    return {PREFIX + name: folder for name, folder in model_folders().items()}


def find_packaged(model: str) -> Path | None:
    """Return the folder of a ``models:`` name; None for other kinds of models.

    Raises:
        EngineError: the distribution is not installed.
        SettingsError: it has no such model.
    """
    if not model.startswith(PREFIX):
        return None
    try:
        folders = packaged_folders()
    except ModuleNotFoundError:
        raise EngineError(
            f"model {model!r} needs the package 'reason-spec-models', which is not installed. "
            "Install it with: pip install 'reason-spec[real]', or in a checkout: "
            "pip install ./reason-spec-models"
        ) from None
    if model not in folders:
        raise unknown_name("packaged model", model, folders)
    return folders[model]
