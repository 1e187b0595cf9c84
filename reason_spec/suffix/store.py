"""The suffix cache on disk: a folder with one file for each tenant, model and vocabulary.

Readers never wait: a file is replaced as a whole, by one that is complete on the disk. Writers take
turns under the folder's lock, and what another process saved since is kept. A process that dies at any
moment leaves the file before or the file after.

File names are hashes; who a file belongs to stands inside. The folder is its owner's alone (0700, its
files 0600).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from reason_spec.errors import DataError
from reason_spec.suffix.base import SOURCES, Source
from reason_spec.suffix.file_format import (
    MAX_HEADER_BYTES,
    VERSION,
    DamagedError,
    FileHeader,
    OtherVersionError,
    StoredTexts,
    StoreKey,
    pack,
    unpack,
    unpack_header,
)
from reason_spec.suffix.merging import bounded, content_ids, merge
from reason_spec.suffix.texts import TenantTexts

ENDING: Final = ".suffix"
MAX_NAME_LENGTH: Final = 1024
"""Characters of a tenant's name, at the most."""
_LOCK: Final = ".lock"
_ERASURES: Final = ".erasures"
_DAMAGED: Final = ".damaged-"
_TEMPORARY: Final = ".tmp"
_LOCK_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01
_REMEDY: Final = "Name another folder with suffix.path, or null to keep nothing."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a save did.

    ``erased``: the tenant was erased since it was loaded, so nothing was written; what the process
    still holds of it must be dropped. ``num_documents_of_others`` were saved by other processes since.
    ``num_documents_left_out`` did not fit into the bound.
    """

    num_documents: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    num_documents_of_others: int = 0
    num_documents_left_out: int = 0
    erased: bool = False


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file of a folder, as ``reason-spec cache stats`` shows it.

    ``problem`` says why a file cannot be read; all but its path and size is then unknown. Times are in
    seconds since 1970.
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
    """What a tenant's file was when this process read or wrote it last.

    ``content_ids`` are the documents that the process held then: what others wrote into the file is
    not among them, so that the process does not drop what it never had.
    """

    erasures: str
    header: FileHeader | None = None
    content_ids: frozenset[bytes] = frozenset()


class SuffixStore:
    """Texts of tenants that outlast the process, for one model and vocabulary.

    May be used by several threads, and the folder by several processes.

    Args:
        path: the folder; it is created by the first save.
        key: whose tokens these are. Files of other keys lie beside and are left alone.
        max_bytes: size of a tenant's file, at the most.
    """

    def __init__(self, path: Path, key: StoreKey, *, max_bytes: int) -> None:
        self.path = path
        self._key = key
        self._max_bytes = max_bytes
        self._seen: dict[str, _Seen] = {}
        self._turn = threading.Lock()

    def load(self, tenant: str) -> TenantTexts:
        """Return what is kept of a tenant, nothing where there is no file.

        A damaged file is set aside as ``*.damaged-<n>`` with a warning that names it: it costs what it
        held, and nothing else.

        Raises:
            DataError: the folder cannot be read, the file belongs to another tenant or model, or the name
            is longer than 1024 characters.
        """
        with self._turn:
            erasures = _read_erasures(self.path)
            stored = self._read(tenant)
            if stored is None:
                self._seen[tenant] = _Seen(erasures)
                return TenantTexts.empty()
            self._seen[tenant] = _Seen(erasures, stored.header, content_ids(stored.texts))
            return stored.texts

    def save(self, tenant: str, texts: TenantTexts) -> SaveReport:
        """Keep all that the process holds of a tenant: what ``load`` gave it and what it learnt since.

        Documents that the process had and holds no more are dropped, those that other processes saved
        since are kept. After an erasure nothing is saved until the tenant is loaded again.

        Raises:
            DataError: the folder cannot be written, or another process has locked it for 30 seconds.
        """
        with self._turn, _writing(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self.path):
                return self._save(tenant, texts)

    def _save(self, tenant: str, texts: TenantTexts) -> SaveReport:
        erasures = _read_erasures(self.path)
        seen = self._seen.setdefault(tenant, _Seen(erasures))
        stored = self._read(tenant, locked=True)
        lineage = stored.header.lineage if stored else None
        before = seen.header.lineage if seen.header else None
        if erasures != seen.erasures and (before is None or lineage != before):
            # Without a file of its own the process cannot know whom the erasure was about.
            return SaveReport(erased=True)
        held = content_ids(texts)
        of_others = content_ids(stored.texts) - seen.content_ids - held if stored else frozenset()
        changed = stored is not None and stored.header != seen.header
        merged = merge(texts, stored.texts, seen.content_ids) if stored and (of_others or changed) else texts
        kept = bounded(merged, self._max_bytes - self._reserve(tenant))
        header = FileHeader(tenant, self._key, lineage or _nonce(), _nonce(), time.time())
        num_bytes = _replace_file(self._file(tenant), pack(header, kept))
        self._seen[tenant] = _Seen(erasures, header, held)
        return SaveReport(
            len(kept.document_starts),
            len(kept.tokens),
            num_bytes,
            len(of_others),
            len(merged.document_starts) - len(kept.document_starts),
        )

    def _reserve(self, tenant: str) -> int:
        header = FileHeader(tenant, self._key, _nonce(), _nonce(), time.time())
        # The numbers of elements take more digits than those of no elements at all.
        return sum(map(len, pack(header, TenantTexts.empty()))) + 128

    def _file(self, tenant: str) -> Path:
        if not 0 < len(tenant) <= MAX_NAME_LENGTH:
            raise DataError(
                f"a tenant's name has {len(tenant)} characters; give it 1 to {MAX_NAME_LENGTH} of them"
            )
        key = _hash(f"{VERSION}\0{self._key.model}\0{self._key.tokenizer}")
        return self.path / f"{_hash(tenant)}-{key[:16]}{ENDING}"

    def _read(self, tenant: str, *, locked: bool = False) -> StoredTexts | None:
        file = self._file(tenant)
        stored = _read_or_set_aside(file, locked=locked)
        if stored is not None and (stored.header.tenant != tenant or stored.header.key != self._key):
            raise DataError(
                f"{file} holds texts of {_whose(stored.header)}, not of {_whose_key(tenant, self._key)}: "
                "it was renamed or copied. Give it its name back, or remove it."
            )
        return stored


# The folder as a whole -----------------------------------------------------------------------


def list_files(path: Path) -> list[FileReport]:
    """Return what the files of a folder hold, by tenant; nothing is changed.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    return sorted(
        (_report(file) for file in _files_of(path)),
        key=lambda report: (report.tenant is None, report.tenant or "", report.path.name),
    )


