"""One conversation with a model: what is learnt from it, and what it is offered."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from reason_spec.suffix import kernels
from reason_spec.suffix.base import SOURCES, FindEnd, Proposal, Source, StepProposal
from reason_spec.suffix.index import TokenIndex, Writer
from reason_spec.suffix.kernels import NONE, Floats, Ints, Longs
from reason_spec.suffix.scoring import least_chance

_NUMBERS: Final = {source: number for number, source in enumerate(SOURCES)}
_NOTHING: Final = Proposal()
_RATE: Final = 0.0003
_LEAN_RATE: Final = 0.03
"""How fast the chances follow what became of proposals: the tenant's model, and the session's lean."""


@dataclass(slots=True, eq=False)
class Tenant:
    """What is kept for one tenant. ``lock`` guards all of it."""

    index: TokenIndex
    model: Floats
    lock: threading.RLock = field(default_factory=threading.RLock)
    num_sessions: int = 0
    num_proposals: int = 0
    proposed: Longs = field(default_factory=lambda: np.zeros(len(SOURCES), np.int64))
    accepted: Longs = field(default_factory=lambda: np.zeros(len(SOURCES), np.int64))
    erased: int = 0
    """How often all was forgotten; sessions notice it by this number."""

    def forget(self, index: TokenIndex, model: Floats) -> None:
        """Forget all texts, what became of proposals, and what the model learnt."""
        self.index, self.model = index, model
        self.num_proposals = 0
        self.proposed[:] = 0
        self.accepted[:] = 0
        self.erased += 1


class _Draft:
    """One proposal, with what is needed to learn from what becomes of it."""

    def __init__(self) -> None:
        self.candidates: Ints = np.empty((kernels.CANDIDATE_ROWS, kernels.MAX_CANDIDATES), np.int32)
        # Rows of a power of two would all fall into the same few lines of the processor's first cache.
        row = kernels.MAX_NODES + 16
        self.nodes: Ints = np.empty((kernels.NODE_ROWS, row), np.int32)
        self.values: Floats = np.empty((kernels.VALUE_ROWS, row))
        self.tokens: Ints = np.empty((2, kernels.MAX_BUDGET), np.int32)
        self.chances: Floats = np.empty(kernels.MAX_BUDGET)
        # Tuples are made faster of these than of the arrays.
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
    """One conversation of one tenant; see `Session` for the contract. Threads may take turns with it."""

    def __init__(self, tenant: Tenant, readable: Sequence[Tenant], min_chance: float | None) -> None:
        self._tenant = tenant
        self._readable = tuple(readable)
        self._min_chance = min_chance
        self._lean: Floats = np.zeros(kernels.NUM_FEATURES)
        self._trail: Longs = np.zeros(kernels.TRAIL_SIZE, np.int64)
        self._no_trail: Longs = np.zeros(kernels.TRAIL_SIZE, np.int64)
        self._draft = _Draft()
        self._spare = _Draft() if readable else None
        # How many tokens stood between the text and the draft; None where no draft waits for its outcome.
        self._awaited: tuple[int, ...] | None = None
        # Taken before any tenant's lock, and those one at a time: two tenants may read each other.
        self._lock = threading.RLock()
        self._closed = False
        with tenant.lock:
            self._writer = tenant.index.open_writer()
            self._erased = tenant.erased
            tenant.num_sessions += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Return how many tokens the text has."""
        return self._writer.length

    def begin(self, segments: Sequence[tuple[Source, Sequence[int]]]) -> None:
        """Take the whole prompt of the next turn.

        The common prefix with the text so far is kept. Behind it, runs of 32 tokens or more that the cache
        knows, wherever they stand, are found again; the rest is learnt.

        Raises:
            ValueError: a token is negative.
        """
        arrays = [_as_array(tokens) for _, tokens in segments]
        prompt = np.concatenate([np.empty(0, np.int32), *arrays])
        stops = np.cumsum([len(array) for array in arrays]).tolist()
        with self._lock, self._tenant.lock:
            writer = self._renewed()
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
        """Take tokens that became certain.

        Raises:
            ValueError: a token is negative.
        """
        if not len(tokens):
            return
        _check(tokens)
        with self._lock, self._tenant.lock:
            writer = self._renewed()
            start, stop = writer.length, writer.length + len(tokens)
            writer.make_room(stop + 1)
            writer.text[start:stop] = tokens
            if self._awaited is not None:
                self._settle(start, stop)
            self._tenant.index.write(writer, stop, _NUMBERS[source])

    def propose_tokens(self, budget: int, *, tree: bool = False, behind: Sequence[int] = ()) -> Proposal:
        """Return up to ``budget`` tokens that may come next, behind the text and ``behind``.

        Those less likely than ``min_chance`` of the settings are left out, by default than `least_chance` of
        the budget. Budgets above 512 count as 512.

        Raises:
            ValueError: a token of ``behind`` is negative.
        """
        with self._lock:
            floor = least_chance(budget) if self._min_chance is None else self._min_chance
            return self._propose(budget, tree, behind, floor).as_proposal()

    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, behind: Sequence[int] = ()
    ) -> StepProposal | None:
        """Return the rest of the step where its chance is ``min_chance`` or more, else None.

        Raises:
            ValueError: a token of ``behind`` is negative.
        """
        with self._lock:
            proposal = self._propose(max_tokens, False, behind, min_chance).as_proposal()
        if not proposal.tokens:
            return None
        size = find_end(proposal.tokens)
        if size is None or proposal.chances[size - 1] < min_chance:
            return None
        return StepProposal(proposal.tokens[:size], proposal.chances[size - 1], proposal.match_length)

    def close(self) -> None:
        """End the conversation; what was learnt from it stays in the cache."""
        with self._lock, self._tenant.lock:
            if not self._closed:
                self._tenant.index.close_writer(self._writer)
                self._tenant.num_sessions -= 1
            self._closed = True

    def _renewed(self) -> Writer:
        """Return the writer, a new one without a text where the tenant was erased."""
        if self._erased != self._tenant.erased:
            self._writer = self._tenant.index.open_writer()
            self._erased, self._awaited = self._tenant.erased, None
            self._lean[:] = 0.0
            self._trail[:] = 0
        return self._writer

    def _propose(self, budget: int, tree: bool, behind: Sequence[int], min_chance: float) -> _Draft:
        budget = min(budget, kernels.MAX_BUDGET)
        tenant, draft = self._tenant, self._draft
        with tenant.lock:
            writer = self._renewed()
            length = writer.length + len(behind)
            if len(behind):
                _check(behind)
                writer.make_room(length + 1)
                writer.text[writer.length : length] = behind
            tail = writer.places.item(writer.length - 1) if writer.length else NONE
            self._ask(tenant.index, draft, length, tail, self._trail, budget, tree, min_chance)
            draft.owned = True
            tenant.num_proposals += 1
        for other in self._readable:
            spare = self._spare
            assert spare is not None
            with other.lock:
                self._no_trail[:] = 0
                self._ask(other.index, spare, length, NONE, self._no_trail, budget, tree, min_chance)
            spare.owned = False
            if spare.expected > draft.expected:
                draft, self._draft, self._spare = spare, spare, draft
        self._awaited = tuple(behind)
        return draft

    def _ask(
        self, index: TokenIndex, draft: _Draft, length: int, tail: int, trail: Longs, budget: int, tree: bool,
        floor: float,
    ) -> None:  # fmt: skip
        writer = self._writer
        draft.count = kernels.propose(
            index.log, index.sources, index.earlier, index.table, writer.text, writer.length, length, tail,
            self._tenant.model, self._lean, trail, draft.candidates, draft.nodes, draft.values,
            draft.tokens, draft.chances, budget, tree, floor,
        )  # fmt: skip

    def _settle(self, start: int, stop: int) -> None:
        """Learn from what became of the last proposal, once its place in the text is certain."""
        text, behind = self._writer.text, self._awaited
        assert behind is not None
        self._awaited = None
        first = start + len(behind)
        if first >= stop or (behind and text[start:first].tolist() != list(behind)):
            return
        tenant, draft = self._tenant, self._draft
        taken = kernels.settle(
            draft.nodes, draft.values, tenant.model, self._lean, text, first, stop, _RATE, _LEAN_RATE,
            tenant.proposed, tenant.accepted,
        )  # fmt: skip
        # What one tenant reads of another must not change what that other keeps.
        if draft.owned and taken:
            tenant.index.credit(int(draft.nodes[kernels.BEST, 0]), taken)


def _as_array(tokens: Any) -> Ints:
    # For a list this takes half the time that numpy takes.
    made = tokens if isinstance(tokens, np.ndarray) else np.array(array("i", tokens), np.int32)
    if len(made) and made.min() < 0:
        raise ValueError(f"a token is negative: {made.min()}")
    return made.astype(np.int32, copy=False)


def _check(tokens: Sequence[int]) -> None:
    if min(tokens) < 0:
        raise ValueError(f"a token is negative: {min(tokens)}")
