"""The hot loops of the index, as functions over arrays; `native` turns them into machine code.

The log
    All texts of a tenant, piece after piece. A piece is ``[back link] token token ... [forward link]``; a
    link is ``END``, or ``-2 - place`` where the text goes on elsewhere in the log. So one conversation
    may lie in several pieces, and pieces of several conversations may alternate.
Places
    A place is where a token stands in the log. It is indexed under the last 1, 2, 4, 8 and 16 tokens before
    it: the table holds the latest place under each such context, ``earlier[place]`` the one before that.
    Every context has a slot of its own, so a chain holds only true matches.
Candidates
    A place whose token may come next, with how many tokens before it equal the end of the text. While a draft
    grows, a candidate moves along with it. A candidate that reaches the end of the session's own text goes
    on in what stands behind it, at last in the draft itself (a negative place): so a text that repeats
    itself keeps its period.
Chances
    The candidates of a node are grouped by their next token. What is known of a group (how long it matched,
    its share of the weight, how many, how recent, of which source) gives the chance of its token by a
    logistic model, whose first weights follow what became of earlier proposals.

numba keeps the machine code of a function under the file that it stands in, so all kernels share this one.
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
GONE: Final = -(2**31)
ORDERS: Final = (1, 2, 4, 8, 16)
NUM_ORDERS: Final = len(ORDERS)
LONGEST: Final = 16
MATCH_CAP: Final = 32
# A slot of the table is ``place << 3 | number of the order``.
MAX_PLACE: Final = 2**28 - 1

SAMPLED: Final = 64

LOG_END: Final = 0
ENTRIES: Final = 1
META_SIZE: Final = 2


@inlined
def _before(log: Ints, place: int) -> int:
    """Return the place of the token before ``place``, NONE at a text's start."""
    value = log[place - 1]
    if value >= 0:
        return place - 1
    return NONE if value == END else int(-2 - value)


@inlined
def _after(log: Ints, place: int) -> int:
    value = log[place + 1]
    if value >= 0:
        return place + 1
    return NONE if value == END else int(-2 - value)


@inlined
def _match_length(log: Ints, place: int, text: Ints, length: int, cap: int) -> int:
    """Count how many tokens before ``place`` equal the last ones of the text."""
    matched = 0
    at = _before(log, place)
    limit = min(cap, length)
    while at != NONE and matched < limit and log[at] == text[length - 1 - matched]:
        matched += 1
        at = _before(log, at)
    return matched


@inlined
def _hashes(text: Ints, length: int, known: int, out: Longs) -> None:
    """Write the hash of the last 1, 2, 4, 8, 16 tokens, as far as ``known`` tokens reach."""
    value = np.uint64(0x9E3779B97F4A7C15)
    order = 0
    for size in range(1, LONGEST + 1):
        if size > known:
            break
        value = (value ^ np.uint64(text[length - size])) * np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(32)
        if size == ORDERS[order]:
            out[order] = np.int64(value >> np.uint64(33))
            order += 1


@inlined
def _find_slot(log: Ints, table: Ints, hashed: int, order: int, text: Ints, length: int) -> int:
    """Return the slot of a context, or the free one where it would stand."""
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
def _enter(
    log: Ints, earlier: Ints, table: Ints, meta: Longs, text: Ints, length: int, known: int, place: int,
    hashes: Longs,
) -> None:  # fmt: skip
    """Index ``place`` under the last ``known`` tokens of the text before it."""
    _hashes(text, length, known, hashes)
    for order in range(NUM_ORDERS):
        if ORDERS[order] > known:
            earlier[place, order] = NONE
            continue
        slot = _find_slot(log, table, hashes[order], order, text, length)
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
    """Write ``text[start:stop]`` into the log from ``place`` on, and index it; return how far that came.

    The caller has made room. ``known_from`` is where the part of the text begins that the log holds
    without a gap. A ``min_run`` above 0 ends the writing where so many tokens are known already.
    """
    hashes = np.empty(NUM_ORDERS, np.int64)
    for at in range(start, stop):
        if min_run > 0 and _known_run(log, table, text, at, stop, known_from, min_run, hashes) != NONE:
            return at
        log[place] = text[at]
        log[place + 1] = END
        sources[place] = source
        places[at] = place
        _enter(log, earlier, table, meta, text, at, min(at - known_from, LONGEST), place, hashes)
        place += 1
    return stop


