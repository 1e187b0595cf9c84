"""The weights that reason-spec uses by default: the demonstration pair, and the encoder of `semantic`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
"""Has a folder ``pair`` and a folder ``semantic``."""

__all__ = ["FOLDER"]
