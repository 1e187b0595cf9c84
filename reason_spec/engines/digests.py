"""Digests of large files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO, Final

WHOLE_FILE_BYTES: Final = 32 << 20
"""Files up to this size are read whole."""

_NUM_BLOCKS: Final = 64
_BLOCK_BYTES: Final = 4096


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


def _digest_blocks(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    for number in range(_NUM_BLOCKS):
        file.seek(number * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1))
        digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
