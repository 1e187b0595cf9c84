"""Cached positions of prefixes: a request starts where the one before it ended, not at the root of the trie.

A prefix is a chain of nodes, and the next request extends the same chain. `Places` keeps, for each prefix
node, the node of the trie and the arrays of tokens and slots up to there. So the cost of a step does not
depend on the length of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from reason_spec.engines.torch.kv import PrefixTrie, TrieNode
from reason_spec.engines.torch.layout import IntArray
from reason_spec.types import Prefix

_MOST_KEPT = 1 << 23
"""Tokens of all places together: with their slots 128 MB where no two have memory in common."""
_LOOK_AT = 256
"""Tokens of a text that are read at a time while its path is followed."""


class _Memory:
    """An array, and how much of it is written. What is written never changes."""

    __slots__ = ("array", "used")

    def __init__(self, array: IntArray, used: int) -> None:
        self.array = array
        self.used = used


class SharedArray:
    """A growing array of numbers that may share its beginning with others (copy on write).

    The first to append, and those that append the same, stay in the shared memory; others copy.
    """

    __slots__ = ("_length", "_memory")

    def __init__(self, values: Sequence[int] = ()) -> None:
        array = np.empty(max(256, 2 * len(values)), dtype=np.int64)
        self._memory = _Memory(array, 0)
        self._length = 0
        self.extend(values)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        assert 0 <= index < self._length
        return self._memory.array.item(index)

    @property
    def values(self) -> IntArray:
        """What is in it now, not to be written to."""
        return self._memory.array[: self._length]

    def beginning(self, length: int) -> SharedArray:
        """Return an array of the first ``length`` numbers, in the same memory."""
        assert length <= self._length
        other = object.__new__(SharedArray)
        other._memory, other._length = self._memory, length
        return other

    def append(self, value: int) -> None:
        memory, length = self._memory, self._length
        if length < memory.used:
            if memory.array.item(length) == value:
                self._length += 1
                return
            memory = self._move(1)
        elif length == len(memory.array):
            memory = self._move(1)
        memory.array[length] = value
        self._length = memory.used = length + 1

    def extend(self, values: Sequence[int]) -> None:
        start, stop = self._length, self._length + len(values)
        memory = self._memory
        shared = min(stop, memory.used)
        if memory.array[start:shared].tolist() != list(values[: shared - start]) or stop > len(memory.array):
            memory = self._move(len(values))
            shared = start
        if shared < stop:
            memory.array[shared:stop] = values[shared - start :]
            memory.used = stop
        self._length = stop

    def num_shared(self, other: SharedArray) -> int:
        """Return with how many numbers both begin."""
        length = min(self._length, other._length)
        if self._memory is other._memory:
            return length
        same = self._memory.array[:length] == other._memory.array[:length]
        return length if same.all() else int(np.argmin(same))

    def _move(self, room: int) -> _Memory:
        array = np.empty(2 * (self._length + room), dtype=np.int64)
        array[: self._length] = self.values
        self._memory = _Memory(array, self._length)
        return self._memory


class Place(NamedTuple):
    """Where a prefix ends: its tokens, the node of its last one, and the slots of all of them."""

    tokens: SharedArray
    node: TrieNode
    slots: SharedArray
    in_order: bool
    """Whether each slot follows the one before."""

    @property
    def is_cached(self) -> bool:
        """Whether the slots still hold it: no node is evicted before those behind it."""
        return self.node.parent is not None


class Path:
    """The computed part of a text: a path of the trie, and its slots as an array."""

    def __init__(self, trie: PrefixTrie, owner: str = "") -> None:
        self._trie = trie
        self._root = trie.root(owner)
        self._slots = SharedArray()
        self.in_order = True
        """Whether each slot follows the one before."""
        self.tip: TrieNode = self._root
        trie.hold(self._root)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> IntArray:
        return self._slots.values

    def begin_at(self, place: Place, limit: int) -> None:
        """Go from the root to a cached place, or to the node before it that is ``limit`` tokens away."""
        assert self.tip is self._root
        node, slots = place.node, place.slots
        for _ in range(len(slots) - limit):
            assert node.parent is not None
            node = node.parent
        self._trie.hold(node)
        self._trie.release(self.tip)
        self.tip, self.in_order = node, place.in_order
        self._slots = slots.beginning(min(limit, len(slots)))

    def step_to(self, child: TrieNode) -> None:
        """Go on to a child of the tip."""
        self._trie.move(self.tip, child)
        self.in_order = self.in_order and (self.tip is self._root or child.slot == self.tip.slot + 1)
        self.tip = child
        self._slots.append(child.slot)

    def follow(self, tokens: Sequence[int] | IntArray, limit: int) -> int:
        """Go along nodes that are already computed, up to ``limit`` tokens; return how many."""
        before = len(self)
        while len(self) < limit:
            for token in tokens[len(self) : min(limit, len(self) + _LOOK_AT)]:
                child = self.tip.children.get(int(token))
                if child is None:
                    return len(self) - before
                self.step_to(child)
        return len(self) - before

    def place(self, tokens: SharedArray) -> Place:
        """Return the tip as the place of a prefix that ends there."""
        return Place(tokens.beginning(len(self)), self.tip, self._slots.beginning(len(self)), self.in_order)

    def release(self) -> None:
        """Hold nothing but the root; the nodes stay cached until their slots are needed."""
        self._trie.release(self.tip)
        self._trie.hold(self._root)
        self.tip, self._slots, self.in_order = self._root, SharedArray(), True

    def discard(self) -> None:
        """Hold nothing any more; the path must not be used again."""
        self._trie.release(self.tip)


class Places:
    """Cached positions of prefixes that are still referenced, at most ``most_kept`` tokens.

    Least recently used go first.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        self._most_kept = most_kept
        # An upper bound: places of prefixes that are garbage collected disappear without being subtracted.
        self._num_kept = 0
        self._places: WeakKeyDictionary[Prefix, Place] = WeakKeyDictionary()

    def find(self, prefix: Prefix) -> Place | None:
        if (place := self._places.pop(prefix, None)) is not None:
            self._places[prefix] = place
        return place

    def keep(self, prefix: Prefix, place: Place) -> None:
        """Store the position of a prefix; its tokens must have been checked against the vocabulary."""
        if self._places.pop(prefix, None) is None:
            self._num_kept += len(prefix)
        self._places[prefix] = place
        if self._num_kept > self._most_kept:
            self._drop_oldest()

    def clear(self) -> None:
        self._places.clear()
        self._num_kept = 0

    def _drop_oldest(self) -> None:
        """Evict down to half of the limit, so that the recount is rare."""
        prefixes = list(self._places)
        self._num_kept = sum(map(len, prefixes))
        for prefix in prefixes[:-1]:
            if self._num_kept <= self._most_kept // 2:
                return
            del self._places[prefix]
            self._num_kept -= len(prefix)
