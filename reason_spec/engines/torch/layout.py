"""The layout of one pass: which tokens are run, and which keys each of them sees.

All new tokens of a pass form one flat sequence, so the linear layers need no padding. Attention works on
rows. A row holds one request with its drafts, or several that share most of their prefix (branches of one
problem): their common context is gathered once, and a mask restricts each branch to its own text. Rows of
similar shape are padded to a block, which is one attention call a layer.

Tokens of a row form a forest. Requests with the same token after the same prefix share its entry, also across
rows: a layer stores all new keys and values before it attends, so an entry of an earlier row is context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_NO_ENTRY = -1
_PADDING_TOLERANCE = 1.3
_MIN_SHARED_PART = 0.5


@dataclass(slots=True)
class Chain:
    """Consecutive tokens that one request runs in a pass.

    Attributes:
        tokens: the tokens.
        context: the slots of all tokens before them.
        prefix_key: identifies the context; equal keys mean equal contexts.
        num_logits: the last tokens whose predictions are needed.
        group: chains of one group have the same first ``shared_context`` slots.
        shared_context: length of the context that the group shares.
        entries: the entries of the tokens, set by `PassBuilder.build`.
        in_order: whether each slot of the context follows the one before.
    """

    tokens: Sequence[int]
    context: IntArray
    prefix_key: int
    num_logits: int
    group: int
    shared_context: int
    entries: list[int] = field(default_factory=list)
    in_order: bool = False


@dataclass(slots=True)
class _Run:
    """Consecutive entries ``start`` to ``end``.

    The first follows ``parent``, an entry of the same row, or with ``_NO_ENTRY`` the slots of ``context``.
    """

    parent: int
    context: IntArray
    start: int
    end: int = -1


@dataclass(slots=True)
class Row:
    """One row of attention: entries ``start`` to ``end`` of the pass over ``columns`` keys.

    The columns are the slots of the shared context, of the own context of each run, and of the entries.
    """

    start: int
    end: int
    shared: IntArray
    contexts: list[IntArray]
    new: IntArray
    new_positions: IntArray
    mask: BoolArray | None
    """[entries, columns], True where an entry sees a key; None if it is full or causal."""
    in_order: bool
    """Whether each column follows the one before, so that they are a span."""

    @property
    def num_entries(self) -> int:
        return self.end - self.start

    @property
    def num_columns(self) -> int:
        return len(self.shared) + sum(map(len, self.contexts)) + len(self.new)

    @property
    def span(self) -> slice | None:
        """The slots of all columns; None if they are not in order."""
        if not self.in_order:
            return None
        stop = int(self.new[-1]) + 1
        return slice(stop - self.num_columns, stop)

    @property
    def columns(self) -> IntArray:
        return np.concatenate([self.shared, *self.contexts, self.new])

    @property
    def column_positions(self) -> IntArray:
        shared = len(self.shared)
        own = (np.arange(shared, shared + len(context)) for context in self.contexts)
        return np.concatenate([np.arange(shared), *own, self.new_positions])

    @property
    def plain_causal(self) -> bool:
        return self.mask is None and self.num_entries > 1


@dataclass(slots=True)
class Block:
    """Rows of one attention call."""

    rows: list[Row]

    @property
    def num_entries(self) -> int:
        """Entries of the longest row."""
        return max(row.num_entries for row in self.rows)

    @property
    def num_columns(self) -> int:
        return max(row.num_columns for row in self.rows)


@dataclass(slots=True)
class PassLayout:
    """The input of the model in one pass."""

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    blocks: list[Block]
    logits_entries: list[int]
    """Entries whose predictions are needed, in the order of the rows of the logits."""


class PassBuilder:
    """Lays out passes."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._entry_of: dict[tuple[int, int], int] = {}

    def build(self, chains: Sequence[Chain], slots: Sequence[int]) -> PassLayout:
        """Lay out ``chains``, setting the ``entries`` of each.

        Args:
            chains: the tokens of all requests.
            slots: at least one for each token; the first ones are used, one for each entry.
        """
        self._tokens, self._positions, self._entry_of = [], [], {}
        rows = [row for members in _rows_of(chains) if (row := self._add_row(members, slots)).num_entries]
        wanted: dict[int, None] = {}
        for chain in chains:
            if chain.num_logits:
                wanted.update(dict.fromkeys(chain.entries[-chain.num_logits :]))
        return PassLayout(
            tokens=self._tokens,
            positions=self._positions,
            slots=list(slots[: len(self._tokens)]),
            blocks=_blocks_of(rows),
            logits_entries=list(wanted),
        )

    def _add_row(self, members: list[Chain], slots: Sequence[int]) -> Row:
        start = len(self._tokens)
        runs = [run for member in members if (run := self._add_entries(member, start, slots)) is not None]
        end = len(self._tokens)
        shared = members[0].shared_context if len(members) > 1 else 0
        # A run that continues another's entry sees what that entry sees.
        contexts = [run.context[shared:] for run in runs if run.parent == _NO_ENTRY]
        return Row(
            start,
            end,
            shared=members[0].context[:shared],
            contexts=contexts,
            new=np.asarray(slots[start:end], dtype=np.int64),
            new_positions=np.asarray(self._positions[start:end], dtype=np.int64),
            mask=self._mask(runs, shared, start, end),
            in_order=len(members) == 1 and _continues_in_order(members[0], contexts, slots[start:end]),
        )

    def _add_entries(self, member: Chain, row_start: int, slots: Sequence[int]) -> _Run | None:
        """Append the tokens of a chain that are new to the pass; return their run, None if there is none."""
        # Prefix keys are not negative; entries are stored as negative keys.
        parent, parent_key = _NO_ENTRY, member.prefix_key
        member.entries = []
        run: _Run | None = None
        for position, token in enumerate(member.tokens, start=len(member.context)):
            entry = self._entry_of.get((parent_key, token))
            if entry is None:
                entry = len(self._tokens)
                run = run or self._start_run(member, parent, entry, row_start, slots)
                self._entry_of[parent_key, token] = entry
                self._tokens.append(token)
                self._positions.append(position)
            member.entries.append(entry)
            parent, parent_key = entry, -1 - entry
        if run is not None:
            run.end = len(self._tokens)
        return run

    @staticmethod
    def _start_run(member: Chain, parent: int, entry: int, row_start: int, slots: Sequence[int]) -> _Run:
        if parent >= row_start or not member.entries:
            return _Run(parent, member.context, entry)
        of_earlier_rows = np.asarray([slots[known] for known in member.entries], dtype=np.int64)
        return _Run(_NO_ENTRY, np.concatenate([member.context, of_earlier_rows]), entry)

    @staticmethod
    def _mask(runs: list[_Run], shared: int, start: int, end: int) -> BoolArray | None:
        num_own = [len(run.context) - shared for run in runs if run.parent == _NO_ENTRY]
        num_context = shared + sum(num_own)
        if len(runs) == 1 and (end - start == 1 or num_context == 0):
            return None
        mask = np.zeros((end - start, num_context + end - start), dtype=np.bool_)
        own_start = shared
        for run in runs:
            part = mask[run.start - start : run.end - start]
            if run.parent == _NO_ENTRY:
                own_end = own_start + len(run.context) - shared
                part[:, :shared] = True
                part[:, own_start:own_end] = True
                own_start = own_end
            else:
                part[:] = mask[run.parent - start]
            first_column = num_context + run.start - start
            length = run.end - run.start
            part[:, first_column : first_column + length] = np.tri(length, dtype=np.bool_)
        return mask


