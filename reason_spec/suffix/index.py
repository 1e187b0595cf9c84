"""The texts of one tenant and where every short context stands in them, within a bound in bytes."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from reason_spec.suffix import kernels
from reason_spec.suffix.kernels import END, NONE, Bytes, Ints, Longs
from reason_spec.suffix.texts import TenantTexts, staleness

PIECE_TOKENS: Final = 4096
"""A longer text lies in several pieces, so that part of it can be evicted."""
MIN_RUN: Final = 32
"""So many tokens in a row must be known for a prompt's part not to be written again."""
_BLOCK: Final = 1024
_RESERVED: Final = 64
_FIRST_PLACES: Final = 256
_KEPT: Final = 0.7
_LOAD: Final = 0.75
_GROWTH: Final = 1.5
# Growing by less would mean to grow again at once; then it is time to evict.
_LEAST_GROWTH: Final = 1.02
_BYTES_OF_PIECE: Final = 160
_BYTES_OF_PLACE: Final = 4 + 1 + 4 * kernels.NUM_ORDERS


@dataclass(slots=True, eq=False)
class Piece:
    """A run of tokens in the log, from one conversation."""

    start: int
    stop: int
    limit: int
    """The forward link stands at ``stop``; up to ``limit`` the places are this piece's to write."""
    last_used: float
    usefulness: float = 0.0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Writer:
    """One conversation that is being written: its text and where its tokens stand in the log."""

    text: Ints = field(default_factory=lambda: np.empty(1024, np.int32))
    places: Ints = field(default_factory=lambda: np.empty(1024, np.int32))
    length: int = 0
    known_from: int = 0
    """From here on the log holds the text without a gap."""
    piece: Piece | None = None

    def make_room(self, length: int) -> None:
        """Let text and places hold ``length`` tokens."""
        if length > len(self.text):
            size = max(length, 2 * len(self.text))
            self.text = np.concatenate([self.text, np.empty(size - len(self.text), np.int32)])
            self.places = np.concatenate([self.places, np.empty(size - len(self.places), np.int32)])


