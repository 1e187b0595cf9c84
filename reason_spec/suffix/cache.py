"""The suffix cache of a process: isolated tenants, each of limited size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import CacheSize
from reason_spec.suffix.documents import Document
from reason_spec.suffix.index import TokenIndex
from reason_spec.suffix.session import CacheSession, Tenant
from reason_spec.suffix.snapshot import restore, snapshot


class SuffixCache:
    """The suffix indices of all tenants, in memory. Thread-safe.

    A tenant's texts never influence the proposals of another tenant, unless the settings name it under
    ``reads``; reading does not change the tenant that is read.
    """

    def __init__(self, settings: SuffixSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._tenants: dict[str, Tenant] = {}
        self._lock = threading.Lock()

    def open_session(self, tenant: str | None = None) -> CacheSession:
        """Start a conversation of a tenant, by default that of the settings; also a context manager."""
        name = self._settings.tenant if tenant is None else tenant
        with self._lock:
            readable = [self._tenant(other) for other in self._settings.reads if other != name]
            return CacheSession(self._tenant(name), readable, self._settings.min_chance)

    def size(self, tenant: str) -> CacheSize:
        """Return the size of a tenant's index, zeros if there is none."""
        with self._lock:
            found = self._tenants.get(tenant)
        if found is None:
            return CacheSize(0, 0)
        with found.lock:
            return CacheSize(found.index.num_bytes, found.index.num_tokens)

    def erase(self, tenant: str) -> None:
        """Delete a tenant's index; its open sessions continue with an empty text."""
        with self._lock:
            found = self._tenants.get(tenant)
            if found is None:
                return
            with found.lock:
                found.forget(self._new_index())
                if found.num_sessions == 0:
                    del self._tenants[tenant]

    def drop_excess(self) -> list[str]:
        """Drop tenants while all exceed ``max_total_bytes``; return their names.

        The least recently used ones go first. Tenants with open sessions and those that others read stay.
        """
        with self._lock:
            excess = sum(tenant.index.num_bytes for tenant in self._tenants.values())
            excess -= self._settings.max_total_bytes
            dropped: list[str] = []
            for name, tenant in self._tenants.items():
                if excess > 0 and not tenant.num_sessions and name not in self._settings.reads:
                    excess -= tenant.index.num_bytes
                    dropped.append(name)
            for name in dropped:
                del self._tenants[name]
        return dropped

    def snapshot(self, tenant: str) -> list[Document]:
        """Return a copy of a tenant's documents."""
        with self._lock:
            found = self._tenants.get(tenant)
        if found is None:
            return []
        with found.lock:
            return snapshot(found.index)

    def restore(self, tenant: str, documents: Sequence[Document]) -> None:
        """Add documents to a tenant's index; evicts as usual if they exceed its size limit."""
        with self._lock:
            found = self._tenant(tenant)
        with found.lock:
            restore(found.index, documents)

    def _tenant(self, name: str) -> Tenant:
        # The most recently used one is the last.
        tenant = self._tenants.pop(name) if name in self._tenants else Tenant(self._new_index())
        self._tenants[name] = tenant
        return tenant

    def _new_index(self) -> TokenIndex:
        return TokenIndex(self._settings.max_bytes, self._clock)


def warm_up() -> float:
    """Compile or load the machine code of the kernels; return the seconds it took.

    The first time on a machine takes some ten seconds, later under one. Otherwise the first proposal would
    wait for it.
    """
    start = time.perf_counter()
    cache = SuffixCache(SuffixSettings(max_bytes=1 << 16))
    with cache.open_session() as session:
        for _ in range(2):
            session.begin([("prompt", list(range(100))), ("tool", list(range(50)))])
            session.propose_tokens(4)
            session.extend([1, 2, 3])
            session.begin([("prompt", list(range(120)))])
        for number in range(40):
            session.extend(range(1000 * number, 1000 * number + 100))
    return time.perf_counter() - start
