"""Kernels of proposals: loops over arrays that `native` compiles to machine code.

Candidates
    A candidate is a place of the log whose token may come next, with its match length: the number of tokens
    before it that equal the end of the text. While a draft grows, its candidates advance along the log.
Probabilities
    The candidates of a node are grouped by their next token. The features of a group (match length, share of
    the votes, size, recency, source, ...) give the probability of its token by logistic regression, whose
    first weights are updated from accepted and rejected proposals.

Complexities count array accesses.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from reason_spec.suffix.index_kernels import (
    MAX_MATCH,
    MAX_ORDER,
    NONE,
    NUM_ORDERS,
    ORDERS,
    Bytes,
    Floats,
    Ints,
    Longs,
    after,
    before,
    find_slot,
    hash_contexts,
)
from reason_spec.suffix.native import compiled, inlined

NUM_FEATURES: Final = 17
NUM_LEARNED: Final = 2
"""Number of leading features (constant, match length) whose weights `settle` updates."""
PER_ORDER: Final = 8
"""Maximum number of candidates of each order."""
MAX_CANDIDATES: Final = NUM_ORDERS * PER_ORDER
MAX_BUDGET: Final = 512
MAX_NODES: Final = 2048

# Rows of `candidates`: its place; the match length; the number of later places under the same context; the
# source; the number of equal tokens among the 32 before it, beyond the match; 2 if it is the expected place,
# 1 if it is near it, else 0.
PLACE, LENGTH, RANK, SOURCE, FURTHER, NEAR, CANDIDATE_ROWS = range(7)
NEARBY: Final = 8
"""Maximum distance from the expected place, in tokens, of a near place."""
MIN_COPIED: Final = 6
"""Minimum match length, in tokens, at which the text counts as a copy of an earlier one."""
COPIED_FOR: Final = 64
"""Number of tokens after which the copy is no longer expected to continue."""
UNEXPECTED: Final = -(2**31)
"""No place is expected."""
TRAIL_SIZE: Final = 4
"""`trail` holds the last two copies, the latest first, each as a place and the text's length then."""
# Rows of `nodes`: FIRST and COUNT are the range of its candidates; BEST is the place of the longest match
# among them when the node was created, BEST_SOURCE its source.
TOKEN, PARENT, DEPTH, FIRST, COUNT, STATE, BEST, BEST_SOURCE, NODE_ROWS = range(9)
# The STATE of a node: OPEN, or CHOSEN + its index in the draft.
OPEN, CHOSEN = range(2)
# Rows of `values`: the probability of a node given its parent, and given the text; then its features.
CONDITIONAL, CHANCE, FEATURES = range(3)
VALUE_ROWS: Final = FEATURES + NUM_FEATURES

BY_LENGTH: Final = np.arange(MAX_MATCH + MAX_BUDGET + 1, dtype=np.float64) ** 3.0
BY_RANK: Final = 1.0 / np.sqrt(1.0 + np.arange(PER_ORDER))
BY_FURTHER: Final = np.sqrt(1.0 + np.arange(MAX_MATCH + 1))
LOGS: Final = np.log(np.maximum(np.arange(MAX_MATCH + MAX_BUDGET + 2, dtype=np.float64), 0.5))


@inlined
def _compare(log: Ints, place: int, text: Ints, length: int, candidates: Ints, found: int) -> int:
    """Compare the tokens before a place with the end of the text; return the match length. O(MAX_MATCH)."""
    matched, equal = 0, 0
    linked = place < MAX_MATCH or length < MAX_MATCH
    if not linked:
        # The hottest loop of a proposal: without branches it compiles to a few vector instructions.
        theirs, ours = log[place - MAX_MATCH : place], text[length - MAX_MATCH : length]
        least, differs = 0, -1
        for at in range(MAX_MATCH):
            same = theirs[at] == ours[at]
            least = min(least, theirs[at])
            equal += 1 if same else 0
            differs = max(differs, -1 if same else at)
        matched = MAX_MATCH - 1 - differs
        linked = least < 0
    if linked:
        matched, equal = _compare_linked(log, place, text, length)
    candidates[LENGTH, found], candidates[FURTHER, found] = matched, equal - matched
    return matched


