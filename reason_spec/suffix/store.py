"""The suffix cache on disk: a folder with one file for each tenant, model and tokenizer.

Readers do not wait for writers: a save replaces the file atomically. Writers hold the folder's lock and
keep what other processes saved. A process that is killed at any time leaves the earlier or the new file.

File names are hashes of the names inside. Only the owner can read folder and files (0700 and 0600).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from reason_spec.errors import DataError
from reason_spec.jsonl import atomic_output
from reason_spec.suffix.base import SOURCES, Source
from reason_spec.suffix.documents import Document, bounded, content_ids, merge
from reason_spec.suffix.tenant_file import (
    REMEDY,
    FileHeader,
    StoreKey,
    TenantFile,
    UnreadableFileError,
    pack,
    read_file,
    read_header,
)

ENDING: Final = ".suffix"
MAX_NAME_LENGTH: Final = 1024
"""Characters of a tenant's name."""
_LOCK: Final = ".lock"
_ERASURES: Final = ".erasures"
_DAMAGED: Final = ".damaged-"
_LOCK_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SaveReport:
    """The result of a save.

    ``erased``: the tenant was erased since it was loaded, so nothing was written, and the process must drop
    its texts. ``num_documents_left_out``: exceeded the size limit.
    """

    num_documents: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    num_documents_left_out: int = 0
    erased: bool = False


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file of a folder, for ``reason-spec cache stats``.

    ``problem`` says why a file cannot be read; then only its path and size are known. Times are in seconds
    since 1970.
    """

    path: Path
    num_bytes: int
    tenant: str | None = None
    key: StoreKey | None = None
    num_documents: int = 0
    num_tokens: int = 0
    tokens_by_source: tuple[tuple[Source, int], ...] = ()
    accepted_tokens: float = 0.0
    last_used: float | None = None
    saved_at: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a tenant's file when this process last read or wrote it.

    ``content_ids`` are the documents that the process held then. Documents of other processes are not among
    them, so a later save does not treat them as evicted.
    """

    erasures: str
    header: FileHeader | None = None
    content_ids: frozenset[bytes] = frozenset()

    def misses(self, erasures: str, lineage: str | None) -> bool:
        """Whether the tenant may have been erased since, by what the folder and its file say now.

        A process that has not seen a file of the tenant cannot know which tenant was erased.
        """
        own = self.header.lineage if self.header else None
        return erasures != self.erasures and (own is None or lineage != own)


