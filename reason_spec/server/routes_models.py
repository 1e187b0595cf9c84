"""``GET /v1/models``."""

from __future__ import annotations

from fastapi import APIRouter, Request

from reason_spec.server.api_request import ERRORS, ApiRequest, AppContext
from reason_spec.server.reply_bodies import ModelBody, ModelList

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=ERRORS, summary="What is served")
async def list_models(request: Request) -> ModelList:
    """Every name refers to the one target."""
    api = ApiRequest(request)
    return {"object": "list", "data": [_model(api.context, name) for name in api.context.models]}


@router.get("/v1/models/{name:path}", responses=ERRORS, summary="One name that is served")
async def retrieve_model(name: str, request: Request) -> ModelBody:
    """A name may hold slashes."""
    api = ApiRequest(request)
    api.check_model(name)
    return _model(api.context, name)


def _model(context: AppContext, name: str) -> ModelBody:
    return {
        "id": name,
        "object": "model",
        "created": int(context.started),
        "owned_by": "reason-spec",
        "root": context.models[0],
        "parent": None,
        "max_model_len": context.max_context,
    }
