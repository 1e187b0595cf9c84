"""The file of one tenant: safetensors, with the owner of the file and a checksum in its metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from reason_spec.errors import DataError
from reason_spec.suffix.base import SOURCES
from reason_spec.suffix.documents import Document

if TYPE_CHECKING:
    from collections.abc import Iterator

REMEDY: Final = "Name another folder with suffix.path, or null to save nothing."
FORMAT: Final = 2
"""Incremented when the program can no longer read files of the format before."""
_MAGIC_OF_FORMAT_1: Final = b"\x89RSPECsx"
_HEADER: Final = "reason_spec"
_CHECKSUM: Final = "blake2b"
_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    # The values of `Document`, concatenated. Starts are indices into ``tokens``; a document starts a segment.
    "document_starts": np.dtype(np.int64),
    "last_used": np.dtype(np.float64),
    "segment_sources": np.dtype(np.uint8),
    "segment_starts": np.dtype(np.int64),
    "tokens": np.dtype(np.int32),
    "usefulness": np.dtype(np.float64),
}
_Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


class UnreadableFileError(Exception):
    """A file is damaged or has another format; ``remedy`` is a sentence for the user."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.remedy = remedy or (
            "The cache learns its texts again, also by 'reason-spec cache import'; the damaged file can be "
            "deleted."
        )


@dataclass(frozen=True, slots=True)
class StoreKey:
    """Identifies the model and the tokenizer that a file's tokens belong to.

    ``model`` is a hash of the model's files or its id, ``tokenizer`` a hash of the vocabulary
    (``Tokenizer.tokenizer_id``).
    """

    model: str
    tokenizer: str


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The metadata of a file.

    ``lineage`` is drawn when the file is created and stays the same, ``save`` is drawn by each save.
    ``saved_at`` is in seconds since 1970.
    """

    tenant: str
    key: StoreKey
    lineage: str
    save: str
    saved_at: float


class TenantFile(NamedTuple):
    """The content of a file."""

    header: FileHeader
    documents: list[Document]


def pack(header: FileHeader, documents: Sequence[Document]) -> bytes:
    """Return the bytes of a file."""
    from safetensors.numpy import save

    arrays = _to_arrays(documents)
    about = json.dumps({"format": FORMAT, **asdict(header)})
    return save(dict(arrays), {_HEADER: about, _CHECKSUM: _checksum(about, arrays)})


def read_file(path: Path) -> TenantFile | None:
    """Read a file; None if there is none.

    Raises:
        UnreadableFileError: the file is damaged or has another format.
        DataError: the file cannot be read.
    """
    try:
        with _opened(path) as file:
            metadata = file.metadata() or {}
            header = _read_header(metadata)
            arrays = {name: file.get_tensor(name) for name in _DTYPES}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}). {REMEDY}") from None
    if metadata.get(_CHECKSUM) != _checksum(metadata[_HEADER], arrays):
        raise UnreadableFileError("its checksum is wrong")
    if not _are_consistent(arrays):
        raise UnreadableFileError("its arrays contradict each other")
    return TenantFile(header, _to_documents(arrays))


def read_header(path: Path) -> FileHeader:
    """Read the metadata of a file, without verifying its checksum.

    Raises:
        UnreadableFileError: the file is damaged or has another format.
        OSError: the file is missing or cannot be read.
    """
    with _opened(path) as file:
        return _read_header(file.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            yield file
    except SafetensorError as error:
        with path.open("rb") as content:
            if content.read(len(_MAGIC_OF_FORMAT_1)) == _MAGIC_OF_FORMAT_1:
                raise _other_format(1) from None
        raise UnreadableFileError(str(error)) from None


def _read_header(metadata: Mapping[str, str]) -> FileHeader:
    try:
        fields = json.loads(metadata[_HEADER])
        written = fields.pop("format")
        if written != FORMAT:
            raise _other_format(written)
        return FileHeader(**{**fields, "key": StoreKey(**fields["key"])})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UnreadableFileError("its header lacks something") from None


def _other_format(written: object) -> UnreadableFileError:
    return UnreadableFileError(
        f"its format is {written}, this version of reason-spec reads {FORMAT}",
        "Delete it: the cache learns its texts again, also by 'reason-spec cache import'. Or use the version "
        "that wrote it.",
    )


def _checksum(about: str, arrays: _Arrays) -> str:
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    for name in _DTYPES:
        array = arrays[name]
        digest.update(f"\0{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _to_arrays(documents: Sequence[Document]) -> _Arrays:
    lengths = [len(document.tokens) for document in documents]
    starts = np.cumsum([0, *lengths], dtype=np.int64)[: len(documents)]
    parts: dict[str, Sequence[npt.NDArray[Any]]] = {
        "document_starts": [starts],
        "last_used": [np.array([document.last_used for document in documents])],
        "segment_sources": [document.segment_sources for document in documents],
        "segment_starts": [d.segment_starts + start for d, start in zip(documents, starts, strict=True)],
        "tokens": [document.tokens for document in documents],
        "usefulness": [np.array([document.usefulness for document in documents])],
    }
    return {
        name: np.concatenate([np.empty(0, dtype), *parts[name]], dtype=dtype)
        for name, dtype in _DTYPES.items()
    }


def _to_documents(arrays: _Arrays) -> list[Document]:
    tokens, segment_starts = arrays["tokens"], arrays["segment_starts"]
    starts = arrays["document_starts"]
    ends = np.append(starts[1:], len(tokens))
    first = np.searchsorted(segment_starts, starts)
    last = np.append(first[1:], len(segment_starts))
    uses = zip(arrays["last_used"].tolist(), arrays["usefulness"].tolist(), strict=True)
    bounds = zip(starts.tolist(), ends.tolist(), first.tolist(), last.tolist(), uses, strict=False)
    return [
        Document(
            tokens[start:end],
            segment_starts[begin:stop] - start,
            arrays["segment_sources"][begin:stop],
            last_used,
            usefulness,
        )
        for start, end, begin, stop, (last_used, usefulness) in bounds
    ]


def _are_consistent(arrays: _Arrays) -> bool:
    """Whether the arrays describe documents: the index reads negative tokens as links in its log."""
    if any(array.dtype != _DTYPES[name] or array.ndim != 1 for name, array in arrays.items()):
        return False
    length = len(arrays["tokens"])
    documents, segments = arrays["document_starts"], arrays["segment_starts"]
    return bool(
        _are_starts(documents, length)
        and _are_starts(segments, length)
        and np.isin(documents, segments).all()
        and len(arrays["last_used"]) == len(arrays["usefulness"]) == len(documents)
        and len(arrays["segment_sources"]) == len(segments)
        and (arrays["segment_sources"] < len(SOURCES)).all()
        and (arrays["tokens"] >= 0).all()
    )


def _are_starts(starts: npt.NDArray[np.int64], length: int) -> bool:
    if not len(starts):
        return length == 0
    return bool(starts[0] == 0 and starts[-1] < length and (np.diff(starts) > 0).all())