class SuffixStore:
    """Saves and loads the documents of tenants, for one model and tokenizer.

    Thread-safe; several processes may use the folder at once.

    Args:
        path: the folder; the first save creates it.
        key: identifies model and tokenizer. Files of other keys are ignored.
        max_bytes: size limit of a tenant's file.
    """

    def __init__(self, path: Path, key: StoreKey, *, max_bytes: int) -> None:
        self.path = path
        self._key = key
        self._max_bytes = max_bytes
        self._seen: dict[str, _Seen] = {}
        self._thread_lock = threading.Lock()

    def load(self, tenant: str) -> list[Document]:
        """Return the saved documents of a tenant.

        A damaged file is renamed to ``*.damaged-<n>`` with a warning that names it; its texts are lost.

        Raises:
            DataError: the folder cannot be read, the file belongs to another tenant or model, or the name
                is longer than 1024 characters.
        """
        with self._thread_lock:
            erasures = _read_erasures(self.path)
            stored = self._read(tenant)
            if stored is None:
                self._seen[tenant] = _Seen(erasures)
                return []
            self._seen[tenant] = _Seen(erasures, stored.header, content_ids(stored.documents))
            return stored.documents

    def save(self, tenant: str, documents: Sequence[Document]) -> SaveReport:
        """Save all documents of a tenant: those that ``load`` returned and those learned since.

        Removes from the file what this process held earlier and holds no longer. Keeps what other processes
        saved since. After an erasure nothing is saved until the tenant is loaded again.

        Raises:
            DataError: the folder cannot be written, or another process holds its lock for 30 seconds.
        """
        # In this order: while the folder's lock is waited for, this process may load.
        with _locked(self.path), self._thread_lock:
            return self._save(tenant, documents)

    def was_erased(self, tenant: str) -> bool:
        """Whether a tenant was erased since it was loaded.

        Raises:
            DataError: the folder cannot be read.
        """
        with self._thread_lock:
            stored = self._read(tenant)
            seen = self._seen.get(tenant)
            return seen is not None and seen.misses(
                _read_erasures(self.path), stored.header.lineage if stored else None
            )

    def _save(self, tenant: str, documents: Sequence[Document]) -> SaveReport:
        erasures = _read_erasures(self.path)
        seen = self._seen.setdefault(tenant, _Seen(erasures))
        file = self._file(tenant)
        stored = self._read(tenant, locked=True)
        lineage = stored.header.lineage if stored else None
        if seen.misses(erasures, lineage):
            return SaveReport(erased=True)
        held = content_ids(documents)
        of_others = content_ids(stored.documents) - seen.content_ids - held if stored else frozenset()
        merged = documents
        if stored and (of_others or stored.header != seen.header):
            merged = merge(documents, stored.documents, seen.content_ids)
        header = FileHeader(tenant, self._key, lineage or _nonce(), _nonce(), time.time())
        # The metadata contains lengths, which have more digits than those of an empty file.
        reserve = len(pack(header, ())) + 128
        kept = bounded(merged, self._max_bytes - reserve)
        content = pack(header, kept)
        for leftover in self.path.glob(f".{file.name}.*.tmp"):
            leftover.unlink(missing_ok=True)  # of a killed process: this one holds the lock
        with atomic_output(file, mode=0o600, remedy=REMEDY) as output:
            output.write(content)
        self._seen[tenant] = _Seen(erasures, header, held)
        return SaveReport(
            len(kept),
            sum(len(document.tokens) for document in kept),
            len(content),
            len(merged) - len(kept),
        )

    def _file(self, tenant: str) -> Path:
        if not 0 < len(tenant) <= MAX_NAME_LENGTH:
            raise DataError(
                f"a tenant's name has {len(tenant)} characters; give it 1 to {MAX_NAME_LENGTH} of them"
            )
        # "1" numbers this way of naming files.
        key = _hash(f"1\0{self._key.model}\0{self._key.tokenizer}")
        return self.path / f"{_hash(tenant)}-{key[:16]}{ENDING}"

    def _read(self, tenant: str, *, locked: bool = False) -> TenantFile | None:
        file = self._file(tenant)
        stored = _read_or_set_aside(file, locked=locked)
        if stored is not None and (stored.header.tenant != tenant or stored.header.key != self._key):
            raise DataError(
                f"{file} holds texts of {_owner(stored.header.tenant, stored.header.key)}, not of "
                f"{_owner(tenant, self._key)}: it was renamed or copied. Give it its name back, or delete it."
            )
        return stored


# The folder as a whole -----------------------------------------------------------------------


def list_files(path: Path) -> list[FileReport]:
    """Describe the files of a folder, sorted by tenant; changes nothing.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    return sorted(
        (_report(file) for file in _files_of(path)),
        key=lambda report: (report.tenant is None, report.tenant or "", report.path.name),
    )


def tenants_of(path: Path) -> list[str]:
    """Return the sorted names of all tenants of a folder; ignores unreadable files.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    names: set[str] = set()
    for file in _files_of(path):
        with contextlib.suppress(UnreadableFileError, OSError):
            names.add(read_header(file).tenant)
    return sorted(names)


