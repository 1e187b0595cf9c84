"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from reason_spec.errors import DataError


@contextlib.contextmanager
def atomic_output(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` when the block ends, and vanishes when it fails.

    What is written into a path that ends in ``.gz`` is compressed.

    Args:
        mode: who may read it; None: as the file that is replaced, or any new one.

    Raises:
        DataError: the file cannot be written; what stood there before still does.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is not a regular file; name a file to write.")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}); name a folder that exists."
        ) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            if path.name.endswith(".gz"):
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        temporary.chmod(_mode_of(path) if mode is None else mode)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(f"{path}: cannot be written ({error.strerror or error}).") from error
        raise


def _mode_of(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
