"""Requests in the order in which they are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Ordered(Protocol):
    @property
    def order(self) -> tuple[int, int]:
        """Priority (smaller numbers first), then arrival. The priority may change at any time."""


_R = TypeVar("_R", bound=Ordered)


class RequestQueue(Generic[_R]):
    """Requests by priority, then by arrival. Iterating gives the most urgent request first.

    There are few requests, and their priorities change, so the queue is sorted when it is read.
    """

    def __init__(self) -> None:
        self._requests: list[_R] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: _R) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[_R]:
        self._requests.sort(key=lambda request: request.order)
        return iter(tuple(self._requests))

    def add(self, request: _R) -> None:
        self._requests.append(request)

    def remove(self, request: _R) -> None:
        self._requests.remove(request)

    def last(self) -> _R:
        """Return the least urgent request."""
        return max(self._requests, key=lambda request: request.order)
