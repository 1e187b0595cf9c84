"""Suffix caches that must not learn from each other: one for each thing that is compared."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import Session
from reason_spec.suffix.file_format import StoreKey
from reason_spec.suffix.store import SuffixStore

logger = logging.getLogger(__name__)


class Cache(Protocol):
    """What is known of a model's texts, tenant by tenant."""

    def open_session(self, tenant: str) -> Session:
        """Return a new conversation of a tenant."""

    def save(self) -> None:
        """Keep what was learnt, where there is a place for it."""


MakeCache: TypeAlias = Callable[[str], Cache]
"""Makes the cache of a scope."""


class SuffixCaches:
    """A cache for each scope, made when it is first asked for."""

    def __init__(self, make: MakeCache) -> None:
        self._make = make
        self._caches: dict[str, Cache] = {}

    def open_session(self, scope: str, tenant: str) -> Session:
        if scope not in self._caches:
            self._caches[scope] = self._make(scope)
        return self._caches[scope].open_session(tenant)

    def forget(self, scope: str) -> None:
        """Let a scope begin anew, with what was kept when it is asked for again."""
        self._caches.pop(scope, None)

    def save(self) -> None:
        """Keep what was learnt, where there is a place for it. May be called in another thread."""
        for cache in list(self._caches.values()):
            cache.save()


class KeptCache:
    """The cache of a scope with the store it begins from.

    Args:
        saves: whether what is learnt goes into the store.
    """

    def __init__(self, settings: SuffixSettings, store: SuffixStore | None, *, saves: bool) -> None:
        # It brings numba, which those who cache nothing need not wait for.
        from reason_spec.suffix.cache import SuffixCache

        self._reads = settings.reads
        self._cache = SuffixCache(settings)
        self._store = store
        self._saves = saves
        self._loaded: set[str] = set()
        self._own: set[str] = set()

    def open_session(self, tenant: str) -> Session:
        for name in (tenant, *self._reads):
            self._load(name)
        self._own.add(tenant)
        return self._cache.open_session(tenant)

    def save(self) -> None:
        """Keep what was learnt.

        Raises:
            DataError: the folder cannot be written.
        """
        if not self._saves or self._store is None:
            return
        for tenant in sorted(self._own):
            texts = self._cache.snapshot(tenant)
            if not len(texts.tokens):
                continue
            report = self._store.save(tenant, texts)
            if report.erased:
                self._cache.erase(tenant)
                # What it is taught from now on may be kept again, once the store was read.
                self._loaded.discard(tenant)
                logger.warning("what tenant %r taught was erased meanwhile, and is not kept", tenant)

    def _load(self, tenant: str) -> None:
        if self._store is not None and tenant not in self._loaded:
            self._loaded.add(tenant)
            self._cache.restore(tenant, self._store.load(tenant))


def open_caches(settings: SuffixSettings, key: StoreKey, *, saves: bool = True) -> SuffixCaches:
    """Return the caches that settings describe, for the tokens of one model; the first time takes seconds.

    All scopes begin with what was kept, and only the nameless one is kept: what is compared must not
    influence what is compared later either.

    Args:
        saves: False: what was kept is read, and nothing is written.

    Raises:
        DataError: what was kept cannot be read.
    """
    from reason_spec.suffix.cache import warm_up

    warm_up()

    def make(scope: str) -> Cache:
        path = settings.path
        store = SuffixStore(path, key, max_bytes=settings.max_bytes) if path is not None else None
        return KeptCache(settings, store, saves=saves and not scope)

    caches = SuffixCaches(make)
    # Read now; what was kept for others is read when they first ask, and their answer waits for it.
    caches.open_session("", settings.tenant).close()
    return caches
