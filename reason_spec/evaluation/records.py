"""Files that grow by JSON lines and survive a kill or a full disk, folder locks, and atomic writes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeVar

from filelock import FileLock, Timeout

from reason_spec.errors import DataError, ResumeError
from reason_spec.jsonl import atomic_output

LOCK = ".lock"
OTHER_FOLDER = "Name another folder with --output."
_TAIL_BYTES = 1 << 16


FRESH: Final = "start anew with --fresh"


def other_or_fresh(option: str = "--output", anew: str = FRESH) -> str:
    """Return the remedy for a folder whose records do not fit, by the option that names it."""
    return f"Name another folder with {option}, or {anew}."


_Record = TypeVar("_Record")


class RecordFile:
    """A file that lines are appended to; a context manager.

    Each line survives a kill from the moment ``append`` returns. Opening drops a last line that a kill tore.

    Raises:
        DataError: the file cannot be written.
    """

    def __init__(self, path: Path, remedy: str = OTHER_FOLDER) -> None:
        self.path = path
        with writing(path, remedy):
            drop_torn_line(path)
            # A buffer would keep bytes that could not be written, and fail again when it is closed.
            self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, line: str) -> None:
        """Append a line as a whole or, where it does not fit, not at all.

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
                f"{self.path}: cannot be written ({error.strerror}). Its content is kept; make room and run "
                "the command again."
            ) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def read_records(
    path: Path, parse: Callable[[str], _Record], error_class: type[Exception], remedy: str
) -> Iterator[tuple[int, _Record]]:
    """Yield the parsed lines of a file with their numbers, from 1 on; a missing file has none.

    A last line without its end, as a file that is being written has it, is skipped.

    Args:
        parse: raises ValueError, KeyError or TypeError for a damaged line.
        error_class: raised for a damaged line or an unreadable file; the message names the place.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith("\n"):
                    return
                try:
                    record = parse(line)
                except (ValueError, KeyError, TypeError) as error:
                    raise error_class(f"{path}, line {number}: {error}. {remedy}".rstrip()) from None
                yield number, record
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise error_class(f"{path} cannot be read ({error}). {remedy}") from None


def drop_torn_line(path: Path) -> bool:
    """Cut off a last line that a kill left incomplete; return whether there was one."""
    if not path.is_file():
        return False
    with path.open("r+b") as file:
        start, content = _last_lines(file)
        end = content.rfind(b"\n") + 1
        # A crash of the machine, unlike a kill, may leave a line of the right length without its bytes.
        last = content.rfind(b"\n", 0, max(0, end - 1)) + 1
        if end and not _is_whole(content[last:end]):
            end = last
        if end == len(content):
            return False
        file.truncate(start + end)
        os.fsync(file.fileno())
        return True


def _last_lines(file: BinaryIO) -> tuple[int, bytes]:
    """Return the end of a file, its last whole line included, and its offset; files may be large."""
    size = file.seek(0, os.SEEK_END)
    length = _TAIL_BYTES
    while True:
        start = file.seek(max(0, size - length))
        content = file.read()
        if start == 0 or content.count(b"\n") > 1:
            return start, content
        length *= 4


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def lock_folder(folder: Path, option: str = "--output") -> FileLock:
    """Return the acquired lock of a folder, without waiting.

    Raises:
        ResumeError: another process holds the lock.
    """
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ResumeError(
            f"{folder} is in use by another run; wait for it, or name another folder with {option}."
        ) from None
    return lock


def write_text(path: Path, text: str, remedy: str = OTHER_FOLDER) -> None:
    """Replace a file at once or not at all.

    Raises:
        DataError: it cannot be written.
    """
    with atomic_output(path, remedy=remedy) as file:
        file.write(text.encode())


@contextlib.contextmanager
def writing(path: Path, remedy: str = OTHER_FOLDER) -> Iterator[None]:
    """Turn an OSError while something is written into a DataError that names place and remedy."""
    try:
        yield
    except OSError as error:
        place = error.filename or path
        raise DataError(f"{place}: cannot be written ({error.strerror}). {remedy}") from error
