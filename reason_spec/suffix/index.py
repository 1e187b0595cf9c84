"""The suffix index of one tenant: a log of tokens and a table of their contexts, of limited size."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from reason_spec.suffix import index_kernels as kernels
from reason_spec.suffix.documents import staleness
from reason_spec.suffix.index_kernels import END, NONE, Bytes, Ints, Longs
from reason_spec.suffix.rebuild import Packed, Piece, Rebuild

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
_MIN_GROWTH: Final = 1.1
"""Below this growth factor the index evicts: a smaller resize would soon be followed by another."""
LARGE: Final = 1 << 16
"""An index of more places is rebuilt in a thread: it takes about a second for a million tokens."""
_ALMOST_FULL: Final = 0.95
"""Share of the arrays of a large index at which its rebuild starts, so that there is room meanwhile."""
_BYTES_OF_PIECE: Final = 160
_BYTES_OF_PLACE: Final = 4 + 1 + 4 * kernels.NUM_ORDERS


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

    def move(self, moved: Ints) -> None:
        """Take over the new place of each place; NONE: it was evicted."""
        places = self.places[: self.length]
        places[:] = np.where(places == NONE, NONE, moved[places])
        evicted = np.flatnonzero(places == NONE)
        if len(evicted):
            self.known_from = max(self.known_from, int(evicted[-1]) + 1)


class TokenIndex:
    """The suffix index of one tenant. Not thread-safe; `SuffixCache` locks it.

    If the arrays would exceed ``max_bytes``, the stalest pieces are evicted, 30 % of the tokens at a time. A
    large index is rebuilt in a thread, without them or for more tokens; meanwhile it takes up to twice as
    many bytes.
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
        self._writers: weakref.WeakSet[IndexWriter] = weakref.WeakSet()
        self._rebuild: Rebuild | None = None

    @property
    def num_bytes(self) -> int:
        """Allocated bytes."""
        arrays = self.log.nbytes + self.sources.nbytes + self.earlier.nbytes + self.table.nbytes
        rebuild = self._rebuild
        rebuilt = 0 if rebuild is None else rebuild.num_bytes
        return arrays + rebuilt + _BYTES_OF_PIECE * len(self.pieces)

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
        """Make room for more places and tokens: grow the arrays, or evict if the size limit requires it."""
        while True:
            length = self.meta.item(kernels.LOG_END) + places
            slots = int((self.meta.item(kernels.ENTRIES) + kernels.NUM_ORDERS * tokens) / _MAX_LOAD) + 1
            rebuild = self._rebuild
            if rebuild is not None:
                has_room = self._has_room(length, slots, 1.0) and rebuild.has_room(length, slots)
                if has_room and not rebuild.is_done:
                    return
                self._replace_by(rebuild)
                continue
            is_large = length > LARGE
            if self._has_room(length, slots, _ALMOST_FULL if is_large else 1.0):
                return
            length, slots = max(length, _INITIAL_PLACES), max(slots, 2 * _INITIAL_PLACES)
            needed = _BYTES_OF_PLACE * length + 4 * slots + _BYTES_OF_PIECE * (len(self.pieces) + 1)
            growth = min(_GROWTH, self._max_bytes / needed, kernels.MAX_PLACE / length)
            kept = list(self.pieces) if growth >= _MIN_GROWTH else self._without_stalest()
            length, slots = int(length * growth), int(slots * growth)
            if is_large:
                self._rebuild_in_thread(kept, length, slots)
            else:
                self._rebuild_now(kept, length, slots)

    def _has_room(self, length: int, slots: int, share: float) -> bool:
        """Whether places, slots and one more piece fit into this share of what is allocated."""
        places, entries = len(self.log), len(self.table)
        most_pieces = (self._max_bytes - _BYTES_OF_PLACE * places - 4 * entries) // _BYTES_OF_PIECE
        fits = length <= share * places and slots <= share * entries
        return fits and len(self.pieces) < share * most_pieces

    def _without_stalest(self) -> list[Piece]:
        assert self.pieces, f"{self._max_bytes} bytes are too few"
        now, kept = self._clock(), self.num_tokens
        enough = int(_KEPT * kept)
        gone: set[Piece] = set()
        for piece in sorted(self.pieces, key=lambda piece: _staleness(piece, now), reverse=True):
            if kept <= enough:
                break
            gone.add(piece)
            kept -= piece.stop - piece.start
        return [piece for piece in self.pieces if piece not in gone]

    def _rebuild_now(self, kept: list[Piece], length: int, slots: int) -> None:
        rebuild = Rebuild(self.log, kept, len(self.pieces), length, slots)
        rebuild.run()
        self._replace_by(rebuild)

    def _rebuild_in_thread(self, kept: list[Piece], length: int, slots: int) -> None:
        for writer in self._writers:
            # The pieces of the rebuild must not grow meanwhile.
            self._leave_piece(writer)
        self._rebuild = Rebuild(self.log, kept, len(self.pieces), length, slots)
        self._rebuild.start()

    def _replace_by(self, rebuild: Rebuild) -> None:
        """Replace the arrays, with what was written since the rebuild began; waits for it."""
        self._rebuild = None
        rebuild.wait()
        num_kept = len(rebuild.kept)
        pieces = [*rebuild.kept, *self.pieces[rebuild.num_pieces :]]
        length = len(rebuild.earlier)
        packed = Packed(self.log, pieces, length)
        sources = np.zeros(length, np.uint8)
        sources[: packed.end] = self.sources[packed.cells]
        kernels.reindex(
            packed.log, rebuild.earlier, rebuild.table, rebuild.meta, packed.starts[num_kept:],
            packed.stops[num_kept:],
        )  # fmt: skip
        stay = set(pieces)
        for writer in self._writers:
            writer.move(packed.moved)
            if writer.piece not in stay:
                writer.piece = None
        self.pieces, self._starts = pieces, packed.starts.tolist()
        for piece, start, stop in zip(pieces, self._starts, packed.stops.tolist(), strict=True):
            piece.start, piece.stop, piece.limit = start, stop, stop
        self.log, self.sources, self.earlier = packed.log, sources, rebuild.earlier
        self.table, self.meta = rebuild.table, rebuild.meta
        self.meta[kernels.LOG_END] = packed.end

    def _piece_of(self, place: int) -> Piece | None:
        if place < 0:
            return None
        found = bisect.bisect_right(self._starts, place) - 1
        return self.pieces[found] if found >= 0 and place < self.pieces[found].stop else None

    # --- restoring ---------------------------------------------------------------------------------------

    def reserve(self, texts: Sequence[Ints]) -> None:
        """Resize the arrays once for these texts, if they fit into the limit: each growth costs time."""
        if self._rebuild is not None:
            self._replace_by(self._rebuild)
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
            more = min(1 / _ALMOST_FULL, self._max_bytes / needed)
            length, slots = max(int(length * more), len(self.log)), max(int(slots * more), len(self.table))
            self._rebuild_now(list(self.pieces), length, slots)

    def date(self, places: Ints, last_used: float, usefulness: float) -> None:
        """Set last use and usefulness of the pieces that hold these places."""
        numbers = np.unique(np.searchsorted(self._starts, places, side="right") - 1)
        for number in numbers.tolist():
            piece = self.pieces[number]
            piece.last_used = last_used
            piece.usefulness = usefulness * (piece.stop - piece.start) / max(len(places), 1)


def _staleness(piece: Piece, now: float) -> float:
    return staleness(now - piece.last_used, piece.usefulness, piece.stop - piece.start)
