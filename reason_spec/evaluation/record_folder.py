"""A folder of records that a command adds to, and continues with when it is started again."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from reason_spec.errors import ResumeError
from reason_spec.evaluation.records import (
    RecordFile,
    lock_folder,
    other_or_fresh,
    read_records,
    write_text,
    writing,
)
from reason_spec.types import Problem

_Record = TypeVar("_Record")


def problem_key(problem: Problem) -> str:
    """Return the name of a problem in a folder that several files may be labelled into.

    The id alone is the number of the line where a file has no ids.
    """
    content = json.dumps([problem.question, problem.answer]).encode()
    return f"{problem.id}-{hashlib.sha256(content).hexdigest()[:12]}"


class RecordFolder(ABC, Generic[_Record]):
    """Records, a line each, and the identity that they belong to; a context manager, locked while it is open.

    A record survives a kill from the moment `_append` returns. A last line torn by a kill is dropped when the
    folder is opened again.

    Args:
        path: created where it does not exist.
        identity: of the models, settings and options of all records, as JSON holds it.
        fresh: ignore stored records, and replace them with the first new one.

    Raises:
        DataError: the folder cannot be written.
        ResumeError: it is in use, damaged, or holds records of another identity.
    """

    records_file: ClassVar[str]
    identity_file: ClassVar[str]
    content: ClassVar[str]
    """What the folder holds, for messages."""
    option: ClassVar[str] = "--output"
    """The option that names the folder."""

    def __init__(self, path: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self._identity = json.loads(json.dumps(identity))
        self._other_folder = f"Name another folder with {self.option}."
        self._remedy = other_or_fresh(self.option)
        self._file: RecordFile | None = None
        with writing(path, self._other_folder):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(path, self.option)
        try:
            self._replaces = fresh or not (path / self.records_file).exists()
            if not self._replaces:
                self._resume()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.release()

    @staticmethod
    @abstractmethod
    def _parse(line: str) -> _Record:
        """Read a line; ValueError, KeyError or TypeError: it is damaged."""

    @abstractmethod
    def _take(self, record: _Record) -> None:
        """Take a stored record; ValueError: it cannot follow those before it."""

    def _append(self, record: Mapping[str, Any]) -> None:
        """Store a record.

        Raises:
            DataError: it cannot be written.
        """
        self._file = self._file or self._open()
        self._file.append(json.dumps(record, ensure_ascii=False))

    def _open(self) -> RecordFile:
        if self._replaces:
            with writing(self.path, self._other_folder):
                (self.path / self.records_file).unlink(missing_ok=True)
            text = json.dumps(self._identity, indent=2) + "\n"
            write_text(self.path / self.identity_file, text, self._other_folder)
        return RecordFile(self.path / self.records_file, self._other_folder)

    def _resume(self) -> None:
        path = self.path / self.identity_file
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ResumeError(f"{path} cannot be read ({error}). {self._remedy}") from None
        now = self._identity
        changed = [name for name in now if not isinstance(earlier, dict) or earlier.get(name) != now[name]]
        if changed:
            raise ResumeError(
                f"{self.path} holds {self.content} with other {', '.join(changed)}. {self._remedy}"
            )
        self._file = self._open()
        path = self.path / self.records_file
        for number, record in read_records(path, self._parse, ResumeError, self._remedy):
            try:
                self._take(record)
            except ValueError as error:
                raise ResumeError(f"{path}, line {number}: {error}. {self._remedy}") from None
