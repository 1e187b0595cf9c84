"""Rebuilds the arrays of a suffix index: without the pieces that are evicted, or larger."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from reason_spec.suffix import index_kernels as kernels
from reason_spec.suffix.index_kernels import END, NONE, Ints, Longs


@dataclass(slots=True, eq=False)
class Piece:
    """A run of tokens in the log, from one conversation."""

    start: int
    stop: int
    limit: int
    """End of the places reserved for this piece; its forward link is at ``stop``."""
    last_used: float
    usefulness: float = 0.0


class Packed:
    """A log of some pieces of another one, moved together. O(tokens), in a few copies.

    ``cells`` are the places that it takes over, links included, and ``moved`` is the new place of each place.
    """

    def __init__(self, log: Ints, pieces: Sequence[Piece], length: int) -> None:
        runs = [np.arange(piece.start - 1, piece.stop + 1, dtype=np.int32) for piece in pieces]
        self.cells: Ints = np.concatenate([np.empty(0, np.int32), *runs])
        self.end = len(self.cells)
        self.moved: Ints = np.full(len(log), NONE, np.int32)
        self.moved[self.cells] = np.arange(self.end, dtype=np.int32)
        self.log: Ints = np.full(length, END, np.int32)
        self.log[: self.end] = log[self.cells]
        links = np.flatnonzero(self.log[: self.end] < END)
        targets = self.moved[-2 - self.log[links]]
        self.log[links] = np.where(targets == NONE, END, -2 - targets)
        self.starts: Longs = self._places_of([piece.start - 1 for piece in pieces]) + 1
        self.stops: Longs = self._places_of([piece.stop for piece in pieces])

    def _places_of(self, places: list[int]) -> Longs:
        return self.moved[np.array(places, np.int64)].astype(np.int64)


class Rebuild:
    """Arrays of another size for the ``kept`` pieces of an index, which may go on with its own meanwhile.

    Args:
        kept: pieces that do not grow until the end.
        num_pieces: how many the index has now; later ones are inserted at the end.
    """

    def __init__(self, log: Ints, kept: list[Piece], num_pieces: int, length: int, slots: int) -> None:
        self.kept = kept
        self.num_pieces = num_pieces
        self.earlier: Ints = np.empty((length, kernels.NUM_ORDERS), np.int32)
        self.table: Ints = np.empty(slots, np.int32)
        self.meta: Longs = np.zeros(kernels.META_SIZE, np.int64)
        self._packed = Packed(log, kept, length)
        self._running: Future[None] | None = None

    @property
    def is_done(self) -> bool:
        return self._running is None or self._running.done()

    @property
    def num_bytes(self) -> int:
        return self._packed.log.nbytes + self.earlier.nbytes + self.table.nbytes

    def has_room(self, length: int, slots: int) -> bool:
        return length <= len(self.earlier) and slots <= len(self.table)

    def start(self) -> None:
        """Run in a thread: the kernel does not hold the interpreter's lock."""
        executor = ThreadPoolExecutor(1, "suffix-rebuild")
        self._running = executor.submit(self.run)
        executor.shutdown(wait=False)

    def run(self) -> None:
        """Insert the tokens of the pieces. O(tokens), about a second for a million."""
        packed = self._packed
        self.table.fill(NONE)
        kernels.reindex(packed.log, self.earlier, self.table, self.meta, packed.starts, packed.stops)

    def wait(self) -> None:
        """Wait for the thread, and raise its error."""
        if self._running is not None:
            self._running.result()
