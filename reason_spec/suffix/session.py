"""One conversation of a tenant: learns its tokens and proposes the next."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np

from reason_spec.suffix import draft_kernels as kernels
from reason_spec.suffix.base import SOURCES, FindEnd, Proposal, Source, StepProposal
from reason_spec.suffix.index import IndexWriter, TokenIndex
from reason_spec.suffix.index_kernels import NONE, Floats, Ints, Longs

_NUMBERS: Final = {source: number for number, source in enumerate(SOURCES)}
_NOTHING: Final = Proposal()
_RATE: Final = 0.0003
"""Learning rate of the tenant's weights."""
_OFFSET_RATE: Final = 0.03
"""Learning rate of the session's offset to them."""
_INITIAL_MODEL: Final = (
    -1.749, 0.487, 0.190, 0.487, -0.383, 0.142, -0.322, -0.196, -0.508, 0.110, -0.013, 0.126, 0.683, -0.103,
    0.166, 1.118, 0.929,
)  # fmt: skip
"""Weights of a node's features, in the order of the kernels.

Fitted to accepted and rejected proposals on the last 50 runs of tau-bench airline, by gpt-4o.
"""


def initial_model() -> Floats:
    assert len(_INITIAL_MODEL) == kernels.NUM_FEATURES
    return np.array(_INITIAL_MODEL)


@lru_cache
def least_chance(budget: int) -> float:
    """Return the minimum probability of a drafted token, given the number of draft tokens of a pass.

    The larger the budget, the less a rejected token costs. Measured on agent traces: more accepted tokens a
    pass than the best settings of arctic-inference's cache, and at least a quarter fewer rejected ones.
    """
    return min(0.1, max(0.05, 0.8 / max(1, budget)))


@dataclass(slots=True, eq=False)
class Tenant:
    """The index and the weights of one tenant, guarded by ``lock``."""

    index: TokenIndex
    model: Floats = field(default_factory=initial_model)
    lock: threading.RLock = field(default_factory=threading.RLock)
    num_sessions: int = 0
    erased: int = 0
    """Number of erasures, by which sessions notice one."""

    def forget(self, index: TokenIndex) -> None:
        """Replace the index and the weights by new ones."""
        self.index, self.model = index, initial_model()
        self.erased += 1


class _Draft:
    """The buffers of one proposal, and the state to learn from its acceptance."""

    def __init__(self) -> None:
        self.candidates: Ints = np.empty((kernels.CANDIDATE_ROWS, kernels.MAX_CANDIDATES), np.int32)
        # Rows of a power of two would all map to the same lines of the L1 cache.
        row = kernels.MAX_NODES + 16
        self.nodes: Ints = np.empty((kernels.NODE_ROWS, row), np.int32)
        self.values: Floats = np.empty((kernels.VALUE_ROWS, row))
        self.tokens: Ints = np.empty((2, kernels.MAX_BUDGET), np.int32)
        self.chances: Floats = np.empty(kernels.MAX_BUDGET)
        # tuple() is faster on these than on the arrays.
        self._views = self.tokens[0].data, self.tokens[1].data, self.chances.data
        self._longest_match = self.nodes[kernels.TOKEN].data
        self.count = 0
        self.owned = True

    @property
    def expected(self) -> float:
        """How many of its tokens should be accepted."""
        return float(self.chances[: self.count].sum())

    def as_proposal(self) -> Proposal:
        count = self.count
        if not count:
            return _NOTHING
        tokens, parents, chances = self._views
        return Proposal(
            tuple(tokens[:count]), tuple(parents[:count]), tuple(chances[:count]), self._longest_match[0]
        )


