"""Routes for whoever runs the server: is it alive, does it take requests, what does it count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from reason_spec import __version__
from reason_spec.engines.base import Engine
from reason_spec.server.metrics import CONTENT_TYPE, Metrics

Phase: TypeAlias = Literal["starting", "ready", "draining"]


@dataclass(slots=True)
class Operation:
    """How the server is doing: changed by what runs it, read by the routes."""

    metrics: Metrics
    phase: Phase = "starting"
    engines: tuple[Engine, ...] = field(default_factory=tuple)
    """The target first: without it nothing is answered."""

    @property
    def troubles(self) -> dict[str, str]:
        """What is wrong with engines that died or hang, by their names."""
        return {engine.name: engine.trouble for engine in self.engines if engine.trouble is not None}

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken; without its draft the target goes on alone."""
        return self.phase == "ready" and all(engine.trouble is None for engine in self.engines[:1])


def ops_router(operation: Operation) -> APIRouter:
    """Return the routes /health, /ready, /version and /metrics."""
    router = APIRouter(tags=["operation"])
    unavailable: dict[int | str, dict[str, Any]] = {503: {"description": "not now"}}

    @router.api_route("/health", methods=["GET", "HEAD"], responses=unavailable, include_in_schema=False)
    @router.get("/health", responses=unavailable, operation_id="health")
    async def health() -> Response:
        """Say whether the process and its engines live; 503, and why, where one died or hangs."""
        if troubles := operation.troubles:
            return JSONResponse({"status": "failed", "engines": troubles}, 503)
        return JSONResponse({"status": "ok"})

    @router.api_route("/ready", methods=["GET", "HEAD"], responses=unavailable, include_in_schema=False)
    @router.get("/ready", responses=unavailable, operation_id="ready")
    async def ready() -> Response:
        """Say whether requests are taken; 503 while models load, without the target, and at the end."""
        is_ready = operation.is_ready
        body: dict[str, Any] = {"status": operation.phase}
        if troubles := operation.troubles:
            body = {"status": operation.phase if is_ready else "failed", "engines": troubles}
        headers = None if is_ready else {"retry-after": "5"}
        return JSONResponse(body, 200 if is_ready else 503, headers)

    @router.get("/version", operation_id="version")
    async def version() -> dict[str, str]:
        """Say which version of reason-spec runs."""
        return {"version": __version__}

    @router.get("/metrics", response_class=PlainTextResponse, operation_id="metrics")
    async def metrics() -> Response:
        """Return all counts in Prometheus' text form."""
        return Response(operation.metrics.render(), media_type=CONTENT_TYPE)

    return router
