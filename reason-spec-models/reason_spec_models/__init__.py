"""Models that were trained for reason-spec, which names them ``models:NAME``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_WEIGHTS: Final = Path(__file__).resolve().parent / "weights"


def model_folders() -> dict[str, Path]:
    """Return the folder of each model by its name; folders without safetensors are left out."""
    return {path.parent.name: path.parent for path in sorted(_WEIGHTS.glob("*/*.safetensors"))}


__all__ = ["model_folders"]