class CacheSession:
    """A `Session` of one tenant, see there for the methods. Thread-safe.

    Args:
        readable: tenants whose texts are proposed too, and not changed.
        min_chance: minimum probability of drafted tokens, None for `least_chance` of the budget.
    """

    def __init__(self, tenant: Tenant, readable: Sequence[Tenant], min_chance: float | None) -> None:
        self._tenant = tenant
        self._readable = tuple(readable)
        self._min_chance = min_chance
        self._offset: Floats = np.zeros(kernels.NUM_FEATURES)
        self._trail: Longs = np.zeros(kernels.TRAIL_SIZE, np.int64)
        self._no_trail: Longs = np.zeros(kernels.TRAIL_SIZE, np.int64)
        self._draft = _Draft()
        self._spare = _Draft() if readable else None
        # The tokens between the text and the last draft; None if no draft waits for its outcome.
        self._awaited: tuple[int, ...] | None = None
        # Acquired before a tenant's lock. Tenants' locks are held one at a time: two may read each other.
        self._lock = threading.RLock()
        self._closed = False
        with tenant.lock:
            self._writer = tenant.index.open_writer()
            self._erased = tenant.erased
            tenant.num_sessions += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of tokens of the text."""
        return self._writer.length

    def begin(self, segments: Sequence[tuple[Source, Sequence[int]]]) -> None:
        arrays = [_as_array(tokens) for _, tokens in segments]
        prompt = np.concatenate([np.empty(0, np.int32), *arrays])
        stops = np.cumsum([len(array) for array in arrays]).tolist()
        with self._lock, self._tenant.lock:
            writer = self._current_writer()
            self._awaited = None
            common = min(writer.length, len(prompt))
            differing = np.flatnonzero(writer.text[:common] != prompt[:common])
            common = int(differing[0]) if len(differing) else common
            if common < writer.length:
                self._tenant.index.cut(writer, common)
            writer.make_room(len(prompt) + 1)
            writer.text[common : len(prompt)] = prompt[common:]
            for (source, _), stop in zip(segments, stops, strict=True):
                self._tenant.index.write(writer, stop, _NUMBERS[source], only_new=True)

    def extend(self, tokens: Sequence[int], source: Source = "output") -> None:
        if not len(tokens):
            return
        _check(tokens)
        with self._lock, self._tenant.lock:
            writer = self._current_writer()
            start, stop = writer.length, writer.length + len(tokens)
            writer.make_room(stop + 1)
            writer.text[start:stop] = tokens
            if self._awaited is not None:
                self._settle(start, stop)
            self._tenant.index.write(writer, stop, _NUMBERS[source])

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        with self._lock:
            floor = least_chance(budget) if self._min_chance is None else self._min_chance
            return self._propose(budget, tree, after, floor).as_proposal()

    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, after: Sequence[int] = ()
    ) -> StepProposal | None:
        with self._lock:
            proposal = self._propose(max_tokens, False, after, min_chance).as_proposal()
        if not proposal.tokens:
            return None
        size = find_end(proposal.tokens)
        if size is None or proposal.chances[size - 1] < min_chance:
            return None
        return StepProposal(proposal.tokens[:size], proposal.chances[size - 1], proposal.match_length)

    def close(self) -> None:
        with self._lock, self._tenant.lock:
            if not self._closed:
                self._tenant.index.close_writer(self._writer)
                self._tenant.num_sessions -= 1
            self._closed = True

    def _current_writer(self) -> IndexWriter:
        """Return the writer; a new one without text if the tenant was erased."""
        if self._erased != self._tenant.erased:
            self._writer = self._tenant.index.open_writer()
            self._erased, self._awaited = self._tenant.erased, None
            self._offset[:] = 0.0
            self._trail[:] = 0
        return self._writer

    def _propose(self, budget: int, tree: bool, after: Sequence[int], min_chance: float) -> _Draft:
        budget = min(budget, kernels.MAX_BUDGET)
        tenant, draft = self._tenant, self._draft
        with tenant.lock:
            writer = self._current_writer()
            length = writer.length + len(after)
            if len(after):
                _check(after)
                writer.make_room(length + 1)
                writer.text[writer.length : length] = after
            tail = writer.places.item(writer.length - 1) if writer.length else NONE
            self._draft_into(tenant.index, draft, length, tail, self._trail, budget, tree, min_chance)
            draft.owned = True
        for other in self._readable:
            spare = self._spare
            assert spare is not None
            with other.lock:
                self._no_trail[:] = 0
                self._draft_into(other.index, spare, length, NONE, self._no_trail, budget, tree, min_chance)
            spare.owned = False
            if spare.expected > draft.expected:
                draft, self._draft, self._spare = spare, spare, draft
        self._awaited = tuple(after)
        return draft

    def _draft_into(
        self, index: TokenIndex, draft: _Draft, length: int, tail: int, trail: Longs, budget: int, tree: bool,
        floor: float,
    ) -> None:  # fmt: skip
        writer = self._writer
        draft.count = kernels.propose(
            index.log, index.sources, index.earlier, index.table, writer.text, writer.length, length, tail,
            self._tenant.model, self._offset, trail, draft.candidates, draft.nodes, draft.values,
            draft.tokens, draft.chances, budget, tree, floor,
        )  # fmt: skip

    def _settle(self, start: int, stop: int) -> None:
        """Update the weights from the outcome of the last proposal, if its place was reached."""
        text, after = self._writer.text, self._awaited
        assert after is not None
        self._awaited = None
        first = start + len(after)
        if first >= stop or (after and text[start:first].tolist() != list(after)):
            return
        tenant, draft = self._tenant, self._draft
        taken = kernels.settle(
            draft.nodes, draft.values, tenant.model, self._offset, text, first, stop, _RATE, _OFFSET_RATE,
        )  # fmt: skip
        # Reading another tenant must not change it.
        if draft.owned and taken:
            tenant.index.credit(int(draft.nodes[kernels.BEST, 0]), taken)


def _as_array(tokens: Any) -> Ints:
    # Twice as fast as numpy for a list.
    made = tokens if isinstance(tokens, np.ndarray) else np.array(array("i", tokens), np.int32)
    if len(made) and made.min() < 0:
        raise ValueError(f"a token is negative: {made.min()}")
    return made.astype(np.int32, copy=False)


def _check(tokens: Sequence[int]) -> None:
    if min(tokens) < 0:
        raise ValueError(f"a token is negative: {min(tokens)}")
