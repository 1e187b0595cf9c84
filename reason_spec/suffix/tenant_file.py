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
_HEADER: Final = "reason_spec"
_CHECKSUM: Final = "blake2b"
_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    # The values of all documents, concatenated. Starts are indices into ``tokens``.
    "last_used": np.dtype(np.float64),
    "sources": np.dtype(np.uint8),
    "starts": np.dtype(np.int64),
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

    # safe_open takes a file that may not be read for one that does not exist.
    with path.open("rb"):
        pass
    try:
        with safe_open(path, "np") as file:
            yield file
    except SafetensorError as error:
        raise UnreadableFileError(str(error)) from None


def _read_header(metadata: Mapping[str, str]) -> FileHeader:
    try:
        fields = json.loads(metadata[_HEADER])
        written = fields.pop("format")
        if written != FORMAT:
            raise UnreadableFileError(
                f"its format is {written}, this version of reason-spec reads {FORMAT}",
                "Delete it: the cache learns its texts again, also by 'reason-spec cache import'. Or use the "
                "version that wrote it.",
            )
        return FileHeader(**{**fields, "key": StoreKey(**fields["key"])})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UnreadableFileError("its header lacks something") from None


def _checksum(about: str, arrays: _Arrays) -> str:
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    for name in _DTYPES:
        array = arrays[name]
        digest.update(f"\0{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _to_arrays(documents: Sequence[Document]) -> _Arrays:
    values: Mapping[str, Sequence[npt.ArrayLike]] = {
        "last_used": [[document.last_used for document in documents]],
        "sources": [document.sources for document in documents],
        "starts": [np.cumsum([0, *(len(document.tokens) for document in documents)])[: len(documents)]],
        "tokens": [document.tokens for document in documents],
        "usefulness": [[document.usefulness for document in documents]],
    }
    return {name: np.concatenate([np.empty(0, dtype), *values[name]]) for name, dtype in _DTYPES.items()}


def _to_documents(arrays: _Arrays) -> list[Document]:
    tokens, sources = arrays["tokens"], arrays["sources"]
    ends = [*arrays["starts"][1:].tolist(), len(tokens)]
    columns = (arrays[name].tolist() for name in ("starts", "last_used", "usefulness"))
    return [
        Document(tokens[start:end], sources[start:end], last_used, usefulness)
        for start, last_used, usefulness, end in zip(*columns, ends, strict=False)
    ]


def _are_consistent(arrays: _Arrays) -> bool:
    """Whether the arrays describe documents: the index reads negative tokens as links in its log."""
    if any(array.dtype != _DTYPES[name] or array.ndim != 1 for name, array in arrays.items()):
        return False
    length, starts = len(arrays["tokens"]), arrays["starts"]
    return bool(
        len(arrays["last_used"]) == len(arrays["usefulness"]) == len(starts)
        and len(arrays["sources"]) == length
        and (arrays["sources"] < len(SOURCES)).all()
        and (arrays["tokens"] >= 0).all()
        and (np.diff(starts, append=length) > 0).all()
        and (starts[0] == 0 if len(starts) else length == 0)
    )