def _continues_in_order(member: Chain, contexts: list[IntArray], slots: Sequence[int]) -> bool:
    """Return whether a chain's context is in order, and its entries follow it."""
    if len(contexts) != 1 or contexts[0].shape != member.context.shape or not (member.in_order and slots):
        return False
    first = int(member.context[-1]) + 1 if len(member.context) else slots[0]
    return list(slots) == list(range(first, first + len(slots)))


def _rows_of(chains: Sequence[Chain]) -> list[list[Chain]]:
    """Put chains of one group into one row if they share most of their context."""
    groups: dict[int, list[Chain]] = {}
    for chain in chains:
        groups.setdefault(chain.group, []).append(chain)
    rows: list[list[Chain]] = []
    for members in groups.values():
        if len(members) == 1:
            rows.append(members)
            continue
        shared = min(min(member.shared_context, len(member.context)) for member in members)
        for member in members:
            member.shared_context = shared
        longest = max(len(member.context) for member in members)
        if shared >= _MIN_SHARED_PART * longest:
            rows.append(members)
        else:
            rows.extend(_with_one_context(members))
    return rows


def _with_one_context(chains: Sequence[Chain]) -> Iterator[list[Chain]]:
    """Yield the chains by context: those of a tree of drafts, which continue one text, gather it once."""
    same: dict[int, list[Chain]] = {}
    for chain in chains:
        same.setdefault(chain.prefix_key, []).append(chain)
    for members in same.values():
        for member in members:
            member.shared_context = len(member.context)
        yield members


def _blocks_of(rows: list[Row]) -> list[Block]:
    """Cut rows, sorted by size, into blocks so that padding stays a small part of each."""
    ordered = sorted(rows, key=lambda row: (row.plain_causal, row.num_entries, row.num_columns))
    blocks: list[Block] = []
    area = 0
    for row in ordered:
        if blocks and not row.plain_causal and not blocks[-1].rows[0].plain_causal:
            block = blocks[-1]
            padded = (
                (len(block.rows) + 1)
                * max(block.num_entries, row.num_entries)
                * max(block.num_columns, row.num_columns)
            )
            area_with_row = area + row.num_entries * row.num_columns
            if padded <= _PADDING_TOLERANCE * area_with_row:
                block.rows.append(row)
                area = area_with_row
                continue
        blocks.append(Block([row]))
        area = row.num_entries * row.num_columns
    return blocks
