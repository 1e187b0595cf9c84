"""The target's latest answers on disk, for `draft adapt`: a SQLite file of bounded size.

It holds texts of users, as tokens. The file and its folder are readable by their owner alone.
"""

from __future__ import annotations

import random
import sqlite3
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from reason_spec.errors import DataError
from reason_spec.suffix.tenant_file import StoreKey

ANSWERS: Final = "answers.sqlite"
_MAX_BYTES = 64 << 20
_DELETED_AT_ONCE = 64
_TABLES = """
CREATE TABLE IF NOT EXISTS about (model TEXT NOT NULL, tokenizer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, at REAL NOT NULL,
    version INTEGER NOT NULL,
    prompt BLOB NOT NULL, answer BLOB NOT NULL, num_accepted INTEGER NOT NULL, num_rejected INTEGER NOT NULL
);
"""
_COLUMNS = "prompt, answer, tenant, version, num_accepted, num_rejected, number"


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer of the target in its tokens.

    Attributes:
        version: of the draft that drafted for it.
        num_accepted: tokens of the draft that the target accepted.
        num_rejected: tokens of the draft that the target replaced.
        number: ascends with every answer; 0 before it is stored.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    tenant: str
    version: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    number: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Share of draft tokens that were accepted, up to the first rejected one of each pass."""
        judged = self.num_accepted + self.num_rejected
        return self.num_accepted / judged if judged else None


class AnswerStore:
    """The answers of one target; the oldest ones are deleted at the limit.

    One process writes; others may read at the same time.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._connection = connection
        self._path = path
        self._max_bytes = max_bytes

    @classmethod
    def create(cls, folder: Path, key: StoreKey, max_bytes: int = _MAX_BYTES) -> Self:
        """Open the file in a folder to write; both are made if they do not exist.

        Raises:
            DataError: it cannot be written, or has answers of another target.
        """
        path = folder / ANSWERS
        with _explained(path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.executescript(_TABLES)
            with connection:
                if connection.execute("SELECT 1 FROM about").fetchone() is None:
                    connection.execute("INSERT INTO about VALUES (?, ?)", (key.model, key.tokenizer))
                    connection.execute(f"PRAGMA user_version = {random.getrandbits(31)}")
        return cls(connection, path, max_bytes)._of(key)

    @classmethod
    def open(cls, folder: Path, key: StoreKey) -> Self:
        """Open the file in a folder to read.

        Raises:
            DataError: there is none, it cannot be read, or it has answers of another target.
        """
        path = folder / ANSWERS
        if not path.is_file():
            raise DataError(f"{path}: there is no such file; name the folder of server.learn_folder")
        with _explained(path):
            return cls(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True), path)._of(key)

    def _of(self, key: StoreKey) -> Self:
        with _explained(self._path):
            found = StoreKey(*self._connection.execute("SELECT model, tokenizer FROM about").fetchone())
        if found != key:
            self.close()
            raise DataError(f"{self._path} has answers of another target; name another folder, or delete it")
        return self

    @property
    def id(self) -> int:
        """A random number of the file; in another file the numbers of answers begin anew.

        Raises:
            DataError: it cannot be read.
        """
        with _explained(self._path):
            return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def add(self, answer: StoredAnswer) -> None:
        """Store an answer.

        Raises:
            DataError: it cannot be written.
        """
        values = (
            answer.tenant,
            time.time(),
            answer.version,
            array("i", answer.prompt).tobytes(),
            array("i", answer.answer).tobytes(),
            answer.num_accepted,
            answer.num_rejected,
        )
        with _explained(self._path), self._connection as connection:
            connection.execute(
                "INSERT INTO answers (tenant, at, version, prompt, answer, num_accepted, num_rejected) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            while self._num_bytes > self._max_bytes:
                oldest = "SELECT number FROM answers ORDER BY number LIMIT ?"
                query = f"DELETE FROM answers WHERE number IN ({oldest})"
                if connection.execute(query, (_DELETED_AT_ONCE,)).rowcount == 0:
                    return

    def forget(self, tenants: Sequence[str]) -> None:
        """Delete the answers of tenants.

        Raises:
            DataError: they cannot be deleted.
        """
        with _explained(self._path), self._connection as connection:
            connection.executemany("DELETE FROM answers WHERE tenant = ?", [(one,) for one in tenants])

    def newest(self, count: int, *, after: int = 0) -> list[StoredAnswer]:
        """Return the newest answers with numbers above ``after``, oldest first."""
        return self._read("WHERE number > ? ORDER BY number DESC LIMIT ?", after, count)[::-1]

    def sample(self, count: int, *, up_to: int) -> list[StoredAnswer]:
        """Return random answers with numbers up to ``up_to``."""
        return self._read("WHERE number <= ? ORDER BY RANDOM() LIMIT ?", up_to, count)

    def close(self) -> None:
        self._connection.close()

    @property
    def _num_bytes(self) -> int:
        pragmas = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._connection.execute(f"PRAGMA {one}").fetchone()[0] for one in pragmas)
        return int((pages - free) * size)

    def _read(self, where: str, *values: int) -> list[StoredAnswer]:
        with _explained(self._path):
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM answers {where}", values).fetchall()
        return [StoredAnswer(_tokens(row[0]), _tokens(row[1]), *row[2:]) for row in rows]


def _tokens(stored: bytes) -> tuple[int, ...]:
    return tuple(array("i", stored))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of the file into one for the user."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise DataError(f"{path}: cannot be used ({error}). Delete it, or name another folder.") from None
