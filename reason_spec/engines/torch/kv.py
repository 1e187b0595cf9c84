"""Maps tokens to slots of keys and values: a trie with one node for each computed token.

A slot is a row of the key and value tensors. The keys and values of a token depend on all tokens before it,
so a path of the trie identifies its slots. Requests with a common prefix share its nodes, and a computed
prefix is found by walking down from the root. Each owner of texts has a root of its own, so that the latency
of a request does not reveal the texts of others.

Ownership of slots:

====================  ========================================================================
free                  in ``_free``
in a pass             taken with ``take``, handed back with ``give_back`` or put into a node by
                      ``extend``
in a node             from ``extend`` until the node is evicted
====================  ========================================================================

A node is held by the requests whose text ends there (``num_users``) and by its children. Leaves
without users are the prefix cache and are evicted least recently used first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeAlias


class TrieNode:
    """One computed token."""

    __slots__ = ("children", "key", "last_use", "num_users", "parent", "slot", "token")

    def __init__(self, key: int, token: int, slot: int, parent: TrieNode | None) -> None:
        self.key = key
        self.token = token
        self.slot = slot
        self.parent = parent
        self.children: dict[int, TrieNode] = {}
        self.num_users = 0
        self.last_use = 0

    @property
    def is_used(self) -> bool:
        return bool(self.children) or self.num_users > 0

    @property
    def evictable(self) -> bool:
        return not self.is_used and self.parent is not None


_QueueEntry: TypeAlias = tuple[int, int, TrieNode]
_STALE_ENTRIES = 1024
_MANY_OWNERS = 1024
"""Roots that are kept before unused ones are dropped."""


def _current(entry: _QueueEntry) -> bool:
    last_use, _, node = entry
    return node.evictable and node.last_use == last_use


class PrefixTrie:
    """All slots of one model, and the prefixes that they hold."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._roots = {"": TrieNode(0, -1, -1, None)}
        # Those of forgotten texts that live requests still use.
        self._forgotten: list[TrieNode] = []
        # Low slots first, so that neighbouring tokens are contiguous in memory.
        self._free = list(range(num_slots - 1, -1, -1))
        self._num_taken = 0
        self._num_nodes = 0
        self._next_key = 1
        self._clock = 0
        # Entries go stale when a node is used again; they are checked when they surface.
        self._eviction_queue: list[_QueueEntry] = []

    @property
    def num_nodes(self) -> int:
        return self._num_nodes

    def root(self, owner: str = "") -> TrieNode:
        """Return the root of an owner's texts; hold it before the next call."""
        root = self._roots.get(owner)
        if root is None:
            if len(self._roots) >= _MANY_OWNERS:
                self._roots = {name: one for name, one in self._roots.items() if not name or one.is_used}
            root = self._roots[owner] = TrieNode(self._next_key, -1, -1, None)
            self._next_key += 1
        return root

    def hold(self, node: TrieNode) -> None:
        """Protect a node, and so all nodes before it, from eviction."""
        node.num_users += 1

    def release(self, node: TrieNode) -> None:
        assert node.num_users > 0, "a node was released more often than it was held"
        node.num_users -= 1
        self._clock += 1
        node.last_use = self._clock
        self._offer_for_eviction(node)

    def move(self, node: TrieNode, child: TrieNode) -> None:
        """Move one hold from a node to its child."""
        assert child.parent is node
        assert node.num_users > 0
        node.num_users -= 1
        child.num_users += 1

    def extend(self, node: TrieNode, token: int, slot: int) -> TrieNode:
        """Return the child for ``token``; a new one gets ``slot``.

        If ``child.slot`` is another slot, the caller still owns its own.
        """
        child = node.children.get(token)
        if child is None:
            child = TrieNode(self._next_key, token, slot, node)
            self._next_key += 1
            self._num_nodes += 1
            self._num_taken -= 1
            node.children[token] = child
        return child

    def take(self, count: int) -> list[int] | None:
        """Take slots for a pass, evicting unused nodes; None if there are not enough."""
        while len(self._free) < count:
            if not self._evict_one():
                return None
        slots = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        self._num_taken += count
        return slots

    def give_back(self, slots: Iterable[int]) -> None:
        """Free slots of a pass that did not become nodes."""
        returned = sorted(slots, reverse=True)
        self._free.extend(returned)
        self._num_taken -= len(returned)

    def evict_first(self, owner: str, tokens: Iterable[int]) -> None:
        """Let the texts that begin with ``tokens`` be evicted before all others, from their ends.

        Of ``tokens`` themselves this concerns what no other text shares.
        """
        node = self._roots.get(owner)
        for token in tokens:
            node = None if node is None else node.children.get(token)
        if node is None:
            return
        below = [node]
        while below:
            one = below.pop()
            one.last_use = 0
            self._offer_for_eviction(one)
            below.extend(one.children.values())
        before = node.parent
        while before is not None and len(before.children) == 1:
            before.last_use = 0
            before = before.parent

    def clear(self) -> None:
        """Evict all nodes that no live request uses."""
        while self._evict_one():
            pass

    def forget(self) -> None:
        """Give all owners new roots, as after a change of the weights; live requests keep their nodes."""
        self.clear()
        self._forgotten = [root for root in (*self._forgotten, *self._roots.values()) if root.is_used]
        self._roots = {"": TrieNode(self._next_key, -1, -1, None)}
        self._next_key += 1

    def check_integrity(self, tips: Iterable[TrieNode]) -> None:
        """Assert that each slot has one owner and that the holds are those of ``tips``.

        Call it between passes, when no slot is taken.
        """
        assert self._num_taken == 0, f"{self._num_taken} slots were neither freed nor put into a node"
        users: dict[int, int] = {}
        for tip in tips:
            users[tip.key] = users.get(tip.key, 0) + 1
        nodes = [*self._roots.values(), *self._forgotten]
        owned: list[int] = []
        while nodes:
            node = nodes.pop()
            assert node.num_users == users.pop(node.key, 0), f"node {node.key} has a wrong user count"
            for token, child in node.children.items():
                assert child.parent is node
                assert child.token == token
                owned.append(child.slot)
                nodes.append(child)
        assert not users, f"live requests end at evicted nodes {sorted(users)}"
        assert len(owned) == self._num_nodes, "the node count is wrong"
        assert sorted(owned + self._free) == list(range(self.num_slots)), "a slot is lost or has two owners"

    def _offer_for_eviction(self, node: TrieNode) -> None:
        if not node.evictable:
            return
        heapq.heappush(self._eviction_queue, (node.last_use, node.key, node))
        if len(self._eviction_queue) > 2 * self._num_nodes + _STALE_ENTRIES:
            self._eviction_queue = [entry for entry in self._eviction_queue if _current(entry)]
            heapq.heapify(self._eviction_queue)

    def _evict_one(self) -> bool:
        while self._eviction_queue:
            entry = heapq.heappop(self._eviction_queue)
            if not _current(entry):
                continue
            last_use, _, node = entry
            parent = node.parent
            assert parent is not None
            del parent.children[node.token]
            node.parent = None
            self._free.append(node.slot)
            self._num_nodes -= 1
            # A prefix is as recent as the latest text that continues it.
            parent.last_use = max(parent.last_use, last_use)
            self._offer_for_eviction(parent)
            return True
        return False
