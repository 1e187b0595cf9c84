"""Prefixes on both sides of the pipe: a node that was sent once is named by its number.

The text of an answer is a chain of `Prefix` nodes, and each request adds a node at its end. So a message with
a prefix (`Submit`, `SubmitScore`) holds new tokens only, whatever the length of the text. Of the
other messages only `EvictFirst`, at the end of a session, holds a whole prefix.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from itertools import count

from reason_spec.engines.worker.messages import PrefixDelta
from reason_spec.types import Prefix


class SentPrefixes:
    """The nodes that a worker has. They are kept as long as they are referenced in this process."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Prefix, int] = weakref.WeakKeyDictionary()
        self._next = count()
        # A finalizer runs in the thread that drops the last reference, so this has to be thread-safe.
        self._dropped: deque[int] = deque()

    def encode(self, prefix: Prefix) -> PrefixDelta:
        """Return the part of a prefix that the worker does not have yet."""
        base: int | None = None
        new: list[Prefix] = []
        for node in prefix.nodes():
            if (base := self._numbers.get(node)) is not None:
                break
            new.append(node)
        return PrefixDelta(prefix.owner, base, tuple((self._add(node), node.tokens) for node in new[::-1]))

    def take_dropped(self) -> tuple[int, ...]:
        """Return the numbers of nodes that are no longer referenced, each once."""
        return tuple(self._dropped.popleft() for _ in range(len(self._dropped)))

    def _add(self, node: Prefix) -> int:
        number = self._numbers[node] = next(self._next)
        weakref.finalize(node, self._dropped.append, number).atexit = False
        return number


class ReceivedPrefixes:
    """The worker's side: the same nodes by their numbers."""

    def __init__(self) -> None:
        self._nodes: dict[int, Prefix] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def decode(self, delta: PrefixDelta) -> Prefix:
        node = None if delta.base is None else self._nodes[delta.base]
        for number, tokens in delta.nodes:
            node = self._nodes[number] = Prefix(tokens, node, owner=delta.owner)
        assert node is not None, "a prefix without nodes was sent"
        return node

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self._nodes[number]
