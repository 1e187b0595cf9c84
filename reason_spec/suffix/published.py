"""SuffixDecoding as published (Oliaro et al., arXiv 2411.04975), for comparison with our own suffix cache.

The last p tokens of the text are matched in two sets of texts: past outputs, and the prompt and output of
the present request. After a match of length p a draft tree of at most ``MAX_SPEC = alpha * p`` nodes grows
by ``D(N) = D(parent) * C(N)``, the largest D first; C is the share of a token among all that followed the
parent. Of all p and both sets, the tree with the largest ``SCORE = sum of D`` is proposed; among equal ones
that of the longer match, then that of the request's own text. The paper walks suffix trees. Here the places
of a match are filtered token by token, which gives the same counts.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import CacheSize, FindEnd, Proposal, Source, StepProposal
from reason_spec.suffix.documents import Document

MAX_PATTERN: Final = 64
"""The longest match that is looked for, in tokens; ``max_tree_depth`` of the authors' program."""
MIN_CHANCE: Final = 0.1
"""The least D of a drafted token where the settings name none; ``min_token_prob`` of the authors' program."""
_BYTES_OF_TOKEN: Final = 64
"""Three numbers of an array, and a place in the list of equal tokens."""
NONE: Final = -1
"""No place."""

Places = npt.NDArray[np.int64]


class TextSet:
    """Texts in which the end of a text is looked up; several may grow at once.

    Places count up; the arrays are rings, which grow to the most tokens that are kept.

    Args:
        max_bytes: the oldest tokens go first where they take more.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_tokens = max_bytes // _BYTES_OF_TOKEN
        self._tokens, self._before, self._next = (np.full(256, NONE, np.int64) for _ in range(3))
        self._length = self._first = 0
        self._places: defaultdict[int, deque[int]] = defaultdict(deque)

    @property
    def size(self) -> CacheSize:
        num_tokens = self._length - self._first
        return CacheSize(num_tokens * _BYTES_OF_TOKEN, num_tokens)

    def extend(self, last: int, tokens: Sequence[int]) -> int:
        """Append tokens to the text that ends at place ``last``, `NONE` for a new one; return its new end."""
        for token in tokens:
            place = self._length
            if place - self._first == len(self._tokens):
                # Nothing was evicted yet, so the slot of each place is its number.
                self._tokens, self._before, self._next = (
                    np.concatenate([array, np.full(len(array), NONE, np.int64)])
                    for array in (self._tokens, self._before, self._next)
                )
            slot = place % len(self._tokens)
            self._tokens[slot], self._before[slot], self._next[slot] = token, last, NONE
            if last >= self._first:
                self._next[last % len(self._tokens)] = place
            self._places[token].append(place)
            self._length, last = place + 1, place
            if self._length - self._first > self._max_tokens:
                self._places[int(self._tokens[self._first % len(self._tokens)])].popleft()
                self._first += 1
        return last

    def clear(self) -> None:
        """Forget all texts; earlier places are no longer valid."""
        self._places.clear()
        self._first = self._length

    def matches(self, pattern: Sequence[int]) -> list[tuple[int, Places]]:
        """Return each length of a match with the places that follow it, the longest first.

        Lengths with the same places as a longer one are left out: its tree holds theirs.
        """
        if not pattern or not self._places.get(pattern[-1]):
            return []
        ends = np.fromiter(self._places[pattern[-1]], np.int64)
        ends = at = ends[_at(self._next, ends) != NONE]
        found: list[tuple[int, Places]] = []
        for length, token in enumerate(reversed(pattern[-MAX_PATTERN:]), start=1):
            equal = (at >= self._first) & (_at(self._tokens, at) == token)
            ends, at = ends[equal], _at(self._before, at[equal])
            if not len(ends):
                break
            if found and len(found[-1][1]) == len(ends):
                found.pop()
            found.append((length, _at(self._next, ends)))
        return found[::-1]

    def children(self, places: Places) -> Iterator[tuple[int, float, Places]]:
        """Yield each token at places with its share and the places after it, the most frequent first."""
        places = places[places != NONE]
        tokens = _at(self._tokens, places)
        if len(places) == 1:
            yield int(tokens[0]), 1.0, _at(self._next, places)
            return
        different, counts = np.unique(tokens, return_counts=True)
        for index in np.argsort(-counts, kind="stable"):
            following = _at(self._next, places[tokens == different[index]])
            yield int(different[index]), float(counts[index] / len(tokens)), following


def _at(ring: Places, places: Places) -> Places:
    return ring[places % len(ring)]


def best_tree(
    sets: Sequence[TextSet], pattern: Sequence[int], budget: int, factor: float, least: float, *, tree: bool
) -> Proposal:
    """Return the draft with the largest score over all sets and lengths of matches.

    Args:
        budget: the most nodes, whatever the match.
        factor: alpha of the paper, nodes for each matched token.
        least: the least D of a node.
        tree: False follows only the most frequent token at each place.
    """
    best, best_key = Proposal(), (0.0, 0)
    found = [(length, places, texts) for texts in sets for length, places in texts.matches(pattern)]
    # No tree scores more than its number of nodes, so shorter matches need not be grown.
    for length, places, texts in sorted(found, key=lambda match: -match[0]):
        room = min(budget, int(factor * length))
        if room <= best_key[0]:
            break
        grown = _grow(texts, places, room, least, length, tree=tree)
        key = sum(grown.chances), length
        if key > best_key:
            best, best_key = grown, key
    return best


def _grow(
    texts: TextSet, places: Places, budget: int, least: float, match_length: int, *, tree: bool
) -> Proposal:
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    open_nodes: list[tuple[float, int, int, int, Places]] = []
    num_found = 0

    def expand(parent: int, chance: float, places: Places) -> None:
        nonlocal num_found
        for token, share, following in texts.children(places):
            if chance * share >= least:
                heappush(open_nodes, (-chance * share, num_found, parent, token, following))
                num_found += 1
            if not tree:
                break

    expand(-1, 1.0, places)
    while open_nodes and len(tokens) < budget:
        negative, _, parent, token, following = heappop(open_nodes)
        tokens.append(token)
        parents.append(parent)
        chances.append(-negative)
        expand(len(tokens) - 1, -negative, following)
    return Proposal(tuple(tokens), tuple(parents), tuple(chances), match_length)


class PublishedCache:
    """The past outputs of each tenant, with the methods of `SuffixCache` that serve answers. Thread-safe."""

    def __init__(self, settings: SuffixSettings) -> None:
        self._settings = settings
        self._past: dict[str, TextSet] = {}
        self._lock = threading.RLock()

    def open_session(self, tenant: str | None = None) -> PublishedSession:
        """Start a conversation of a tenant, by default that of the settings."""
        name = self._settings.tenant if tenant is None else tenant
        with self._lock:
            readable = [self._of(other) for other in self._settings.reads if other != name]
            return PublishedSession(self._settings, self._of(name), readable, self._lock)

    def restore(self, tenant: str, documents: Sequence[Document]) -> None:
        """Add the outputs among documents to a tenant's past outputs."""
        with self._lock:
            past = self._of(tenant)
            for document in documents:
                for source, tokens in document.segments:
                    if source == "output":
                        past.extend(NONE, tokens.tolist())

    def erase(self, tenant: str) -> None:
        """Forget a tenant's past outputs, also for its open sessions."""
        with self._lock:
            self._of(tenant).clear()

    def size(self, tenant: str) -> CacheSize:
        """Return the size of a tenant's past outputs."""
        with self._lock:
            return self._of(tenant).size

    def _of(self, tenant: str) -> TextSet:
        if tenant not in self._past:
            self._past[tenant] = TextSet(self._settings.max_bytes)
        return self._past[tenant]


