"""Digests of large files, and of the files of a model."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO, Final

WHOLE_FILE_BYTES: Final = 32 << 20
"""Files up to this size are read whole."""

_NUM_BLOCKS: Final = 64
_BLOCK_BYTES: Final = 4096
_CONFIGURATION: Final = (
    "config.json",
    "adapter_config.json",
    "pruned_draft.json",
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


def digest_file(path: Path) -> str:
    """Return the sha256 of a file, or of samples of a large one.

    Above `WHOLE_FILE_BYTES` the digest covers the size and 64 evenly spaced blocks of 4 KiB. Further training
    changes nearly all weights, so it changes some block; an edit of a few tensors may not.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size <= WHOLE_FILE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        return _digest_blocks(file, size)


def digest_model(folder: Path) -> str:
    """Return a sha256 over configuration, tokenizer and weights of a model's folder; large files are sampled.

    Raises:
        OSError: a file cannot be read.
    """
    total = hashlib.sha256()
    for path in _model_files(folder):
        total.update(f"{path.name}\0{digest_file(path)}\n".encode())
    return total.hexdigest()


def _model_files(folder: Path) -> list[Path]:
    """Return the files that transformers loads; it prefers safetensors."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    weights = [path for path in files if path.suffix == ".safetensors"]
    weights = weights or [path for path in files if path.suffix == ".bin"]
    return [path for path in files if any(fnmatch(path.name, name) for name in _CONFIGURATION)] + weights


def _digest_blocks(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    for number in range(_NUM_BLOCKS):
        file.seek(number * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1))
        digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