def tenants_of(path: Path) -> list[str]:
    """Return the names of all tenants of a folder, in order; damaged files are passed over.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    names: set[str] = set()
    for file in _files_of(path):
        with contextlib.suppress(DamagedError, OtherVersionError, OSError), file.open("rb") as content:
            names.add(unpack_header(content.read(MAX_HEADER_BYTES)).tenant)
    return sorted(names)


def read_tenant(path: Path, tenant: str) -> list[StoredTexts]:
    """Return all that a folder keeps of a tenant: one element for each model and vocabulary.

    Raises:
        DataError: there is no such folder, or a file is damaged or cannot be read.
    """
    found = []
    for file in _files_of(path):
        if not file.name.startswith(_hash(tenant)) or file.suffix != ENDING:
            continue
        try:
            stored = _read_file(file)
        except (DamagedError, OtherVersionError) as error:
            raise DataError(f"{file}: cannot be read: {error}. {_remedy(error)}") from None
        if stored is not None:
            found.append(stored)
    return found


def files_of_tenant(path: Path, tenant: str) -> list[Path]:
    """Return every file that belongs to a tenant, those set aside and those half written included.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    return [file for file in _files_of(path) if file.name.lstrip(".").startswith(_hash(tenant))]


def erase(path: Path, tenant: str) -> list[Path]:
    """Remove every file of a tenant, of all models; return which ones.

    Processes under way that loaded the tenant before will not write it again.

    Raises:
        DataError: there is no such folder, it cannot be written, or it is locked for 30 seconds.
    """
    files_of_tenant(path, tenant)
    with _writing(path), _locked(path):
        _replace_file(path / _ERASURES, [_nonce().encode()])
        gone = files_of_tenant(path, tenant)
        for file in gone:
            file.unlink(missing_ok=True)
        _sync(path)
    return gone


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
        stored = _read_file(file)
    except (DamagedError, OtherVersionError, DataError, OSError) as error:
        return FileReport(file, num_bytes, problem=str(error))
    if stored is None:
        return FileReport(file, 0, problem="was removed meanwhile")
    header, texts = stored
    lengths = np.diff(np.append(texts.segment_starts, len(texts.tokens)))[: len(texts.segment_starts)]
    counts = np.bincount(texts.segment_sources, weights=lengths, minlength=len(SOURCES))
    return FileReport(
        file,
        num_bytes,
        header.tenant,
        header.key,
        len(texts.document_starts),
        len(texts.tokens),
        tuple(zip(SOURCES, counts.astype(int).tolist(), strict=True)),
        float(texts.usefulness.sum()),
        _latest(texts.last_used),
        header.saved_at,
    )