@inlined
def _compare_linked(log: Ints, place: int, text: Ints, length: int) -> tuple[int, int]:
    """Return match length and number of equal tokens, following the links of the log. O(MAX_MATCH)."""
    matched, equal = 0, 0
    at = before(log, place)
    for back in range(1, min(MAX_MATCH, length) + 1):
        if at == NONE:
            break
        if log[at] == text[length - back]:
            equal += 1
            if matched == back - 1:
                matched = back
        at = before(log, at)
    return matched, equal


@inlined
def _expected(trail: Longs, length: int) -> int:
    """Return the next place if the text continues as the copy in ``trail``, else UNEXPECTED. O(1)."""
    for entry in range(0, TRAIL_SIZE, 2):
        copied_at = trail[entry + 1]
        # Skips the entry of this very length, so that a repeated call returns the same.
        if 0 < copied_at < length:
            return int(trail[entry] + length - copied_at) if length - copied_at < COPIED_FOR else UNEXPECTED
    return UNEXPECTED


@inlined
def _record_copy(candidates: Ints, count: int, length: int, trail: Longs) -> int:
    """Write the place of the longest match to ``trail``; return the match length. O(candidates)."""
    if count == 0:
        return 0
    best = 0
    for at in range(1, count):
        if candidates[LENGTH, at] > candidates[LENGTH, best]:
            best = at
    if candidates[LENGTH, best] >= MIN_COPIED:
        if trail[1] != length:
            trail[2], trail[3] = trail[0], trail[1]
        trail[0], trail[1] = candidates[PLACE, best], length
    return int(candidates[LENGTH, best])


@inlined
def _gather(
    log: Ints, sources: Bytes, earlier: Ints, table: Ints, text: Ints, length: int, expected: int,
    candidates: Ints,
) -> int:  # fmt: skip
    """Write the latest places under each context at the end of the text as candidates, longest first.

    O(MAX_CANDIDATES * MAX_MATCH), independent of the size of the log.
    """
    hashes = np.empty(NUM_ORDERS, np.int64)
    hash_contexts(text, length, min(length, MAX_ORDER), hashes)
    found = 0
    for order in range(NUM_ORDERS - 1, -1, -1):
        if ORDERS[order] > length:
            continue
        entry = table[find_slot(log, table, hashes[order], order, text, length)]
        place = entry >> 3 if entry != NONE else NONE
        for rank in range(PER_ORDER):
            if place == NONE:
                break
            matched = _compare(log, place, text, length, candidates, found)
            # The chain of the next order holds the longer matches.
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
    """Return the token at a candidate's place. O(1), or O(depth) for a place in the draft.

    Negative places continue the session's own text: -2 is the first token after its part in the log, and
    the tokens of the draft's path come last. So a text that repeats itself keeps its period.
    """
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
    """Swap two candidates. O(1)."""
    for row in range(CANDIDATE_ROWS):
        kept = candidates[row, one]
        candidates[row, one] = candidates[row, other]
        candidates[row, other] = kept


@inlined
def _advance(log: Ints, tail: int, candidates: Ints, nodes: Ints, node: int) -> None:
    """Move the candidates of a chosen node to their next token; drop those at an end. O(candidates)."""
    at = nodes[FIRST, node]
    while at < nodes[FIRST, node] + nodes[COUNT, node]:
        place = candidates[PLACE, at]
        if place < 0:
            moved = place - 1
        else:
            moved = after(log, place)
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
    """Return the vote of a candidate: (match length)^3, less for older places. O(1)."""
    weight = BY_LENGTH[candidates[LENGTH, at] + depth] * BY_RANK[candidates[RANK, at]]
    return float(weight * BY_FURTHER[candidates[FURTHER, at]])


