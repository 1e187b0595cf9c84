"""Prefixes on both sides of the pipe: a node that was sent once is referred to by its number.

The text of an answer is a chain of nodes, and each request adds a node at its end. So a request sends only
its new tokens, whatever the length of the text.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from itertools import count

from reason_spec.engines.worker.messages import PrefixParts
from reason_spec.types import Prefix


class ToldPrefixes:
    """Our side: the nodes that a worker knows. It keeps a node as long as it is referenced here."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Prefix, int] = weakref.WeakKeyDictionary()
        self._next = count()
        # A finalizer runs in the thread that drops the last reference, so this has to be thread-safe.
        self._gone: deque[int] = deque()

    def tell(self, prefix: Prefix) -> PrefixParts:
        """Return what to send for a prefix; the worker knows all of its nodes from then on."""
        known: int | None = None
        new: list[Prefix] = []
        for node in prefix.nodes():
            if (known := self._numbers.get(node)) is not None:
                break
            new.append(node)
        return PrefixParts(prefix.owner, known, tuple((self._add(node), node.tokens) for node in new[::-1]))

    def take_gone(self) -> tuple[int, ...]:
        """Return the numbers of nodes that are no longer referenced, each once."""
        return tuple(self._gone.popleft() for _ in range(len(self._gone)))

    def _add(self, node: Prefix) -> int:
        number = self._numbers[node] = next(self._next)
        weakref.finalize(node, self._gone.append, number).atexit = False
        return number


class KnownPrefixes:
    """The worker's side: the same nodes, by their numbers."""

    def __init__(self) -> None:
        self._nodes: dict[int, Prefix] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, told: PrefixParts) -> Prefix:
        """Return the prefix that was sent."""
        node = None if told.known is None else self._nodes[told.known]
        for number, tokens in told.parts:
            node = self._nodes[number] = Prefix(tokens, node, owner=told.owner)
        assert node is not None, "a prefix without nodes was sent"
        return node

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self._nodes[number]