@inlined
def _known_run(
    log: Ints, table: Ints, text: Ints, start: int, stop: int, known_from: int, min_run: int, hashes: Longs
) -> int:
    """Return where the text from ``start`` on stands in the log behind the same 16 tokens, else NONE."""
    if start - known_from < LONGEST or stop - start < min_run:
        return NONE
    _hashes(text, start, LONGEST, hashes)
    entry = table[_find_slot(log, table, hashes[NUM_ORDERS - 1], NUM_ORDERS - 1, text, start)]
    if entry == NONE:
        return NONE
    first = entry >> 3
    place = first
    for at in range(start, start + min_run):
        if place == NONE or log[place] != text[at]:
            return NONE
        place = _after(log, place)
    return int(first)


@compiled
def skip_known(
    log: Ints, table: Ints, text: Ints, places: Ints, start: int, stop: int, known_from: int, min_run: int
) -> int:
    """Return how far the text from ``start`` on is known already, and note its places.

    It is known where its last 16 tokens are in the log and at least ``min_run`` tokens behind them go on
    as they did the last time.
    """
    hashes = np.empty(NUM_ORDERS, np.int64)
    place = _known_run(log, table, text, start, stop, known_from, min_run, hashes)
    at = start
    while place != NONE and at < stop and log[place] == text[at]:
        places[at] = place
        at += 1
        place = _after(log, place)
    return at


@compiled
def reach(log: Ints, place: int, text: Ints, length: int) -> int:
    """Count how many of the text's last tokens the log holds up to ``place``, 32 at the most."""
    matched = 0
    while place != NONE and matched < min(MATCH_CAP, length) and log[place] == text[length - 1 - matched]:
        matched += 1
        place = _before(log, place)
    return matched


@compiled
def rehash(log: Ints, old: Ints, table: Ints) -> None:
    """Move all entries of a table to a larger one."""
    hashes = np.empty(NUM_ORDERS, np.int64)
    context = np.empty(LONGEST, np.int32)
    size = len(table)
    for entry in old:
        if entry == NONE:
            continue
        order = entry & 7
        length = ORDERS[order]
        at = entry >> 3
        for back in range(length):
            at = _before(log, at)
            context[length - 1 - back] = log[at]
        _hashes(context, length, length, hashes)
        slot = (hashes[order] * size) >> 31
        while table[slot] != NONE:
            slot += 1
            if slot == size:
                slot = 0
        table[slot] = entry


@compiled
def sample_contexts(tokens: Ints, starts: Longs, sample: Longs) -> int:
    """Write the hashes of one context in `SAMPLED`, by hash; return how many."""
    hashes = np.empty(NUM_ORDERS, np.int64)
    count = 0
    for document in range(len(starts)):
        start = starts[document]
        stop = starts[document + 1] if document + 1 < len(starts) else len(tokens)
        text = tokens[start:stop]
        for length in range(1, len(text)):
            known = min(length, LONGEST)
            _hashes(text, length, known, hashes)
            for order in range(NUM_ORDERS):
                if ORDERS[order] <= known and hashes[order] % SAMPLED == 0 and count < len(sample):
                    sample[count] = hashes[order] * NUM_ORDERS + order
                    count += 1
    return count


@compiled
def reindex(
    log: Ints, earlier: Ints, table: Ints, meta: Longs, starts: Longs, stops: Longs
) -> None:  # fmt: skip
    """Index the tokens of all pieces anew, in the order of the log, into an empty table."""
    hashes = np.empty(NUM_ORDERS, np.int64)
    for piece in range(len(starts)):
        text = np.empty(LONGEST + stops[piece] - starts[piece], np.int32)
        known = 0
        at = _before(log, starts[piece])
        while at != NONE and known < LONGEST:
            known += 1
            text[LONGEST - known] = log[at]
            at = _before(log, at)
        length = LONGEST
        for place in range(starts[piece], stops[piece]):
            reach = min(known + length - LONGEST, LONGEST)
            _enter(log, earlier, table, meta, text, length, reach, place, hashes)
            text[length] = log[place]
            length += 1


