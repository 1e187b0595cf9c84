"""Cached positions of prefixes, so that the cost of a step does not depend on the length of the text.

A prefix is a chain of nodes, and the next request extends the chain. `CachedPrefixes` keeps the node of the
trie, and the arrays of tokens and slots, for each node of a prefix. So a request starts where the previous
one ended, not at the root of the trie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from reason_spec.engines.torch.kv import PrefixTrie, TrieNode
from reason_spec.engines.torch.layout import IntArray
from reason_spec.types import Prefix

_MAX_KEPT = 1 << 23
"""The most tokens of all prefixes: 128 MB with their slots, if no two share memory."""
_READ_TOKENS = 256
"""Tokens that are read at once while a path is followed."""


class _Memory:
    """An array whose first ``used`` numbers are set and never change."""

    __slots__ = ("array", "used")

    def __init__(self, array: IntArray, used: int) -> None:
        self.array = array
        self.used = used


_LARGEST: Final = 2**63 - 1


class SharedArray:
    """A growing array that may share its beginning with others (copy on write).

    The first array that appends, and those that append the same numbers, stay in the shared memory.
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
        """The numbers, read-only."""
        return self._memory.array[: self._length]

    def beginning(self, length: int) -> SharedArray:
        """Return an array of the first ``length`` numbers in the same memory."""
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
            try:
                memory.array[shared:stop] = values[shared - start :]
            except OverflowError:
                # No vocabulary has such a token, and the request is refused for it.
                memory.array[shared:stop] = [
                    min(max(value, -1), _LARGEST) for value in values[shared - start :]
                ]
            memory.used = stop
        self._length = stop

    def num_shared(self, other: SharedArray) -> int:
        """Return the length of the common beginning."""
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


class CachedPrefix(NamedTuple):
    """The end of a prefix: its tokens, the node of its last token, and the slots of all tokens."""

    tokens: SharedArray
    node: TrieNode
    slots: SharedArray
    in_order: bool
    """Whether each slot follows the one before."""

    @property
    def is_cached(self) -> bool:
        """Whether the prefix is still cached: no node is evicted before its children."""
        return self.node.parent is not None


class Path:
    """The computed part of a text: a path of the trie with its slots as an array."""

    def __init__(self, trie: PrefixTrie, owner: str = "") -> None:
        self._trie = trie
        self.root = trie.root(owner)
        self._slots = SharedArray()
        self.in_order = True
        """Whether each slot follows the one before."""
        self.tip: TrieNode = self.root
        trie.hold(self.root)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> IntArray:
        return self._slots.values

    def begin_at(self, cached: CachedPrefix, limit: int) -> None:
        """Go from the root to the end of a cached prefix, at most ``limit`` tokens far."""
        assert self.tip is self.root
        node, slots = cached.node, cached.slots
        for _ in range(len(slots) - limit):
            assert node.parent is not None
            node = node.parent
        self._trie.hold(node)
        self._trie.release(self.tip)
        self.tip, self.in_order = node, cached.in_order
        self._slots = slots.beginning(min(limit, len(slots)))

    def step_to(self, child: TrieNode) -> None:
        """Advance to a child of the tip."""
        self._trie.move(self.tip, child)
        self.in_order = self.in_order and (self.tip is self.root or child.slot == self.tip.slot + 1)
        self.tip = child
        self._slots.append(child.slot)

    def follow(self, tokens: Sequence[int] | IntArray, limit: int) -> int:
        """Advance along computed nodes up to ``limit`` tokens; return the number of steps."""
        before = len(self)
        while len(self) < limit:
            for token in tokens[len(self) : min(limit, len(self) + _READ_TOKENS)]:
                child = self.tip.children.get(int(token))
                if child is None:
                    return len(self) - before
                self.step_to(child)
        return len(self) - before

    def cached(self, tokens: SharedArray) -> CachedPrefix:
        """Return the cached prefix that ends at the tip."""
        return CachedPrefix(
            tokens.beginning(len(self)), self.tip, self._slots.beginning(len(self)), self.in_order
        )

    def release(self) -> None:
        """Hold the root only; the nodes stay cached until their slots are needed."""
        self._trie.release(self.tip)
        self._trie.hold(self.root)
        self.tip, self._slots, self.in_order = self.root, SharedArray(), True

    def discard(self) -> None:
        """Release the last hold; the path must not be used again."""
        self._trie.release(self.tip)


class CachedPrefixes:
    """Cached positions of referenced prefixes, at most ``max_kept`` tokens, by least recent use."""

    def __init__(self, max_kept: int = _MAX_KEPT) -> None:
        self._max_kept = max_kept
        # An upper bound: garbage-collected prefixes are not subtracted.
        self._num_kept = 0
        self._cached: WeakKeyDictionary[Prefix, CachedPrefix] = WeakKeyDictionary()

    def find(self, prefix: Prefix) -> CachedPrefix | None:
        if (cached := self._cached.pop(prefix, None)) is not None:
            self._cached[prefix] = cached
        return cached

    def keep(self, prefix: Prefix, cached: CachedPrefix) -> None:
        """Store the position of a prefix with valid tokens."""
        if self._cached.pop(prefix, None) is None:
            self._num_kept += len(prefix)
        self._cached[prefix] = cached
        if self._num_kept > self._max_kept:
            self._drop_oldest()

    def clear(self) -> None:
        self._cached.clear()
        self._num_kept = 0

    def _drop_oldest(self) -> None:
        """Evict down to half of the limit, so that recounts are rare."""
        prefixes = list(self._cached)
        self._num_kept = sum(map(len, prefixes))
        for prefix in prefixes[:-1]:
            if self._num_kept <= self._max_kept // 2:
                return
            del self._cached[prefix]
            self._num_kept -= len(prefix)