class TokenIndex:
    """An index over all texts of a tenant. It is not thread-safe; `SuffixCache` locks it.

    Appending takes some 100 ns a token. Once the arrays would take more than ``max_bytes``, the pieces that
    were longest unused and least useful go, about a third of the tokens at a time.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self.log: Ints = np.full(_FIRST_PLACES, END, np.int32)
        self.sources: Bytes = np.zeros(_FIRST_PLACES, np.uint8)
        self.earlier: Ints = np.empty((_FIRST_PLACES, kernels.NUM_ORDERS), np.int32)
        self.table: Ints = np.full(2 * _FIRST_PLACES, NONE, np.int32)
        self.meta: Longs = np.zeros(kernels.META_SIZE, np.int64)
        self.pieces: list[Piece] = []
        self._starts: list[int] = []
        most = max_bytes // (2 * _BYTES_OF_PLACE)
        self._piece_tokens = min(PIECE_TOKENS, most // 8)
        self._block = min(_BLOCK, self._piece_tokens)
        self._count_pieces()
        self._writers: weakref.WeakSet[Writer] = weakref.WeakSet()

    @property
    def num_bytes(self) -> int:
        """What the arrays take, used or not."""
        arrays = self.log.nbytes + self.sources.nbytes + self.earlier.nbytes + self.table.nbytes
        return arrays + _BYTES_OF_PIECE * len(self.pieces)

    @property
    def num_tokens(self) -> int:
        """How many tokens are kept."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def open_writer(self) -> Writer:
        """Return a writer for a new conversation."""
        writer = Writer()
        self._writers.add(writer)
        return writer

    def close_writer(self, writer: Writer) -> None:
        """Give back the room that was reserved for the conversation."""
        self._writers.discard(writer)
        self._leave_piece(writer)

    def write(self, writer: Writer, stop: int, source: int, *, only_new: bool = False) -> None:
        """Learn ``writer.text`` up to ``stop``; ``only_new`` passes over long runs that are known already."""
        min_run = MIN_RUN if only_new else 0
        now = self._clock()
        while writer.length < stop:
            at = writer.length
            if only_new and self._pass_over(writer, stop, now):
                continue
            count = self._make_place(writer, min(stop - at, self._block))
            piece = writer.piece
            assert piece is not None
            reached = kernels.append(
                self.log, self.sources, self.earlier, self.table, self.meta, writer.text, writer.places,
                at, at + count, writer.known_from, piece.stop, source, min_run,
            )  # fmt: skip
            piece.stop += reached - at
            piece.last_used = now
            writer.length = reached

    def cut(self, writer: Writer, length: int) -> None:
        """Let the text end after ``length`` tokens; what stood behind stays learnt."""
        writer.length = length
        writer.known_from = min(writer.known_from, length)
        self._leave_piece(writer)

    def credit(self, place: int, accepted: int) -> None:
        """Note that so many tokens proposed from ``place`` were accepted."""
        piece = self._piece_of(place)
        if piece is not None:
            piece.usefulness += accepted
            piece.last_used = self._clock()

    def check(self) -> None:
        """Assert that log, pieces and table fit together."""
        end = 0
        for piece in self.pieces:
            assert end < piece.start <= piece.stop <= piece.limit < len(self.log)
            assert (self.log[piece.start : piece.stop] >= 0).all()
            assert self.log[piece.start - 1] < 0
            assert self.log[piece.stop] < 0
            end = piece.limit
        assert self.meta[kernels.LOG_END] == (end + 1 if self.pieces else 0)
        assert int((self.table != NONE).sum()) == self.meta[kernels.ENTRIES]
        assert self.num_bytes <= self._max_bytes

    # --- room -------------------------------------------------------------------------------------------

    def _pass_over(self, writer: Writer, stop: int, now: float) -> bool:
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

    def _leave_piece(self, writer: Writer) -> None:
        """Write no more into the writer's piece, and give back its room where it is the last."""
        piece = writer.piece
        if piece is not None and self.pieces and piece is self.pieces[-1]:
            piece.limit = piece.stop
            self.meta[kernels.LOG_END] = piece.stop + 1
        writer.piece = None

    def _make_place(self, writer: Writer, wanted: int) -> int:
        """Let the writer's piece have room for ``wanted`` tokens, or fewer; return for how many."""
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

    def _begin_piece(self, writer: Writer, wanted: int) -> int:
        at = writer.length
        before = int(writer.places[at - 1]) if at > writer.known_from else NONE
        if before != NONE:
            known = kernels.reach(self.log, before, writer.text, at)
            if known < kernels.MATCH_CAP:
                writer.known_from = max(writer.known_from, at - known)
        start = int(self.meta[kernels.LOG_END]) + 1
        # Others write in turns with this one: without room of its own it would soon need another piece.
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
        """Make room in the arrays for so many more places and tokens; evict where the bound asks for it."""
        while True:
            length = self.meta.item(kernels.LOG_END) + places
            slots = int((self.meta.item(kernels.ENTRIES) + kernels.NUM_ORDERS * tokens) / _LOAD) + 1
            if length <= len(self.log) and slots <= len(self.table) and len(self.pieces) < self._most_pieces:
                return
            length, slots = max(length, _FIRST_PLACES), max(slots, 2 * _FIRST_PLACES)
            free = self._max_bytes - _BYTES_OF_PIECE * (len(self.pieces) + 1)
            growth = min(_GROWTH, free / (_BYTES_OF_PLACE * length + 4 * slots))
            if growth >= _LEAST_GROWTH and length * growth <= kernels.MAX_PLACE:
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
        """Note how many pieces the bound allows beside the arrays, one being begun left out."""
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
        """Keep these pieces only, close up the log and index it anew."""
        starts = np.array([piece.start for piece in kept], np.int64)
        stops = np.array([piece.stop for piece in kept], np.int64)
        sizes = stops - starts + 2
        targets = np.cumsum(sizes) - sizes + 1
        kernels.move_pieces(self.log, self.sources, starts, stops, targets)
        end = int(sizes.sum())
        self.log[end:] = END
        cells = np.concatenate([targets - 1, targets + stops - starts])
        kernels.move_links(self.log, cells, starts, stops, targets)
        for writer in self._writers:
            places = writer.places[: writer.length]
            kernels.moved_places(places, starts, stops, targets)
            lost = np.flatnonzero(places == NONE)
            writer.known_from = int(lost[-1]) + 1 if len(lost) else 0
            if writer.piece not in kept:
                writer.piece = None
        for piece, start in zip(kept, targets.tolist(), strict=True):
            piece.start, piece.stop = start, start + piece.stop - piece.start
            piece.limit = piece.stop
        self.pieces = kept
        self._starts = targets.tolist()
        self.meta[kernels.LOG_END], self.meta[kernels.ENTRIES] = end, 0
        self.table[:] = NONE
        kernels.reindex(self.log, self.earlier, self.table, self.meta, targets, targets + stops - starts)

    def _piece_of(self, place: int) -> Piece | None:
        if place < 0:
            return None
        found = bisect.bisect_right(self._starts, place) - 1
        return self.pieces[found] if found >= 0 and place < self.pieces[found].stop else None

    # --- as plain arrays --------------------------------------------------------------------------------

    def snapshot(self) -> TenantTexts:
        """Return all texts; pieces that follow each other become one document."""
        documents = [chain for chain in self._chains() if chain[0].stop > chain[0].start]
        if not documents:
            return TenantTexts.empty()
        runs = [slice(piece.start, piece.stop) for chain in documents for piece in chain]
        sizes = [sum(piece.stop - piece.start for piece in chain) for chain in documents]
        tokens = np.concatenate([self.log[run] for run in runs])
        sources = np.concatenate([self.sources[run] for run in runs])
        document_starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        changes = np.flatnonzero(np.diff(sources)) + 1
        segment_starts = np.union1d(document_starts, changes).astype(np.int64)
        return TenantTexts(
            tokens=tokens,
            document_starts=document_starts,
            segment_starts=segment_starts,
            segment_sources=sources[segment_starts],
            last_used=np.array([max(piece.last_used for piece in chain) for chain in documents]),
            usefulness=np.array([sum(piece.usefulness for piece in chain) for chain in documents]),
        )

    def restore(self, texts: TenantTexts) -> None:
        """Add all texts of a snapshot."""
        segments = np.append(texts.segment_starts, len(texts.tokens))
        stops = np.append(texts.document_starts[1:], len(texts.tokens))
        first = np.searchsorted(segments, texts.document_starts)
        self._make_room_for(texts)
        for number, start in enumerate(texts.document_starts.tolist()):
            stop = int(stops[number])
            writer = self.open_writer()
            writer.make_room(stop - start)
            writer.text[: stop - start] = texts.tokens[start:stop]
            segment = int(first[number])
            while segments[segment] < stop:
                self.write(writer, int(segments[segment + 1]) - start, int(texts.segment_sources[segment]))
                segment += 1
            written = writer.places[: stop - start]
            self._date(written[written != NONE], texts.last_used[number], texts.usefulness[number])
            self.close_writer(writer)

    def _make_room_for(self, texts: TenantTexts) -> None:
        """Let the arrays have their final size at once, if the bound allows: each growth costs time."""
        tokens, starts = texts.tokens, texts.document_starts
        sample = np.empty(kernels.NUM_ORDERS * len(tokens) // (kernels.SAMPLED // 2) + 1, np.int64)
        found = np.unique(sample[: kernels.sample_contexts(tokens, starts, sample)])
        entries = self.meta.item(kernels.ENTRIES) + 1.05 * kernels.SAMPLED * len(found) + _BLOCK
        pieces = len(starts) + len(tokens) // self._piece_tokens
        length = self.meta.item(kernels.LOG_END) + len(tokens) + 3 * pieces + _BLOCK
        slots = int((entries + kernels.NUM_ORDERS * _BLOCK) / _LOAD)
        needed = _BYTES_OF_PLACE * length + 4 * slots + _BYTES_OF_PIECE * (len(self.pieces) + pieces)
        if needed <= self._max_bytes:
            self._resize(max(length, len(self.log)), max(slots, len(self.table)))

    def _date(self, places: Ints, last_used: float, usefulness: float) -> None:
        numbers = np.unique(np.searchsorted(self._starts, places, side="right") - 1)
        for number in numbers.tolist():
            piece = self.pieces[number]
            piece.last_used = last_used
            piece.usefulness = usefulness * (piece.stop - piece.start) / max(len(places), 1)

    def _chains(self) -> Iterator[list[Piece]]:
        by_start = {piece.start: piece for piece in self.pieces}
        following: dict[int, Piece] = {}
        for piece in self.pieces:
            behind = by_start.get(-2 - int(self.log[piece.stop]))
            if behind is not None and self.log[behind.start - 1] == -2 - (piece.stop - 1):
                following[piece.start] = behind
        heads = by_start.keys() - {piece.start for piece in following.values()}
        for start in sorted(heads):
            chain = [by_start[start]]
            while chain[-1].start in following:
                chain.append(following[chain[-1].start])
            yield chain


def _staleness(piece: Piece, now: float) -> float:
    return staleness(now - piece.last_used, piece.usefulness, piece.stop - piece.start)


def _resized(array: Any, length: int) -> Any:
    # In place where the allocator can: the old and the new array need not stand side by side.
    array.resize((length, *array.shape[1:]), refcheck=False)
    return array