@compiled
def move_pieces(log: Ints, sources: Bytes, starts: Longs, stops: Longs, targets: Longs) -> None:
    """Move pieces, each with its links, to places further ahead in the log; they keep their order."""
    for piece in range(len(starts)):
        shift = starts[piece] - targets[piece]
        for place in range(starts[piece] - 1, stops[piece] + 1):
            log[place - shift] = log[place]
            sources[place - shift] = sources[place]


@compiled
def move_links(log: Ints, cells: Longs, starts: Longs, stops: Longs, targets: Longs) -> None:
    """Let links lead to where the pieces went; those into a piece that is gone become ends."""
    for cell in cells:
        if log[cell] < END:
            place = moved_place(-2 - log[cell], starts, stops, targets)
            log[cell] = END if place == NONE else -2 - place


@compiled
def moved_places(places: Ints, starts: Longs, stops: Longs, targets: Longs) -> None:
    """Replace places by where they went, those that are gone by NONE."""
    for at in range(len(places)):
        if places[at] != NONE:
            places[at] = moved_place(places[at], starts, stops, targets)


@inlined
def moved_place(place: int, starts: Longs, stops: Longs, targets: Longs) -> int:
    piece = np.searchsorted(starts, place, side="right") - 1
    if piece < 0 or place >= stops[piece]:
        return NONE
    return int(place - starts[piece] + targets[piece])


# --- proposals ------------------------------------------------------------------------------------------

NUM_FEATURES: Final = 17
NUM_LEARNT: Final = 2
"""The weights of the first features, a constant and the match length, follow what became of proposals."""
PER_ORDER: Final = 8
MAX_CANDIDATES: Final = NUM_ORDERS * PER_ORDER
MAX_BUDGET: Final = 512
MAX_NODES: Final = 2048

# Rows of `candidates`: where; how many tokens match; how many later places share the context; the source; how
# many of the 32 tokens before match behind the first that differs; whether it lies where the text was being
# followed, exactly (2) or nearly (1).
PLACE: Final = 0
LENGTH: Final = 1
RANK: Final = 2
SOURCE: Final = 3
FURTHER: Final = 4
NEAR: Final = 5
CANDIDATE_ROWS: Final = 6
NEARBY: Final = 8
"""A place so many tokens before or behind the expected one is near it."""
FOLLOWED: Final = 6
"""A text follows an earlier one where so many tokens match."""
FOLLOWED_FOR: Final = 64
"""So many tokens later it is no longer expected to."""
TRAIL_SIZE: Final = 4
"""`trail` holds twice, the latest first: a place that the text followed, and the length that it had then."""
# Rows of `nodes`: FIRST and COUNT tell the candidates; BEST is the place of the longest match among them
# when the node was made, BEST_SOURCE its source.
TOKEN: Final = 0
PARENT: Final = 1
DEPTH: Final = 2
FIRST: Final = 3
COUNT: Final = 4
STATE: Final = 5
BEST: Final = 6
BEST_SOURCE: Final = 7
NODE_ROWS: Final = 8
OPEN: Final = 0
# A chosen node has the state 1 + its number in the draft.
CHOSEN: Final = 1
# Rows of `values`: the chance of a node behind its parent and behind the text, then its features.
CONDITIONAL: Final = 0
CHANCE: Final = 1
FEATURES: Final = 2
VALUE_ROWS: Final = FEATURES + NUM_FEATURES

BY_LENGTH: Final = np.arange(MATCH_CAP + MAX_BUDGET + 1, dtype=np.float64) ** 3.0
BY_RANK: Final = 1.0 / np.sqrt(1.0 + np.arange(PER_ORDER))
BY_FURTHER: Final = np.sqrt(1.0 + np.arange(MATCH_CAP + 1))
LOGS: Final = np.log(np.maximum(np.arange(MATCH_CAP + MAX_BUDGET + 2, dtype=np.float64), 0.5))


