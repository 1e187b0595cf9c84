"""A pair too small to know anything, for tests of the machinery around it."""

from __future__ import annotations

from pathlib import Path

from reason_spec.pair.model import Shape, new_model, save_model
from reason_spec.pair.tokenizer import build_tokenizer

TINY = Shape(layers=2, width=16, intermediate=32, heads=2, kv_heads=1, start_layers=1, head_dim=8)


def save_tiny(folder: Path, seed: int) -> Path:
    """Write a random model of two layers."""
    save_model(new_model(TINY, build_tokenizer(), seed, TINY.layers), build_tokenizer(), folder)
    return folder
