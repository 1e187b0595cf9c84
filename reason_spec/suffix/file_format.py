"""The bytes of one tenant's file: a checksummed header, then plain arrays, each with a checksum.

::

    magic, 8 bytes | version, u32 | length of the header, u32 | blake2b of all that and the header, 16 bytes
    header: JSON in ASCII, padded with spaces
    parts: the arrays of ``TenantTexts``, little-endian, end to end

Every byte of the file is covered by a checksum, and nothing in it is executed. What the header says
about lengths must add up to the size of the file before anything of that size is allocated.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from reason_spec.suffix.texts import TenantTexts

VERSION: Final = 1
"""Rises whenever a file of the version before cannot be read any more."""

MAX_HEADER_BYTES: Final = 1 << 16
"""What is read of a file to see whose it is; names of tenants are bounded by it."""

_MAGIC: Final = b"\x89RSPECsx"
_PREFIX: Final = struct.Struct("<8sII")
_DIGEST_BYTES: Final = 16
_ALIGNMENT: Final = 8
_PARTS: Final[Mapping[str, np.dtype[Any]]] = {
    # The widest first: every array then starts at a multiple of its items' size.
    "document_starts": np.dtype("<i8"),
    "segment_starts": np.dtype("<i8"),
    "last_used": np.dtype("<f8"),
    "usefulness": np.dtype("<f8"),
    "tokens": np.dtype("<i4"),
    "segment_sources": np.dtype("u1"),
}


class DamagedError(Exception):
    """The bytes are not what was written; the text says what shows it."""


class OtherVersionError(Exception):
    """The file was written by another version of the program; ``version`` is its format."""

    def __init__(self, version: int) -> None:
        super().__init__(f"its format is {version}, this program reads {VERSION}")
        self.version = version


@dataclass(frozen=True, slots=True)
class StoreKey:
    """Whose tokens a store holds: texts of one model mean nothing to another.

    ``model`` tells a model by the content of its files or its id, ``tokenizer`` a vocabulary by its
    content (``Tokenizer.tokenizer_id``).
    """

    model: str
    tokenizer: str


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a file says about itself.

    ``lineage`` is drawn when the file is written first and kept by every save after; ``save`` is
    drawn anew by each. ``saved_at`` is in seconds since 1970.
    """

    tenant: str
    key: StoreKey
    lineage: str
    save: str
    saved_at: float


class StoredTexts(NamedTuple):
    """A file, read."""

    header: FileHeader
    texts: TenantTexts


def pack(header: FileHeader, texts: TenantTexts) -> list[bytes | memoryview]:
    """Return the bytes of a file, in pieces."""
    arrays = {name: np.ascontiguousarray(getattr(texts, name), dtype) for name, dtype in _PARTS.items()}
    parts = {
        name: {"items": len(array), "blake2b": _digest(array.data).hex()} for name, array in arrays.items()
    }
    about = json.dumps({**asdict(header), "parts": parts}).encode("ascii")
    about += b" " * (-len(about) % _ALIGNMENT)
    prefix = _PREFIX.pack(_MAGIC, VERSION, len(about))
    return [prefix, _digest(prefix + about), about, *(array.data.cast("B") for array in arrays.values())]


def unpack(content: bytes) -> StoredTexts:
    """Read a whole file.

    Raises:
        DamagedError: a checksum, a length or a value is wrong.
        OtherVersionError: the file belongs to another version of the program.
    """
    header, parts, place = _unpack_header(content)
    expected = place + sum(parts[name]["items"] * dtype.itemsize for name, dtype in _PARTS.items())
    if len(content) != expected:
        raise DamagedError(f"it has {len(content)} bytes instead of {expected}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    view = memoryview(content)
    for name, dtype in _PARTS.items():
        num_bytes = parts[name]["items"] * dtype.itemsize
        piece = view[place : place + num_bytes]
        if _digest(piece).hex() != parts[name].get("blake2b"):
            raise DamagedError(f"the checksum of its part {name!r} is wrong")
        arrays[name] = np.frombuffer(piece, dtype).astype(dtype.newbyteorder("="))
        place += num_bytes
    try:
        return StoredTexts(header, TenantTexts(**arrays))
    except ValueError as error:
        raise DamagedError(str(error)) from None


def unpack_header(content: bytes) -> FileHeader:
    """Read what a file says about itself; its first ``MAX_HEADER_BYTES`` are enough.

    Raises:
        DamagedError: the checksum of the header is wrong.
        OtherVersionError: the file belongs to another version of the program.
    """
    return _unpack_header(content)[0]


def num_bytes_of(texts: TenantTexts) -> int:
    """Return how many bytes the arrays take in a file."""
    return sum(len(getattr(texts, name)) * dtype.itemsize for name, dtype in _PARTS.items())


def _unpack_header(content: bytes) -> tuple[FileHeader, dict[str, dict[str, Any]], int]:
    start = _PREFIX.size + _DIGEST_BYTES
    if len(content) < start:
        raise DamagedError(f"it ends after {len(content)} bytes")
    magic, version, length = _PREFIX.unpack_from(content)
    if magic != _MAGIC:
        raise DamagedError("it does not begin as files of this kind do")
    about = content[start : start + min(length, MAX_HEADER_BYTES - start)]
    if _digest(content[: _PREFIX.size] + about) != content[_PREFIX.size : start]:
        raise DamagedError("the checksum of its header is wrong")
    if version != VERSION:
        raise OtherVersionError(version)
    try:
        fields = json.loads(about)
        parts = fields.pop("parts")
        sizes = [parts[name]["items"] for name in _PARTS]
        header = FileHeader(**{**fields, "key": StoreKey(**fields["key"])})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DamagedError("its header lacks something") from None
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise DamagedError("its header holds impossible lengths")
    return header, parts, start + length


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