@inlined
def _compare(log: Ints, place: int, text: Ints, length: int, candidates: Ints, found: int) -> int:
    """Write how the tokens before a place equal the text's last ones; return how many do in a row."""
    matched, equal = 0, 0
    linked = place < MATCH_CAP or length < MATCH_CAP
    if not linked:
        # The hottest loop of a proposal, without a branch: it becomes a few vector instructions.
        before, ours = log[place - MATCH_CAP : place], text[length - MATCH_CAP : length]
        least, differs = 0, -1
        for at in range(MATCH_CAP):
            same = before[at] == ours[at]
            least = min(least, before[at])
            equal += 1 if same else 0
            differs = max(differs, -1 if same else at)
        matched = MATCH_CAP - 1 - differs
        linked = least < 0
    if linked:
        matched, equal = _compare_linked(log, place, text, length)
    candidates[LENGTH, found], candidates[FURTHER, found] = matched, equal - matched
    return matched


@inlined
def _compare_linked(log: Ints, place: int, text: Ints, length: int) -> tuple[int, int]:
    matched, equal = 0, 0
    at = _before(log, place)
    for back in range(1, min(MATCH_CAP, length) + 1):
        if at == NONE:
            break
        if log[at] == text[length - back]:
            equal += 1
            if matched == back - 1:
                matched = back
        at = _before(log, at)
    return matched, equal


@inlined
def _expected(trail: Longs, length: int) -> int:
    """Return the place that comes next if the text goes on as what it followed at its last lengths."""
    for entry in range(0, TRAIL_SIZE, 2):
        before = trail[entry + 1]
        # Not what was noted for this very length: asked twice, the answer would change.
        if 0 < before < length:
            return int(trail[entry] + length - before) if length - before < FOLLOWED_FOR else GONE
    return GONE


@inlined
def _follow(candidates: Ints, count: int, length: int, trail: Longs) -> int:
    """Note the place with the longest match as the one that is followed; return how long that is."""
    if count == 0:
        return 0
    best = 0
    for at in range(1, count):
        if candidates[LENGTH, at] > candidates[LENGTH, best]:
            best = at
    if candidates[LENGTH, best] >= FOLLOWED:
        if trail[1] != length:
            trail[2], trail[3] = trail[0], trail[1]
        trail[0], trail[1] = candidates[PLACE, best], length
    return int(candidates[LENGTH, best])


@inlined
def _gather(
    log: Ints, sources: Bytes, earlier: Ints, table: Ints, text: Ints, length: int, expected: int,
    candidates: Ints,
) -> int:  # fmt: skip
    """Find the latest places behind each of the last contexts, those of the longest first."""
    hashes = np.empty(NUM_ORDERS, np.int64)
    _hashes(text, length, min(length, LONGEST), hashes)
    found = 0
    for order in range(NUM_ORDERS - 1, -1, -1):
        if ORDERS[order] > length:
            continue
        entry = table[_find_slot(log, table, hashes[order], order, text, length)]
        place = entry >> 3 if entry != NONE else NONE
        for rank in range(PER_ORDER):
            if place == NONE:
                break
            matched = _compare(log, place, text, length, candidates, found)
            # A longer match was met in its own chain.
            if order == NUM_ORDERS - 1 or matched < ORDERS[order + 1]:
                candidates[PLACE, found] = place
                candidates[RANK, found] = rank
                candidates[SOURCE, found] = sources[place]
                far = abs(place - expected)
                candidates[NEAR, found] = 2 if far == 0 else 1 if far <= NEARBY else 0
                found += 1
            place = earlier[place, order]
    return found


@inlined
def _token_of(
    log: Ints, place: int, text: Ints, text_length: int, length: int, nodes: Ints, node: int
) -> int:
    """Return the token of a candidate's place; a negative one lies behind the session's own text."""
    if place >= 0:
        return int(log[place])
    virtual = -2 - place
    if text_length + virtual < length:
        return int(text[text_length + virtual])
    depth = virtual - (length - text_length)
    while nodes[DEPTH, node] > depth:
        node = nodes[PARENT, node]
    return int(nodes[TOKEN, node])


@inlined
def _swap(candidates: Ints, one: int, other: int) -> None:
    for row in range(CANDIDATE_ROWS):
        kept = candidates[row, one]
        candidates[row, one] = candidates[row, other]
        candidates[row, other] = kept


