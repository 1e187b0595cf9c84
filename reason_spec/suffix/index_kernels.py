"""Kernels of the suffix index: loops over arrays that `native` compiles to machine code.

The log
    All texts of a tenant, piece after piece. A piece is ``[back link] token token ... [forward link]``. A
    link is ``END``, or ``-2 - place`` if the text continues at another place. So one conversation may have
    several pieces, and pieces of several conversations may alternate.
Places
    A place is an index into the log. Each token's place is inserted under the contexts before it: the last
    1, 2, 4, 8 and 16 tokens (the orders). The hash table holds the latest place under each context, and
    ``earlier[place, order]`` the place before that one. A context has a slot of its own, so such a chain
    holds exact matches only.

Complexities count array accesses. The orders are constants, so their number is O(1).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from reason_spec.suffix.native import compiled, inlined

Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float64]

END: Final = -1
NONE: Final = -1
ORDERS: Final = (1, 2, 4, 8, 16)
NUM_ORDERS: Final = len(ORDERS)
MAX_ORDER: Final = 16
MAX_MATCH: Final = 32
"""Maximum match length that is counted, in tokens."""
MAX_PLACE: Final = 2**28 - 1
"""A slot of the table holds ``place << 3 | index of the order`` in 31 bits."""
SAMPLED: Final = 64
"""`sample_contexts` takes one context in this many."""

# Elements of `meta`: the number of used places, and the number of used slots.
LOG_END, ENTRIES, META_SIZE = range(3)


@inlined
def before(log: Ints, place: int) -> int:
    """Return the place of the token before ``place``, NONE at the start of a text. O(1)."""
    value = log[place - 1]
    if value >= 0:
        return place - 1
    return NONE if value == END else int(-2 - value)


@inlined
def after(log: Ints, place: int) -> int:
    """Return the place of the token after ``place``, NONE at the end of a text. O(1)."""
    value = log[place + 1]
    if value >= 0:
        return place + 1
    return NONE if value == END else int(-2 - value)


@inlined
def _match_length(log: Ints, place: int, text: Ints, length: int, cap: int) -> int:
    """Count how many tokens before ``place`` equal the end of the text, at most ``cap``. O(cap)."""
    matched = 0
    at = before(log, place)
    limit = min(cap, length)
    while at != NONE and matched < limit and log[at] == text[length - 1 - matched]:
        matched += 1
        at = before(log, at)
    return matched


@inlined
def hash_contexts(text: Ints, length: int, known: int, out: Longs) -> None:
    """Write the hashes of the last 1, 2, 4, 8, 16 tokens, up to ``known`` tokens. O(MAX_ORDER)."""
    value = np.uint64(0x9E3779B97F4A7C15)
    order = 0
    for size in range(1, MAX_ORDER + 1):
        if size > known:
            break
        value = (value ^ np.uint64(text[length - size])) * np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(32)
        if size == ORDERS[order]:
            out[order] = np.int64(value >> np.uint64(33))
            order += 1


@inlined
def find_slot(log: Ints, table: Ints, hashed: int, order: int, text: Ints, length: int) -> int:
    """Return the slot of a context, or the free slot for it, by linear probing.

    Expected O(order) at the maximum load of 0.75. Each probe compares the context with the log, so different
    contexts of equal hash never share a slot.
    """
    size = len(table)
    slot = (hashed * size) >> 31
    context = ORDERS[order]
    while True:
        entry = table[slot]
        if entry == NONE:
            return slot
        if entry & 7 == order and _match_length(log, entry >> 3, text, length, context) == context:
            return slot
        slot += 1
        if slot == size:
            slot = 0


@inlined
def _insert(
    log: Ints, earlier: Ints, table: Ints, meta: Longs, text: Ints, length: int, known: int, place: int,
    hashes: Longs,
) -> None:  # fmt: skip
    """Insert ``place`` under the contexts within the last ``known`` tokens. Expected O(sum of ORDERS)."""
    hash_contexts(text, length, known, hashes)
    for order in range(NUM_ORDERS):
        if ORDERS[order] > known:
            earlier[place, order] = NONE
            continue
        slot = find_slot(log, table, hashes[order], order, text, length)
        if table[slot] == NONE:
            meta[ENTRIES] += 1
            earlier[place, order] = NONE
        else:
            earlier[place, order] = table[slot] >> 3
        table[slot] = np.int32(place << 3 | order)


@compiled
def append(
    log: Ints, sources: Bytes, earlier: Ints, table: Ints, meta: Longs, text: Ints, places: Ints,
    start: int, stop: int, known_from: int, place: int, source: int, min_run: int,
) -> int:  # fmt: skip
    """Write ``text[start:stop]`` to the log at ``place`` and index it; return the end of what was written.

    Expected O(1) a token (31 token comparisons), O(min_run) more if ``min_run`` is above 0: then it stops
    before a run of ``min_run`` tokens that the log already holds. The caller has reserved the places.
    ``known_from`` is the start of the part of the text that the log holds without a gap.
    """
    hashes = np.empty(NUM_ORDERS, np.int64)
    for at in range(start, stop):
        if min_run > 0 and _known_run(log, table, text, at, stop, known_from, min_run, hashes) != NONE:
            return at
        log[place] = text[at]
        log[place + 1] = END
        sources[place] = source
        places[at] = place
        _insert(log, earlier, table, meta, text, at, min(at - known_from, MAX_ORDER), place, hashes)
        place += 1
    return stop


@inlined
def _known_run(
    log: Ints, table: Ints, text: Ints, start: int, stop: int, known_from: int, min_run: int, hashes: Longs
) -> int:
    """Return the place where the log holds ``min_run`` tokens from ``start`` after the same 16, else NONE.

    O(min_run).
    """
    if start - known_from < MAX_ORDER or stop - start < min_run:
        return NONE
    hash_contexts(text, start, MAX_ORDER, hashes)
    entry = table[find_slot(log, table, hashes[NUM_ORDERS - 1], NUM_ORDERS - 1, text, start)]
    if entry == NONE:
        return NONE
    first = entry >> 3
    place = first
    for at in range(start, start + min_run):
        if place == NONE or log[place] != text[at]:
            return NONE
        place = after(log, place)
    return int(first)


@compiled
def skip_known(
    log: Ints, table: Ints, text: Ints, places: Ints, start: int, stop: int, known_from: int, min_run: int
) -> int:
    """Return the end of the run from ``start`` that the log already holds, and write its places.

    The run must follow the latest occurrence of the 16 tokens before it, for ``min_run`` tokens or more.
    O(length of the run).
    """
    hashes = np.empty(NUM_ORDERS, np.int64)
    place = _known_run(log, table, text, start, stop, known_from, min_run, hashes)
    at = start
    while place != NONE and at < stop and log[place] == text[at]:
        places[at] = place
        at += 1
        place = after(log, place)
    return at


@compiled
def count_linked(log: Ints, place: int, text: Ints, length: int) -> int:
    """Count how many tokens up to ``place`` equal the end of the text, at most MAX_MATCH. O(MAX_MATCH)."""
    matched = 0
    while place != NONE and matched < min(MAX_MATCH, length) and log[place] == text[length - 1 - matched]:
        matched += 1
        place = before(log, place)
    return matched


@compiled
def sample_contexts(text: Ints, sample: Longs, count: int) -> int:
    """Append the hashes of about one context in SAMPLED to ``sample[:count]``; return the new count.

    Equal contexts are sampled together, so the distinct values estimate the number of contexts. O(tokens).
    """
    hashes = np.empty(NUM_ORDERS, np.int64)
    for length in range(1, len(text)):
        known = min(length, MAX_ORDER)
        hash_contexts(text, length, known, hashes)
        for order in range(NUM_ORDERS):
            if ORDERS[order] <= known and hashes[order] % SAMPLED == 0 and count < len(sample):
                sample[count] = hashes[order] * NUM_ORDERS + order
                count += 1
    return count


@compiled
def reindex(log: Ints, earlier: Ints, table: Ints, meta: Longs, starts: Longs, stops: Longs) -> None:
    """Insert the tokens of all pieces into an empty table, in the order of the log. O(tokens)."""
    hashes = np.empty(NUM_ORDERS, np.int64)
    for piece in range(len(starts)):
        text = np.empty(MAX_ORDER + stops[piece] - starts[piece], np.int32)
        known = 0
        at = before(log, starts[piece])
        while at != NONE and known < MAX_ORDER:
            known += 1
            text[MAX_ORDER - known] = log[at]
            at = before(log, at)
        length = MAX_ORDER
        for place in range(starts[piece], stops[piece]):
            context = min(known + length - MAX_ORDER, MAX_ORDER)
            _insert(log, earlier, table, meta, text, length, context, place, hashes)
            text[length] = log[place]
            length += 1
