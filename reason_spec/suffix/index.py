"""The suffix index of one tenant: a log of tokens and a table of their contexts, of limited size."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from reason_spec.suffix import index_kernels as kernels
from reason_spec.suffix.documents import staleness
from reason_spec.suffix.index_kernels import END, NONE, Bytes, Ints, Longs

PIECE_TOKENS: Final = 4096
"""Maximum length of a piece. Longer texts have several pieces, so that part of one can be evicted."""
MIN_RUN: Final = 32
"""Minimum number of tokens in a row that must be in the log for `write` to skip them."""
_BLOCK: Final = 1024
"""Maximum number of tokens appended by one kernel call."""
_RESERVED: Final = 64
"""Places reserved for a piece while several conversations alternate."""
_INITIAL_PLACES: Final = 256
_KEPT: Final = 0.7
"""Share of the tokens that an eviction keeps."""
_MAX_LOAD: Final = 0.75
"""Maximum share of occupied slots in the table."""
_GROWTH: Final = 1.5
_MIN_GROWTH: Final = 1.02
"""Below this growth factor the index evicts: a smaller resize would soon be followed by another."""
_BYTES_OF_PIECE: Final = 160
_BYTES_OF_PLACE: Final = 4 + 1 + 4 * kernels.NUM_ORDERS


@dataclass(slots=True, eq=False)
class Piece:
    """A run of tokens in the log, from one conversation."""

    start: int
    stop: int
    limit: int
    """End of the places reserved for this piece; its forward link is at ``stop``."""
    last_used: float
    usefulness: float = 0.0


@dataclass(slots=True, eq=False, weakref_slot=True)
class IndexWriter:
    """The state of one conversation that is being written: its text and the places of its tokens."""

    text: Ints = field(default_factory=lambda: np.empty(1024, np.int32))
    places: Ints = field(default_factory=lambda: np.empty(1024, np.int32))
    length: int = 0
    known_from: int = 0
    """From this index on, the log holds the text without a gap."""
    piece: Piece | None = None

    def make_room(self, length: int) -> None:
        """Grow the arrays to hold ``length`` tokens."""
        if length > len(self.text):
            size = max(length, 2 * len(self.text))
            self.text = np.concatenate([self.text, np.empty(size - len(self.text), np.int32)])
            self.places = np.concatenate([self.places, np.empty(size - len(self.places), np.int32)])


class TokenIndex:
    """The suffix index of one tenant. Not thread-safe; `SuffixCache` locks it.

    If the arrays would exceed ``max_bytes``, the stalest pieces are evicted, 30 % of the tokens at a time.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self.log: Ints = np.full(_INITIAL_PLACES, END, np.int32)
        self.sources: Bytes = np.zeros(_INITIAL_PLACES, np.uint8)
        self.earlier: Ints = np.empty((_INITIAL_PLACES, kernels.NUM_ORDERS), np.int32)
        self.table: Ints = np.full(2 * _INITIAL_PLACES, NONE, np.int32)
        self.meta: Longs = np.zeros(kernels.META_SIZE, np.int64)
        self.pieces: list[Piece] = []
        self._starts: list[int] = []
        most = max_bytes // (2 * _BYTES_OF_PLACE)
        self._piece_tokens = min(PIECE_TOKENS, most // 8)
        self._block = min(_BLOCK, self._piece_tokens)
        self._count_pieces()
        self._writers: weakref.WeakSet[IndexWriter] = weakref.WeakSet()

    @property
    def num_bytes(self) -> int:
        """Allocated bytes."""
        arrays = self.log.nbytes + self.sources.nbytes + self.earlier.nbytes + self.table.nbytes
        return arrays + _BYTES_OF_PIECE * len(self.pieces)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the log."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def open_writer(self) -> IndexWriter:
        """Return a writer for a new conversation."""
        writer = IndexWriter()
        self._writers.add(writer)
        return writer

    def close_writer(self, writer: IndexWriter) -> None:
        """Release the places reserved for the conversation."""
        self._writers.discard(writer)
        self._leave_piece(writer)

    def write(self, writer: IndexWriter, stop: int, source: int, *, only_new: bool = False) -> None:
        """Append ``writer.text`` up to ``stop``; ``only_new`` skips long runs that the log already holds."""
        min_run = MIN_RUN if only_new else 0
        now = self._clock()
        while writer.length < stop:
            at = writer.length
            if only_new and self._skip_known(writer, stop, now):
                continue
            count = self._make_room(writer, min(stop - at, self._block))
            piece = writer.piece
            assert piece is not None
            reached = kernels.append(
                self.log, self.sources, self.earlier, self.table, self.meta, writer.text, writer.places,
                at, at + count, writer.known_from, piece.stop, source, min_run,
            )  # fmt: skip
            piece.stop += reached - at
            piece.last_used = now
            writer.length = reached

    def cut(self, writer: IndexWriter, length: int) -> None:
        """Truncate the text to ``length`` tokens; the log keeps the rest."""
        writer.length = length
        writer.known_from = min(writer.known_from, length)
        self._leave_piece(writer)

    def credit(self, place: int, accepted: int) -> None:
        """Add accepted tokens to the usefulness of the piece that they were proposed from."""
        piece = self._piece_of(place)
        if piece is not None:
            piece.usefulness += accepted
            piece.last_used = self._clock()

    # --- size -------------------------------------------------------------------------------------------

    def _skip_known(self, writer: IndexWriter, stop: int, now: float) -> bool:
        at = writer.length
        reached = kernels.skip_known(
            self.log, self.table, writer.text, writer.places, at, stop, writer.known_from, MIN_RUN
        )
        if reached == at:
            return False
        for first in range(at, reached, MIN_RUN):
            piece = self._piece_of(int(writer.places[first]))
            if piece is not None:
                piece.last_used = now
        writer.length = reached
        self._leave_piece(writer)
        return True

    def _leave_piece(self, writer: IndexWriter) -> None:
        """End the writer's piece, and release its reserved places if it is the last one."""
        piece = writer.piece
        if piece is not None and self.pieces and piece is self.pieces[-1]:
            piece.limit = piece.stop
            self.meta[kernels.LOG_END] = piece.stop + 1
        writer.piece = None

    def _make_room(self, writer: IndexWriter, wanted: int) -> int:
        """Reserve places for up to ``wanted`` tokens in the writer's piece; return how many."""
        piece = writer.piece
        if piece is not None and piece.limit > piece.stop:
            self._fit(0, wanted)
            if writer.piece is piece and piece.limit > piece.stop:
                return min(wanted, piece.limit - piece.stop)
        self._fit(wanted + _RESERVED + 2, wanted)
        piece = writer.piece
        if piece is not None and piece is self.pieces[-1] and piece.stop - piece.start < self._piece_tokens:
            count = min(wanted, self._piece_tokens - (piece.stop - piece.start))
            self.meta[kernels.LOG_END] += piece.stop + count - piece.limit
            piece.limit = piece.stop + count
            return count
        return self._begin_piece(writer, wanted)

    def _begin_piece(self, writer: IndexWriter, wanted: int) -> int:
        at = writer.length
        before = int(writer.places[at - 1]) if at > writer.known_from else NONE
        if before != NONE:
            known = kernels.count_linked(self.log, before, writer.text, at)
            if known < kernels.MAX_MATCH:
                writer.known_from = max(writer.known_from, at - known)
        start = int(self.meta[kernels.LOG_END]) + 1
        # Several conversations alternate: without reserved places each change would need a new piece.
        reserved = _RESERVED if len(self._writers) > 1 else 0
        writer.piece = Piece(start, start, start + max(wanted, reserved), self._clock())
        self.meta[kernels.LOG_END] = writer.piece.limit + 1
        self.pieces.append(writer.piece)
        self._starts.append(start)
        self.log[start - 1 : start + 1] = END
        if before != NONE:
            self.log[start - 1] = -2 - before
            if self.log[before + 1] == END:
                self.log[before + 1] = -2 - start
        return wanted

    def _fit(self, places: int, tokens: int) -> None:
        """Grow the arrays for more places and tokens, or evict if the size limit requires it."""
        while True:
            length = self.meta.item(kernels.LOG_END) + places
            slots = int((self.meta.item(kernels.ENTRIES) + kernels.NUM_ORDERS * tokens) / _MAX_LOAD) + 1
            if length <= len(self.log) and slots <= len(self.table) and len(self.pieces) < self._most_pieces:
                return
            length, slots = max(length, _INITIAL_PLACES), max(slots, 2 * _INITIAL_PLACES)
            free = self._max_bytes - _BYTES_OF_PIECE * (len(self.pieces) + 1)
            growth = min(_GROWTH, free / (_BYTES_OF_PLACE * length + 4 * slots))
            if growth >= _MIN_GROWTH and length * growth <= kernels.MAX_PLACE:
                self._resize(int(length * growth), int(slots * growth))
                return
            self._evict()

    def _resize(self, length: int, slots: int) -> None:
        end = int(self.meta[kernels.LOG_END])
        if length != len(self.log):
            self.log = _resized(self.log, length)
            self.log[end:] = END
            self.sources = _resized(self.sources, length)
            self.earlier = _resized(self.earlier, length)
        if slots != len(self.table):
            table = np.full(slots, NONE, np.int32)
            kernels.rehash(self.log, self.table, table)
            self.table = table
        self._count_pieces()

    def _count_pieces(self) -> None:
        """Compute how many pieces fit into the size limit beside the arrays."""
        places, slots = len(self.log), len(self.table)
        self._most_pieces = (self._max_bytes - _BYTES_OF_PLACE * places - 4 * slots) // _BYTES_OF_PIECE

    def _evict(self) -> None:
        assert self.pieces, f"{self._max_bytes} bytes are too few"
        now, kept = self._clock(), self.num_tokens
        enough = int(_KEPT * kept)
        gone: set[Piece] = set()
        for piece in sorted(self.pieces, key=lambda piece: _staleness(piece, now), reverse=True):
            if kept <= enough:
                break
            gone.add(piece)
            kept -= piece.stop - piece.start
        self._compact([piece for piece in self.pieces if piece not in gone])

    def _compact(self, kept: list[Piece]) -> None:
        """Drop all other pieces, move these together and rebuild the table. O(tokens)."""
        # The cells of the pieces with their links, in order, and the new index of each.
        runs = [np.arange(piece.start - 1, piece.stop + 1, dtype=np.int32) for piece in kept]
        cells = np.concatenate([np.empty(0, np.int32), *runs])
        end = len(cells)
        moved = np.full(len(self.log), NONE, np.int32)
        moved[cells] = np.arange(end, dtype=np.int32)
        self.log[:end], self.sources[:end] = self.log[cells], self.sources[cells]
        self.log[end:] = END
        links = np.flatnonzero(self.log[:end] < END)
        targets = moved[-2 - self.log[links]]
        self.log[links] = np.where(targets == NONE, END, -2 - targets)
        for piece in kept:
            piece.start, piece.stop = int(moved[piece.start - 1]) + 1, int(moved[piece.stop])
            piece.limit = piece.stop
        for writer in self._writers:
            places = writer.places[: writer.length]
            places[:] = np.where(places == NONE, NONE, moved[places])
            evicted = np.flatnonzero(places == NONE)
            writer.known_from = int(evicted[-1]) + 1 if len(evicted) else 0
            if writer.piece not in kept:
                writer.piece = None
        self.pieces = kept
        self._starts = [piece.start for piece in kept]
        self.meta[kernels.LOG_END], self.meta[kernels.ENTRIES] = end, 0
        self.table[:] = NONE
        starts = np.array(self._starts, np.int64)
        stops = np.array([piece.stop for piece in kept], np.int64)
        kernels.reindex(self.log, self.earlier, self.table, self.meta, starts, stops)

    def _piece_of(self, place: int) -> Piece | None:
        if place < 0:
            return None
        found = bisect.bisect_right(self._starts, place) - 1
        return self.pieces[found] if found >= 0 and place < self.pieces[found].stop else None

    # --- restoring ---------------------------------------------------------------------------------------

    def reserve(self, texts: Sequence[Ints]) -> None:
        """Resize the arrays once for these texts, if they fit into the limit: each growth costs time."""
        num_tokens = sum(map(len, texts))
        sample = np.empty(kernels.NUM_ORDERS * num_tokens // (kernels.SAMPLED // 2) + 1, np.int64)
        count = 0
        for text in texts:
            count = kernels.sample_contexts(text, sample, count)
        num_contexts = kernels.SAMPLED * len(np.unique(sample[:count]))
        entries = self.meta.item(kernels.ENTRIES) + 1.05 * num_contexts + _BLOCK
        pieces = len(texts) + num_tokens // self._piece_tokens
        length = self.meta.item(kernels.LOG_END) + num_tokens + 3 * pieces + _BLOCK
        slots = int((entries + kernels.NUM_ORDERS * _BLOCK) / _MAX_LOAD)
        needed = _BYTES_OF_PLACE * length + 4 * slots + _BYTES_OF_PIECE * (len(self.pieces) + pieces)
        if needed <= self._max_bytes:
            self._resize(max(length, len(self.log)), max(slots, len(self.table)))

    def date(self, places: Ints, last_used: float, usefulness: float) -> None:
        """Set last use and usefulness of the pieces that hold these places."""
        numbers = np.unique(np.searchsorted(self._starts, places, side="right") - 1)
        for number in numbers.tolist():
            piece = self.pieces[number]
            piece.last_used = last_used
            piece.usefulness = usefulness * (piece.stop - piece.start) / max(len(places), 1)


def _staleness(piece: Piece, now: float) -> float:
    return staleness(now - piece.last_used, piece.usefulness, piece.stop - piece.start)


def _resized(array: Any, length: int) -> Any:
    # In place if the allocator can: the old and the new array need not exist at the same time.
    array.resize((length, *array.shape[1:]), refcheck=False)
    return array