@inlined
def _move_on(log: Ints, tail: int, candidates: Ints, nodes: Ints, node: int) -> None:
    """Move the candidates of a chosen node one token further; those without a next token go."""
    at = nodes[FIRST, node]
    while at < nodes[FIRST, node] + nodes[COUNT, node]:
        place = candidates[PLACE, at]
        if place < 0:
            moved = place - 1
        else:
            moved = _after(log, place)
            if moved == NONE and place == tail:
                moved = -2
        if moved == NONE:
            nodes[COUNT, node] -= 1
            _swap(candidates, at, nodes[FIRST, node] + nodes[COUNT, node])
        else:
            candidates[PLACE, at] = moved
            at += 1


@inlined
def _weight(candidates: Ints, at: int, depth: int) -> float:
    weight = BY_LENGTH[candidates[LENGTH, at] + depth] * BY_RANK[candidates[RANK, at]]
    return float(weight * BY_FURTHER[candidates[FURTHER, at]])


@inlined
def _describe(
    values: Floats, node: int, parent: int, depth: int, share: float, group: int, matched: int, longest: int,
    rank: int, source: int, alone: bool, further: int, near: int,
) -> None:  # fmt: skip
    """Write the features of a node."""
    odds = np.log((share + 0.02) / (1.02 - share))
    length, number = LOGS[matched], LOGS[group]
    values[FEATURES, node] = 1.0
    values[FEATURES + 1, node] = length
    values[FEATURES + 2, node] = odds
    values[FEATURES + 3, node] = number
    values[FEATURES + 4, node] = LOGS[longest] - length
    values[FEATURES + 5, node] = LOGS[1 + depth]
    values[FEATURES + 6, node] = 1.0 if source == 0 else 0.0
    values[FEATURES + 7, node] = 1.0 if source == 1 else 0.0
    values[FEATURES + 8, node] = LOGS[1 + rank]
    values[FEATURES + 9, node] = length * odds
    values[FEATURES + 10, node] = 0.0 if depth == 0 else np.log(values[CONDITIONAL, parent] + 1e-3)
    values[FEATURES + 11, node] = number * odds
    values[FEATURES + 12, node] = 1.0 if alone else 0.0
    values[FEATURES + 13, node] = length * length
    values[FEATURES + 14, node] = LOGS[1 + further]
    values[FEATURES + 15, node] = 1.0 if near == 2 else 0.0
    values[FEATURES + 16, node] = 1.0 if near == 1 else 0.0


@inlined
def _judge(values: Floats, model: Floats, lean: Floats, born: int, count: int, parent: int) -> None:
    """Write the chances of a node's children."""
    total = 0.0
    for node in range(born, count):
        score = 0.0
        for feature in range(NUM_FEATURES):
            score += (model[feature] + lean[feature]) * values[FEATURES + feature, node]
        chance = 1.0 / (1.0 + np.exp(-score))
        values[CONDITIONAL, node] = chance
        total += chance
    for node in range(born, count):
        if total > 1.0:
            values[CONDITIONAL, node] /= total
        values[CHANCE, node] = values[CHANCE, parent] * values[CONDITIONAL, node]


@inlined
def _spread(
    log: Ints, text: Ints, text_length: int, length: int, candidates: Ints, nodes: Ints, values: Floats,
    parent: int, count: int,
) -> int:  # fmt: skip
    """Add the children of a node, one for each next token of its candidates; return the number of nodes."""
    begin, end = nodes[FIRST, parent], nodes[FIRST, parent] + nodes[COUNT, parent]
    depth = nodes[DEPTH, parent] + 1
    total, longest = 0.0, 0
    for at in range(begin, end):
        total += _weight(candidates, at, depth)
        longest = max(longest, candidates[LENGTH, at] + depth)
    first = begin
    while first < end and count < MAX_NODES:
        token = _token_of(log, candidates[PLACE, first], text, text_length, length, nodes, parent)
        weight, matched, rank, stop, further, near = 0.0, 0, PER_ORDER, first, 0, 0
        for at in range(first, end):
            if _token_of(log, candidates[PLACE, at], text, text_length, length, nodes, parent) != token:
                continue
            _swap(candidates, at, stop)
            weight += _weight(candidates, stop, depth)
            rank = min(rank, candidates[RANK, stop])
            further = max(further, candidates[FURTHER, stop])
            near = max(near, candidates[NEAR, stop])
            if candidates[LENGTH, stop] + depth > matched:
                matched = candidates[LENGTH, stop] + depth
                nodes[BEST, count] = candidates[PLACE, stop]
                nodes[BEST_SOURCE, count] = candidates[SOURCE, stop]
            stop += 1
        nodes[TOKEN, count], nodes[PARENT, count], nodes[DEPTH, count] = token, parent, depth
        nodes[FIRST, count], nodes[COUNT, count], nodes[STATE, count] = first, stop - first, OPEN
        alone = first == begin and stop == end
        _describe(
            values, count, parent, depth, weight / total, stop - first, matched, longest, rank,
            nodes[BEST_SOURCE, count], alone, further, near,
        )  # fmt: skip
        count += 1
        first = stop
    return count