def files_of_tenant(path: Path, tenant: str) -> list[Path]:
    """Return every file of a tenant, including damaged and half written ones.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    return [file for file in _files_of(path) if file.name.lstrip(".").startswith(_hash(tenant))]


def erase(path: Path, tenant: str) -> list[Path]:
    """Delete every file of a tenant, for all models, and return their paths.

    Running processes that loaded the tenant before do not write it again.

    Raises:
        DataError: there is no such folder, it cannot be written, or it is locked for 30 seconds.
    """
    files_of_tenant(path, tenant)
    with _locked(path):
        _count_erasure(path)
        files = files_of_tenant(path, tenant)
        for file in files:
            file.unlink(missing_ok=True)
        # Again, for processes that loaded the tenant in between.
        _count_erasure(path)
        # Without it, a crash of the machine could bring the files back.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return files


def _count_erasure(path: Path) -> None:
    """Let every process see that texts of some tenant were erased."""
    with atomic_output(path / _ERASURES, mode=0o600, remedy=REMEDY) as output:
        output.write(_nonce().encode())


def _files_of(path: Path) -> list[Path]:
    try:
        return sorted(file for file in path.iterdir() if ENDING in file.name)
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a folder ({error.strerror}).") from None


def _report(file: Path) -> FileReport:
    num_bytes = 0
    try:
        num_bytes = file.stat().st_size
        if file.suffix != ENDING:
            kind = "was set aside as damaged" if _DAMAGED in file.name else "was left by a stopped save"
            return FileReport(file, num_bytes, problem=kind)
        stored = read_file(file)
    except UnreadableFileError as error:
        return FileReport(file, num_bytes, problem=f"{error}. {error.remedy}")
    except (DataError, OSError) as error:
        return FileReport(file, num_bytes, problem=str(error))
    if stored is None:
        return FileReport(file, 0, problem="was removed meanwhile")
    header, documents = stored
    counts = dict.fromkeys(SOURCES, 0)
    for document in documents:
        for source, tokens in document.segments:
            counts[source] += len(tokens)
    return FileReport(
        file,
        num_bytes,
        header.tenant,
        header.key,
        len(documents),
        sum(counts.values()),
        tuple(counts.items()),
        sum(document.usefulness for document in documents),
        max((document.last_used for document in documents), default=None),
        header.saved_at,
    )


# Files ---------------------------------------------------------------------------------------


def _read_or_set_aside(file: Path, *, locked: bool) -> TenantFile | None:
    """Read a file of a tenant; rename a damaged one with a warning and return None."""
    try:
        return read_file(file)
    except UnreadableFileError as error:
        damage = error
    try:
        with contextlib.nullcontext() if locked else _locked(file.parent):
            # Another process may have replaced the file before this one got the lock.
            with contextlib.suppress(UnreadableFileError):
                return read_file(file)
            aside = _free_name(file)
            file.rename(aside)
    except (OSError, DataError) as failure:
        text = "%s cannot be read (%s), nor renamed (%s): its texts are not used. Delete it by hand."
        logger.warning(text, file, damage, failure)
        return None
    text = "%s could not be read (%s) and was set aside as %s: its texts are not used. %s"
    logger.warning(text, file, damage, aside.name, damage.remedy)
    return None


def _free_name(file: Path) -> Path:
    number = 1
    while (aside := file.with_name(f"{file.name}{_DAMAGED}{number}")).exists():
        number += 1
    return aside


def _read_erasures(path: Path) -> str:
    """Return a value that every erasure in the folder changes."""
    try:
        return (path / _ERASURES).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        raise DataError(f"{path} is not a folder. {REMEDY}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). {REMEDY}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Create the folder if there is none, and hold its lock; it is released when the process dies.

    Raises:
        DataError: another process holds it for 30 seconds, or the folder cannot be written.
    """
    lock = FileLock(path / _LOCK, timeout=_LOCK_SECONDS, mode=0o600, poll_interval=_POLL_SECONDS)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock:
            yield
    except Timeout:
        raise DataError(
            f"{path} has been locked by another process for {_LOCK_SECONDS:g} seconds. Wait for it, or look "
            "for one that hangs."
        ) from None
    except OSError as error:
        place = error.filename or path
        raise DataError(f"{place}: cannot be written ({error.strerror}). {REMEDY}") from error


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _nonce() -> str:
    return secrets.token_hex(8)


def _owner(tenant: str, key: StoreKey) -> str:
    return f"tenant {tenant!r}, model {key.model!r}, vocabulary {key.tokenizer}"
