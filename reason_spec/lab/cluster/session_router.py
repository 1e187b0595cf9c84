"""Which replica of Ray Serve gets a request; loaded by Ray alone, whose classes it extends."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter


class SessionRouter(ConsistentHashRouter):
    """Keeps a session at one replica, which has its prefixes; other requests go to the least loaded.

    A session is what the header ``x-session-id`` names. Its replica follows from a hash of it, equal in all
    processes; if that replica is full or gone, the next one on the ring takes the request.
    """

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        if pending_request is not None and not pending_request.metadata.session_id:
            pending_request.routing_context.should_backoff = True
            # Of one list, Ray takes the first replica among those with the shortest queue.
            return [random.sample(candidate_replicas, len(candidate_replicas))]
        ranked: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
        return ranked