@compiled
def propose(
    log: Ints, sources: Bytes, earlier: Ints, table: Ints, text: Ints, text_length: int, length: int,
    tail: int, model: Floats, lean: Floats, trail: Longs, candidates: Ints, nodes: Ints, values: Floats,
    draft: Ints, chances: Floats, budget: int, tree: bool, min_chance: float,
) -> int:  # fmt: skip
    """Draft behind ``text[:length]``; return how many tokens were drafted.

    They are written into the rows of ``draft``: tokens, then parents. ``text[text_length:length]`` is not in
    the log yet; ``tail`` is the place of the token before it, NONE where none is. ``nodes`` and ``values``
    keep what `settle` needs: node 0 is the end of the text, its STATE the
    number of nodes, its TOKEN the longest match.
    """
    nodes[DEPTH, 0], nodes[FIRST, 0], nodes[PARENT, 0] = -1, 0, NONE
    expected = _expected(trail, length)
    nodes[COUNT, 0] = _gather(log, sources, earlier, table, text, length, expected, candidates)
    nodes[TOKEN, 0] = _follow(candidates, nodes[COUNT, 0], length, trail)
    values[CHANCE, 0] = 1.0
    opened, drafted, best, born, count = 1, 0, 0, 1, 1
    while True:
        count = _spread(log, text, text_length, length, candidates, nodes, values, best, count)
        _judge(values, model, lean, born, count, best)
        best, chance = NONE, 0.0
        for node in range(opened, count):
            if nodes[STATE, node] == OPEN and values[CHANCE, node] > chance:
                best, chance = node, values[CHANCE, node]
        if drafted == budget or best == NONE or chance < min_chance:
            break
        draft[0, drafted], chances[drafted] = nodes[TOKEN, best], chance
        draft[1, drafted] = NONE if nodes[PARENT, best] == 0 else nodes[STATE, nodes[PARENT, best]] - CHOSEN
        nodes[STATE, best] = CHOSEN + drafted
        drafted += 1
        born = count
        if not tree:
            opened = count
        _move_on(log, tail, candidates, nodes, best)
    nodes[STATE, 0] = count
    return drafted


@compiled
def settle(
    nodes: Ints, values: Floats, model: Floats, lean: Floats, text: Ints, start: int, stop: int,
    rate: float, lean_rate: float, proposed: Longs, accepted: Longs,
) -> int:  # fmt: skip
    """Compare a draft with the tokens that came; return how many were accepted.

    Every child of a node on the way teaches the tenant's model and what the session adds to it, its lean.
    ``proposed`` and ``accepted`` count the drafted tokens by source. The BEST of node 0 becomes the place
    that the last accepted token was read from.
    """
    count, at, taken = nodes[STATE, 0], 0, 0
    nodes[BEST, 0] = NONE
    for node in range(1, count):
        if nodes[STATE, node] >= CHOSEN:
            proposed[nodes[BEST_SOURCE, node]] += 1
    for token in text[start:stop]:
        hit = NONE
        for node in range(at + 1, count):
            if nodes[PARENT, node] != at:
                continue
            came = nodes[TOKEN, node] == token
            error = (1.0 if came else 0.0) - values[CONDITIONAL, node]
            for feature in range(NUM_LEARNT):
                step = error * values[FEATURES + feature, node]
                model[feature] += rate * step
                lean[feature] += lean_rate * step
            if came:
                hit = node
        if hit == NONE or nodes[STATE, hit] == OPEN:
            break
        accepted[nodes[BEST_SOURCE, hit]] += 1
        nodes[BEST, 0], at = nodes[BEST, hit], hit
        taken += 1
    return taken
