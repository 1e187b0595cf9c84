"""Suffix caches by scope: runs that are compared, such as candidates of tuning, must not share a cache."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from reason_spec.errors import DataError
from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import Session
from reason_spec.suffix.published import PublishedCache
from reason_spec.suffix.store import SuffixStore
from reason_spec.suffix.tenant_file import StoreKey

if TYPE_CHECKING:
    from reason_spec.suffix.cache import SuffixCache

logger = logging.getLogger(__name__)


class Cache(Protocol):
    """A suffix cache for all tenants of one scope."""

    def open_session(self, tenant: str) -> Session:
        """Start a conversation of a tenant."""

    def save(self) -> None:
        """Save the learned texts if there is a store."""

    def take_erased(self) -> list[str]:
        """Return, once, the tenants whose texts were dropped because another process erased them on disk."""

    def erase(self, tenant: str) -> None:
        """Drop the texts of a tenant."""


MakeCache: TypeAlias = Callable[[str], Cache]
"""Makes the cache of a scope."""


class SuffixCaches:
    """One cache for each scope, created on first use."""

    def __init__(self, make: MakeCache) -> None:
        self._make = make
        self._caches: dict[str, Cache] = {}

    def open_session(self, scope: str, tenant: str) -> Session:
        if scope not in self._caches:
            self._caches[scope] = self._make(scope)
        return self._caches[scope].open_session(tenant)

    def forget(self, scope: str) -> None:
        """Drop a scope's cache; its next use loads the saved texts again."""
        self._caches.pop(scope, None)

    def save(self) -> None:
        """Save the learned texts of all scopes. May be called in another thread."""
        for cache in list(self._caches.values()):
            cache.save()

    def take_erased(self) -> list[str]:
        """Return, once, the tenants that a save found erased by another process."""
        return [tenant for cache in self._caches.values() for tenant in cache.take_erased()]

    def erase(self, tenant: str) -> None:
        """Drop the texts of a tenant in all scopes."""
        for cache in self._caches.values():
            cache.erase(tenant)


class StoredCache:
    """A cache that loads a tenant from the store on first use, and saves to it if ``saves`` is set."""

    def __init__(self, settings: SuffixSettings, store: SuffixStore | None, *, saves: bool) -> None:
        self._reads = settings.reads
        self._cache: SuffixCache | PublishedCache
        if settings.rule == "published":
            self._cache = PublishedCache(settings)
        else:
            # Imports numba, which takes a second.
            from reason_spec.suffix.cache import SuffixCache

            self._cache = SuffixCache(settings)
        self._store = store
        self._saves = saves
        self._loaded: set[str] = set()
        self._own: set[str] = set()
        self._erased: deque[str] = deque()
        self._lock = threading.Lock()

    def open_session(self, tenant: str) -> Session:
        with self._lock:
            for name in (tenant, *self._reads):
                self._load(name)
            self._own.add(tenant)
            session = self._cache.open_session(tenant)
        if self._store is None or not self._saves:
            self._drop_excess()
        return session

    def save(self) -> None:
        """Save the texts of the tenants that had a session, and drop those beyond the limit of all.

        Raises:
            DataError: a tenant could not be saved; the others are.
        """
        if not self._saves or self._store is None:
            return
        failed: DataError | None = None
        for tenant in sorted(self._own):
            try:
                if self._is_erased_on_disk(tenant, self._store):
                    self.erase(tenant)
                    self._erased.append(tenant)
                    logger.warning("tenant %r was erased by another process; its texts are not saved", tenant)
            except DataError as error:
                failed = failed or error
        self._drop_excess()
        if failed is not None:
            raise failed

    def _is_erased_on_disk(self, tenant: str, store: SuffixStore) -> bool:
        """Save the texts of a tenant; return whether another process erased it, so that nothing was saved."""
        if isinstance(self._cache, PublishedCache):
            # It keeps outputs alone: saving them would drop the prompts of the file.
            return store.was_erased(tenant)
        documents = self._cache.snapshot(tenant)
        return bool(documents) and store.save(tenant, documents).erased

    def take_erased(self) -> list[str]:
        """Return, once, the tenants that a save found erased by another process."""
        # Another thread may save meanwhile.
        return [self._erased.popleft() for _ in range(len(self._erased))]

    def erase(self, tenant: str) -> None:
        """Drop the texts of a tenant; after the next load new ones can be saved again."""
        self._cache.erase(tenant)
        self._loaded.discard(tenant)

    def _drop_excess(self) -> None:
        if isinstance(self._cache, PublishedCache):
            return
        # A tenant that is opened meanwhile must be loaded again: the next save would remove its texts.
        with self._lock:
            dropped = self._cache.drop_excess()
            self._loaded.difference_update(dropped)
            self._own.difference_update(dropped)

    def _load(self, tenant: str) -> None:
        if self._store is not None and tenant not in self._loaded:
            self._loaded.add(tenant)
            self._cache.restore(tenant, self._store.load(tenant))


def open_caches(settings: SuffixSettings, key: StoreKey, *, saves: bool = True) -> SuffixCaches:
    """Return the caches for one model, and load the kernels of our rule: seconds the first time.

    All scopes start with the saved texts. Only the scope ``""`` is saved, so that runs that are compared do
    not influence later ones.

    Args:
        saves: False: load the saved texts, but save nothing.

    Raises:
        DataError: the saved texts cannot be read.
    """
    if settings.rule == "ours":
        from reason_spec.suffix.cache import warm_up

        warm_up()

    def make(scope: str) -> Cache:
        path = settings.path
        store = SuffixStore(path, key, max_bytes=settings.max_bytes) if path is not None else None
        return StoredCache(settings, store, saves=saves and not scope)

    caches = SuffixCaches(make)
    # Loads the default tenant now; the first request of any other tenant waits for its load.
    caches.open_session("", settings.tenant).close()
    return caches