@inlined
def _describe(
    values: Floats, node: int, parent: int, depth: int, share: float, group: int, matched: int, longest: int,
    rank: int, source: int, alone: bool, further: int, near: int,
) -> None:  # fmt: skip
    """Write the features of a node. O(1)."""
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
def _estimate(values: Floats, model: Floats, offset: Floats, born: int, count: int, parent: int) -> None:
    """Write the probabilities of the children ``born:count`` of a node. O(children * NUM_FEATURES).

    Logistic regression with the weights ``model + offset``, scaled down where the sum exceeds 1.
    """
    total = 0.0
    for node in range(born, count):
        score = 0.0
        for feature in range(NUM_FEATURES):
            score += (model[feature] + offset[feature]) * values[FEATURES + feature, node]
        chance = 1.0 / (1.0 + np.exp(-score))
        values[CONDITIONAL, node] = chance
        total += chance
    for node in range(born, count):
        if total > 1.0:
            values[CONDITIONAL, node] /= total
        values[CHANCE, node] = values[CHANCE, parent] * values[CONDITIONAL, node]


@inlined
def _expand(
    log: Ints, text: Ints, text_length: int, length: int, candidates: Ints, nodes: Ints, values: Floats,
    parent: int, count: int,
) -> int:  # fmt: skip
    """Add a child for each distinct next token of a node's candidates; return the number of nodes.

    O(candidates * children).
    """
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
    tail: int, model: Floats, offset: Floats, trail: Longs, candidates: Ints, nodes: Ints, values: Floats,
    draft: Ints, chances: Floats, budget: int, tree: bool, min_chance: float,
) -> int:  # fmt: skip
    """Draft tokens after ``text[:length]``, the most likely first; return their number.

    Best-first search: each round drafts the open node of the highest probability and expands it, until
    ``budget`` tokens are drafted or the probability falls below ``min_chance``. Without ``tree`` only the
    children of the last node are open. The rows of ``draft`` receive tokens and parents.
    ``text[text_length:length]`` is not in the log yet; ``tail`` is the place of the token before it, or NONE.

    O(MAX_CANDIDATES * (MAX_MATCH + budget)) plus O(budget * nodes) for the search in a tree.

    ``nodes`` and ``values`` hold the state that `settle` needs. Node 0 is the end of the text, its STATE the
    number of nodes, its TOKEN the length of the longest match.
    """
    nodes[DEPTH, 0], nodes[FIRST, 0], nodes[PARENT, 0] = -1, 0, NONE
    expected = _expected(trail, length)
    nodes[COUNT, 0] = _gather(log, sources, earlier, table, text, length, expected, candidates)
    nodes[TOKEN, 0] = _record_copy(candidates, nodes[COUNT, 0], length, trail)
    values[CHANCE, 0] = 1.0
    opened, drafted, best, born, count = 1, 0, 0, 1, 1
    while True:
        count = _expand(log, text, text_length, length, candidates, nodes, values, best, count)
        _estimate(values, model, offset, born, count, best)
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
        _advance(log, tail, candidates, nodes, best)
    nodes[STATE, 0] = count
    return drafted


@compiled
def settle(
    nodes: Ints, values: Floats, model: Floats, offset: Floats, text: Ints, start: int, stop: int,
    rate: float, offset_rate: float,
) -> int:  # fmt: skip
    """Compare a draft with the tokens that followed; return how many were accepted.

    One step of stochastic gradient descent for every child of a node on the accepted path: on ``model``, the
    tenant's weights, and on ``offset``, that of the session to them. BEST of node 0 is set to the place of
    the last accepted token.

    O(accepted * nodes).
    """
    count, at, taken = nodes[STATE, 0], 0, 0
    nodes[BEST, 0] = NONE
    for token in text[start:stop]:
        hit = NONE
        for node in range(at + 1, count):
            if nodes[PARENT, node] != at:
                continue
            accepted = nodes[TOKEN, node] == token
            error = (1.0 if accepted else 0.0) - values[CONDITIONAL, node]
            for feature in range(NUM_LEARNED):
                step = error * values[FEATURES + feature, node]
                model[feature] += rate * step
                offset[feature] += offset_rate * step
            if accepted:
                hit = node
        if hit == NONE or nodes[STATE, hit] == OPEN:
            break
        nodes[BEST, 0], at = nodes[BEST, hit], hit
        taken += 1
    return taken
