"""Suffix caches that must not learn from each other: one for each thing that is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import Session
from reason_spec.suffix.file_format import StoreKey


class Cache(Protocol):
    """What is known of a model's texts, tenant by tenant."""

    def open_session(self, tenant: str) -> Session:
        """Return a new conversation of a tenant."""


MakeCache: TypeAlias = Callable[[str], Cache]
"""Makes the cache of a scope, with what was kept for it."""
KeepCache: TypeAlias = Callable[[str, Cache], None]
"""Keeps what the cache of a scope holds."""


class SuffixCaches:
    """A cache for each scope, made when it is first asked for."""

    def __init__(self, make: MakeCache, keep: KeepCache | None = None) -> None:
        self._make = make
        self._keep = keep
        self._caches: dict[str, Cache] = {}

    def open_session(self, scope: str, tenant: str) -> Session:
        if scope not in self._caches:
            self._caches[scope] = self._make(scope)
        return self._caches[scope].open_session(tenant)

    def forget(self, scope: str) -> None:
        """Let a scope begin anew."""
        self._caches.pop(scope, None)

    def save(self) -> None:
        """Keep what was learnt, where there is a place for it."""
        if self._keep is not None:
            for scope, cache in self._caches.items():
                self._keep(scope, cache)


def open_caches(settings: SuffixSettings, key: StoreKey, *, keep: bool = True) -> SuffixCaches:
    """Return the caches that settings describe, for the tokens of one model.

    Args:
        keep: False: what was kept is read, and nothing is written.
    """
    raise NotImplementedError
