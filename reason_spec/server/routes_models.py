"""``GET /v1/models``."""

from __future__ import annotations

from fastapi import APIRouter, Request

from reason_spec.server.replies import ModelBody, ModelList
from reason_spec.server.service import ERRORS, Call

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=ERRORS, summary="What is served")
async def list_models(request: Request) -> ModelList:
    """Every name stands for the one target."""
    call = Call(request)
    return {"object": "list", "data": [_model(call, name) for name in call.service.models]}


@router.get("/v1/models/{name:path}", responses=ERRORS, summary="One name that is served")
async def retrieve_model(name: str, request: Request) -> ModelBody:
    """A name may hold slashes."""
    call = Call(request)
    call.check_model(name)
    return _model(call, name)


def _model(call: Call, name: str) -> ModelBody:
    service = call.service
    return {
        "id": name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "reason-spec",
        "root": service.models[0],
        "parent": None,
        "max_model_len": service.max_context,
    }
