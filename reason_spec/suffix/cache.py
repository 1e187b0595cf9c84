"""The suffix cache of a process: tenants apart from each other, each within its bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from reason_spec.settings import SuffixSettings
from reason_spec.suffix import scoring
from reason_spec.suffix.base import SOURCES, Source
from reason_spec.suffix.index import TokenIndex
from reason_spec.suffix.session import CacheSession, Tenant
from reason_spec.suffix.texts import TenantTexts


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """Tokens of one source: kept, proposed, and accepted of those that were proposed."""

    num_tokens: int
    num_tokens_proposed: int
    num_tokens_accepted: int


@dataclass(frozen=True, slots=True)
class TenantStatistics:
    """What the cache keeps for a tenant, and what it was worth in this process."""

    num_bytes: int
    num_documents: int
    num_open_sessions: int
    num_proposals: int
    sources: Mapping[Source, SourceStatistics] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens kept, of all sources."""
        return sum(source.num_tokens for source in self.sources.values())


class SuffixCache:
    """Texts of tenants and what came next in them, in memory. All methods may be called by any thread.

    A tenant's texts never influence what another tenant is offered, unless the settings name it under
    ``reads``; even then reading leaves no trace with the tenant that is read.
    """

    def __init__(self, settings: SuffixSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._tenants: dict[str, Tenant] = {}
        self._lock = threading.Lock()

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants that anything is kept for."""
        with self._lock:
            return tuple(self._tenants)

    def open_session(self, tenant: str | None = None) -> CacheSession:
        """Begin a conversation of a tenant, the settings' own by default; also a context manager."""
        name = self._settings.tenant if tenant is None else tenant
        with self._lock:
            readable = [self._tenant(other) for other in self._settings.reads if other != name]
            return CacheSession(self._tenant(name), readable, self._settings.min_chance)

    def statistics(self) -> dict[str, TenantStatistics]:
        """Return what is kept and what became of proposals, by tenant and source."""
        with self._lock:
            tenants = dict(self._tenants)
        return {name: _statistics(tenant) for name, tenant in tenants.items()}

    def erase(self, tenant: str) -> None:
        """Forget all that a tenant's conversations taught; its open sessions begin anew, without a text."""
        with self._lock:
            found = self._tenants.get(tenant)
            if found is None:
                return
            with found.lock:
                found.forget(self._new_index(), scoring.initial_model())
                if found.num_sessions == 0:
                    del self._tenants[tenant]

    def snapshot(self, tenant: str) -> TenantTexts:
        """Return the texts of a tenant as arrays of their own."""
        with self._lock:
            found = self._tenants.get(tenant)
        if found is None:
            return TenantTexts.empty()
        with found.lock:
            return found.index.snapshot()

    def restore(self, tenant: str, texts: TenantTexts) -> None:
        """Add texts to a tenant's; beyond its bound the least useful go, as always."""
        with self._lock:
            found = self._tenant(tenant)
        with found.lock:
            found.index.restore(texts)

    def _tenant(self, name: str) -> Tenant:
        if name not in self._tenants:
            self._tenants[name] = Tenant(self._new_index(), scoring.initial_model())
        return self._tenants[name]

    def _new_index(self) -> TokenIndex:
        return TokenIndex(self._settings.max_bytes, self._clock)


def warm_up() -> float:
    """Make or load the machine code that a cache needs; return the seconds that took.

    The first time on a machine that is some ten seconds, later under one. Without this call the first
    proposal waits for it.
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


def _statistics(tenant: Tenant) -> TenantStatistics:
    with tenant.lock:
        index = tenant.index
        tokens = np.zeros(len(SOURCES), np.int64)
        for piece in index.pieces:
            tokens += np.bincount(index.sources[piece.start : piece.stop], minlength=len(SOURCES))
        counts = zip(
            SOURCES, tokens.tolist(), tenant.proposed.tolist(), tenant.accepted.tolist(), strict=True
        )
        return TenantStatistics(
            num_bytes=index.num_bytes,
            num_documents=len(index.pieces),
            num_open_sessions=tenant.num_sessions,
            num_proposals=tenant.num_proposals,
            sources={source: SourceStatistics(*numbers) for source, *numbers in counts},
        )
