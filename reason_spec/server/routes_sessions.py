"""``DELETE /v1/sessions/{name}``."""

from __future__ import annotations

from fastapi import APIRouter, Request

from reason_spec.server.api_request import ERRORS, ApiRequest
from reason_spec.server.reply_bodies import EndedSession

router = APIRouter(tags=["sessions"])


@router.delete("/v1/sessions/{name:path}", responses=ERRORS, summary="End a session")
async def end_session(name: str, request: Request) -> EndedSession:
    """Release what is held for a session of the client's tenant, and learn from it."""
    api = ApiRequest(request)
    return {"id": name, "object": "session", "deleted": api.context.sessions.end(api.client.tenant, name)}
