"""The demonstration pair: a small draft and a larger target that solve word problems, and their judge.

Importing this package loads nothing heavy; ``model``, ``decoding`` and ``reward`` need torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from reason_spec.errors import DataError
from reason_spec.shipped import shipped_weights

_FOLDER = Path(__file__).resolve().parent
SAMPLE_PATH = _FOLDER / "sample.jsonl"
"""Forty problems of the test split, one JSON object a line: id, question, answer, operations."""


def embedded_path(role: Literal["draft", "target", "judge"]) -> Path:
    """Return the folder of an embedded model in Hugging Face format.

    Raises:
        DataError: the weights are not there, or were fetched as Git LFS pointers.
    """
    assert role in ("draft", "target", "judge"), role
    folder = shipped_weights("pair") / role
    weights = folder / "model.safetensors"
    remedy = (
        f"Install the package again, or train it with: python -m reason_spec.lab.pair.train --model {role} "
        f"--out {folder.parent}"
    )
    if not weights.is_file():
        raise DataError(f"The embedded {role} has no weights at {weights}. {remedy}")
    if weights.stat().st_size < 10_000:
        raise DataError(f"{weights} is too small to hold a model ({weights.stat().st_size} bytes). {remedy}")
    return folder


def reward_path() -> Path:
    """Return the folder of the reward head that reads the embedded target."""
    return shipped_weights("pair") / "reward"


def router_path() -> Path:
    """Return the router that was trained on steps of the demonstration pair."""
    return shipped_weights("pair") / "router.json"


__all__ = ["SAMPLE_PATH", "embedded_path", "reward_path", "router_path"]