def _latest(times: npt.NDArray[np.float64]) -> float | None:
    return float(times.max()) if len(times) else None


# Files ---------------------------------------------------------------------------------------


def _read_file(file: Path) -> StoredTexts | None:
    """Read a file of a tenant; None where there is none.

    Raises:
        DamagedError: the file is damaged.
        OtherVersionError: the file belongs to another version of the program.
        DataError: the file cannot be read.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}). {_REMEDY}") from None
    return unpack(content)


def _replace_file(file: Path, pieces: list[bytes | memoryview]) -> int:
    """Write a file as a whole, through to the disk; return its size."""
    temporary = file.with_name(f".{file.name}{_TEMPORARY}")
    # What a killed process left may belong to nobody else: the folder is locked.
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            for piece in pieces:
                target.write(piece)
            size = target.tell()
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(file)
    except OSError:
        # A full disk should not stay full for it.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync(file.parent)
    return size


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_or_set_aside(file: Path, *, locked: bool) -> StoredTexts | None:
    """Read a file of a tenant; one that is damaged is renamed, with a warning, and counts as none."""
    try:
        return _read_file(file)
    except (DamagedError, OtherVersionError) as error:
        damage = error
    try:
        with contextlib.nullcontext() if locked else _locked(file.parent):
            # Until the lock was got, another process may have written a sound file.
            with contextlib.suppress(DamagedError, OtherVersionError):
                return _read_file(file)
            aside = _free_name(file)
            file.rename(aside)
    except (OSError, DataError) as failure:
        text = "%s cannot be read (%s), nor set aside (%s): what it held is not used. Remove it by hand."
        logger.warning(text, file, damage, failure)
        return None
    text = "%s could not be read (%s) and was set aside as %s: what it held is not used. %s"
    logger.warning(text, file, damage, aside.name, _remedy(damage))
    return None


def _remedy(error: DamagedError | OtherVersionError) -> str:
    if isinstance(error, OtherVersionError):
        return "Use the version of reason-spec that wrote it, or remove it."
    return "It fills anew by itself, or by 'reason-spec cache import'; the damaged file can be removed."


def _free_name(file: Path) -> Path:
    number = 1
    while (aside := file.with_name(f"{file.name}{_DAMAGED}{number}")).exists():
        number += 1
    return aside


def _read_erasures(path: Path) -> str:
    """Return what changes with every erasure in a folder."""
    try:
        return (path / _ERASURES).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        raise DataError(f"{path} is not a folder. {_REMEDY}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). {_REMEDY}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock; the system gives it back when a process dies.

    Raises:
        DataError: another process holds it for 30 seconds.
    """
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DataError(
                        f"{path} has been locked by another process for {_LOCK_SECONDS:g} seconds. Wait for "
                        "it, or look for one that hangs."
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or path}: cannot be written ({error.strerror}). {_REMEDY}"
        ) from error


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _nonce() -> str:
    return secrets.token_hex(8)


def _whose(header: FileHeader) -> str:
    return _whose_key(header.tenant, header.key)


def _whose_key(tenant: str, key: StoreKey) -> str:
    return f"tenant {tenant!r}, model {key.model!r}, vocabulary {key.tokenizer}"
