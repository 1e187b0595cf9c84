"""What the cache of one tenant holds, as plain arrays: what is saved, loaded, exported and imported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reason_spec.suffix.base import SOURCES


@dataclass(frozen=True, slots=True, eq=False)
class TenantTexts:
    """The texts of one tenant, oldest first, with what eviction needs to know of them.

    A document is one conversation, or a piece of one; a match never crosses the start of a document. A
    segment is a run of tokens of one source; every document starts a segment. Indices are places in
    ``tokens``.
    """

    tokens: npt.NDArray[np.int32]
    """All documents end to end."""

    document_starts: npt.NDArray[np.int64]
    """Where each document starts: the first at 0, increasing; a document has one token or more."""

    segment_starts: npt.NDArray[np.int64]
    """Where each segment starts: the first at 0, increasing; every document's start is among them."""

    segment_sources: npt.NDArray[np.uint8]
    """The source of each segment, as its place in ``SOURCES``."""

    last_used: npt.NDArray[np.float64]
    """When each document was last written or proposed from, in seconds since 1970."""

    usefulness: npt.NDArray[np.float64]
    """How many tokens proposed from each document were accepted, in all."""

    def __post_init__(self) -> None:
        """Refuse arrays that contradict each other.

        Raises:
            ValueError: a number of elements, an order or a value is impossible; the text says which.
        """
        length, documents = len(self.tokens), len(self.document_starts)
        _check_starts("document", self.document_starts, length)
        _check_starts("segment", self.segment_starts, length)
        if len(self.last_used) != documents or len(self.usefulness) != documents:
            raise ValueError("last_used and usefulness need one value for each document")
        if len(self.segment_sources) != len(self.segment_starts):
            raise ValueError("segment_sources needs one value for each segment")
        if not np.isin(self.document_starts, self.segment_starts).all():
            raise ValueError("a document starts inside a segment")
        if len(self.segment_sources) and int(self.segment_sources.max()) >= len(SOURCES):
            raise ValueError(f"a segment has the source {int(self.segment_sources.max())}, which is unknown")
        if length and int(self.tokens.min()) < 0:
            raise ValueError("a token is negative")

    @classmethod
    def empty(cls) -> TenantTexts:
        """Return the texts of a tenant that has none."""
        return cls(
            tokens=np.empty(0, np.int32),
            document_starts=np.empty(0, np.int64),
            segment_starts=np.empty(0, np.int64),
            segment_sources=np.empty(0, np.uint8),
            last_used=np.empty(0, np.float64),
            usefulness=np.empty(0, np.float64),
        )


def staleness(unused: float, usefulness: float, num_tokens: int) -> float:
    """Return by what texts are forgotten, the highest first: seconds unused, less for what was useful."""
    return unused / (1.0 + usefulness / max(num_tokens, 1))


def _check_starts(name: str, starts: npt.NDArray[np.int64], length: int) -> None:
    if (len(starts) == 0) != (length == 0):
        raise ValueError(f"{length} tokens and {len(starts)} {name}s")
    if len(starts) and (starts[0] != 0 or starts[-1] >= length or (np.diff(starts) <= 0).any()):
        raise ValueError(f"the {name}s' starts are not 0 and increasing within the {length} tokens")
