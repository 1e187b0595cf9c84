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

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of engines that died."""
        return tuple(engine.name for engine in self.engines if engine.failure is not None)


def ops_router(operation: Operation) -> APIRouter:
    """Return the routes /health, /ready, /version and /metrics."""
    router = APIRouter(tags=["operation"])
    unavailable: dict[int | str, dict[str, Any]] = {503: {"description": "not now"}}

    @router.api_route("/health", methods=["GET", "HEAD"], responses=unavailable, include_in_schema=False)
    @router.get("/health", responses=unavailable, operation_id="health")
    async def health() -> Response:
        """Say whether the process and its engines live; 503 where one of them died: start the server anew."""
        if failed := operation.failures:
            return JSONResponse({"status": "failed", "engines": list(failed)}, 503)
        return JSONResponse({"status": "ok"})

    @router.api_route("/ready", methods=["GET", "HEAD"], responses=unavailable, include_in_schema=False)
    @router.get("/ready", responses=unavailable, operation_id="ready")
    async def ready() -> Response:
        """Say whether requests are taken; 503 while models load and while the server stops."""
        is_ready = operation.phase == "ready" and not operation.failures
        phase = "failed" if operation.failures else operation.phase
        headers = None if is_ready else {"retry-after": "5"}
        return JSONResponse({"status": phase}, 200 if is_ready else 503, headers)

    @router.get("/version", operation_id="version")
    async def version() -> dict[str, str]:
        """Say which version of reason-spec runs."""
        return {"version": __version__}

    @router.get("/metrics", response_class=PlainTextResponse, operation_id="metrics")
    async def metrics() -> Response:
        """Return all counts in Prometheus' text form."""
        return Response(operation.metrics.render(), media_type=CONTENT_TYPE)

    return router
