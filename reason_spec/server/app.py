"""The HTTP application: the endpoints over one accelerator, without what guards them."""

from __future__ import annotations

import time

from fastapi import FastAPI

from reason_spec import __version__
from reason_spec.accelerator import Accelerator
from reason_spec.chat.service import Chat
from reason_spec.server import routes_chat, routes_completions, routes_models, routes_responses
from reason_spec.server.admission import Admission
from reason_spec.server.api_request import AppContext, target_name
from reason_spec.server.failures import handle_failures
from reason_spec.server.metrics import Metrics
from reason_spec.settings_server import ServerSettings


def create_app(
    chat: Chat,
    accelerator: Accelerator,
    settings: ServerSettings,
    *,
    admission: Admission | None = None,
    metrics: Metrics | None = None,
) -> FastAPI:
    """Make the application. Whoever calls it starts the accelerator and closes it.

    Args:
        chat: answers; over ``accelerator``.
        admission: whose places requests take; None makes one.
        metrics: counts answers; None makes one that nobody reads.
    """
    app = FastAPI(
        title="reason-spec",
        version=__version__,
        summary="OpenAI's interface over a target that is sped up by speculation.",
        # A closed list of paths; the document itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    models = settings.served_models or (target_name(accelerator.settings.target),)
    app.state.context = AppContext(
        chat=chat,
        accelerator=accelerator,
        settings=settings,
        admission=admission or Admission(settings),
        metrics=metrics or Metrics(models[0]),
        models=models,
        started=time.time(),
    )
    handle_failures(app)
    for module in (routes_chat, routes_completions, routes_models, routes_responses):
        app.include_router(module.router)
    return app
