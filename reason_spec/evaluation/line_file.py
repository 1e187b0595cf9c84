"""A file that grows by whole lines, also where the disk is full."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from reason_spec.errors import DataError


class LineFile:
    """A file that lines are added to; each survives a kill from the moment it was added.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A buffer would keep what could not be written, and fail with it once more when it is closed.
        self._file = path.open("ab", buffering=0)

    def append(self, line: str) -> None:
        """Add a line as a whole or, where it does not fit, not at all.

        Raises:
            DataError: it cannot be written.
        """
        size = os.fstat(self._file.fileno()).st_size
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            raise DataError(
                f"{self.path}: cannot be written ({error.strerror}). What it held is kept; make room and run "
                "the command again."
            ) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()