class PublishedSession:
    """A `Session`, see there for the methods; each turn is a request, whose text set is new."""

    def __init__(
        self, settings: SuffixSettings, past: TextSet, readable: Sequence[TextSet], lock: threading.RLock
    ) -> None:
        self._settings = settings
        self._past, self._readable, self._lock = past, tuple(readable), lock
        self._least = MIN_CHANCE if settings.min_chance is None else settings.min_chance
        self._own_end: int
        self._past_end: int
        self._begin_text()

    def __enter__(self) -> PublishedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, segments: Sequence[tuple[Source, Sequence[int]]]) -> None:
        with self._lock:
            self._begin_text()
            for _, tokens in segments:
                self._take(tokens)

    def extend(self, tokens: Sequence[int], source: Source = "output") -> None:
        with self._lock:
            self._take(tokens)
            if source == "output":
                self._past_end = self._past.extend(self._past_end, tokens)

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        found = self._best(budget, after, self._least, tree=tree)
        return found if sum(found.chances) > self._settings.min_score else Proposal()

    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, after: Sequence[int] = ()
    ) -> StepProposal | None:
        found = self._best(max_tokens, after, min_chance, tree=False)
        size = find_end(found.tokens) if found.tokens else None
        if size is None:
            return None
        return StepProposal(found.tokens[:size], found.chances[size - 1], found.match_length)

    def close(self) -> None:
        return None

    def _best(self, budget: int, after: Sequence[int], least: float, *, tree: bool) -> Proposal:
        with self._lock:
            pattern = [*self._tail, *after][-MAX_PATTERN:]
            sets = (self._own, self._past, *self._readable)
            return best_tree(sets, pattern, budget, self._settings.max_spec_factor, least, tree=tree)

    def _begin_text(self) -> None:
        self._own = TextSet(self._settings.max_bytes)
        self._own_end = self._past_end = NONE
        self._tail: list[int] = []

    def _take(self, tokens: Sequence[int]) -> None:
        if len(tokens) and min(tokens) < 0:
            raise ValueError(f"a token is negative: {min(tokens)}")
        self._own_end = self._own.extend(self._own_end, tokens)
        self._tail = [*self._tail, *tokens][-MAX_PATTERN:]
