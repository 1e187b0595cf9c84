"""The HTTP applications: one that serves, one while models load, and the operator's routes in both."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reason_spec import __version__
from reason_spec.accelerator import Accelerator
from reason_spec.chat.service import Chat
from reason_spec.engines.base import Engine
from reason_spec.server import (
    routes_chat,
    routes_completions,
    routes_models,
    routes_responses,
    routes_sessions,
)
from reason_spec.server.admission import Admission
from reason_spec.server.api_request import AppContext, target_name
from reason_spec.server.base import ApiError
from reason_spec.server.failures import handle_failures
from reason_spec.server.metrics import CONTENT_TYPE, Metrics
from reason_spec.server.predicted_calls import CallPredictions
from reason_spec.server.sessions import Sessions
from reason_spec.settings import ServerSettings

Phase: TypeAlias = Literal["starting", "ready", "draining"]
_RETRY_SECONDS = 5.0


@dataclass(slots=True)
class Operation:
    """The state of the server: written by `Server`, read by the operator's routes."""

    metrics: Metrics
    phase: Phase = "starting"
    engines: tuple[Engine, ...] = field(default_factory=tuple)
    """The target comes first: without it no request can be served."""

    @property
    def troubles(self) -> dict[str, str]:
        """The faults of dead or hanging engines, by their names."""
        return {engine.name: engine.trouble for engine in self.engines if engine.trouble is not None}

    @property
    def is_ready(self) -> bool:
        """Whether requests are served; the draft may be missing, the target may not."""
        return self.phase == "ready" and all(engine.trouble is None for engine in self.engines[:1])


def create_app(
    chat: Chat,
    accelerator: Accelerator,
    settings: ServerSettings,
    *,
    admission: Admission | None = None,
    metrics: Metrics | None = None,
    operation: Operation | None = None,
    predictions: CallPredictions | None = None,
) -> FastAPI:
    """Make the application. The caller starts and closes the accelerator.

    Args:
        chat: answers; over ``accelerator``.
        admission: admits requests; None makes one.
        metrics: counts answers; None makes one.
        operation: adds the operator's routes.
        predictions: predicts calls; the caller closes it. None: no calls are predicted.
    """
    app = FastAPI(
        title="reason-spec",
        version=__version__,
        summary="OpenAI's interface over a target that is sped up by speculation.",
        # The guard lets a closed list of paths pass; the document is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    models = settings.served_models or (target_name(accelerator.settings.target),)
    metrics = metrics or Metrics(models[0])
    sessions = Sessions(accelerator, predictions)
    metrics.watch_sessions(lambda: len(sessions))
    app.state.context = AppContext(
        chat=chat,
        accelerator=accelerator,
        settings=settings,
        admission=admission or Admission(settings, metrics),
        metrics=metrics,
        models=models,
        started=time.time(),
        sessions=sessions,
        predictions=predictions,
    )
    handle_failures(app)
    for module in (routes_chat, routes_completions, routes_models, routes_responses, routes_sessions):
        app.include_router(module.router)
    if operation is not None:
        app.include_router(_operator_routes(operation))
    return app


def starting_app(operation: Operation) -> ASGIApp:
    """Return the application that responds while models load."""
    app = FastAPI(openapi_url=None)
    app.include_router(_operator_routes(operation))
    paths = {getattr(route, "path", None) for route in app.routes}

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in paths:
            text = "the models are being loaded; retry in a moment"
            raise ApiError(503, text, kind="server_error", code="starting", retry_after=_RETRY_SECONDS)
        await app(scope, receive, send)

    return respond


def _operator_routes(operation: Operation) -> APIRouter:
    router = APIRouter(tags=["operation"])
    unavailable: dict[int | str, dict[str, Any]] = {503: {"description": "not now"}}

    @router.api_route("/health", methods=["GET", "HEAD"], responses=unavailable, include_in_schema=False)
    @router.get("/health", responses=unavailable, operation_id="health")
    async def health() -> Response:
        """Return whether the process and its engines live; 503 with the reason if one died or hangs."""
        if troubles := operation.troubles:
            return JSONResponse({"status": "failed", "engines": troubles}, 503)
        return JSONResponse({"status": "ok"})

    @router.api_route("/ready", methods=["GET", "HEAD"], responses=unavailable, include_in_schema=False)
    @router.get("/ready", responses=unavailable, operation_id="ready")
    async def ready() -> Response:
        """Return whether requests are served; 503 while models load, without the target, and at the end."""
        is_ready = operation.is_ready
        body: dict[str, Any] = {"status": operation.phase}
        if troubles := operation.troubles:
            body = {"status": operation.phase if is_ready else "failed", "engines": troubles}
        headers = None if is_ready else {"retry-after": f"{_RETRY_SECONDS:g}"}
        return JSONResponse(body, 200 if is_ready else 503, headers)

    @router.get("/version", operation_id="version")
    async def version() -> dict[str, str]:
        """Return the version of reason-spec."""
        return {"version": __version__}

    @router.get("/metrics", response_class=PlainTextResponse, operation_id="metrics")
    async def metrics() -> Response:
        """Return all metrics in the text format of Prometheus."""
        return Response(operation.metrics.render(), media_type=CONTENT_TYPE)

    return router
