"""Failures of the application as errors in OpenAI's form: the fault, its place, and no traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from reason_spec.errors import EngineError, RequestError
from reason_spec.server.base import CLIENT_GONE, ApiError, ClientGoneError

logger = logging.getLogger(__name__)


def handle_failures(app: FastAPI) -> None:
    """Make an app respond to every failure in OpenAI's form."""
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGoneError, lambda *_: Response(status_code=CLIENT_GONE))
    for kind in (ApiError, RequestError, EngineError, Exception):
        app.add_exception_handler(kind, _failure)


def api_error(failure: BaseException, request_id: str) -> ApiError:
    """Return the error that a client sees; faults of the server are described in the log alone."""
    match failure:
        case ApiError():
            return failure
        case RequestError():
            return ApiError(400, str(failure), param=failure.param)
        case EngineError():
            logger.error("request %s: an engine failed: %s", request_id, failure)
            message = f"the engine failed; the server's log has the reason, under {request_id}"
            return ApiError(500, message, kind="server_error", code="engine_error")
        case _:
            logger.error("request %s: failed", request_id, exc_info=failure)
            message = f"the server failed; its log has the reason, under {request_id}"
            return ApiError(500, message, kind="server_error", code="internal_error")


def _failure(request: Request, failure: Exception) -> Response:
    return api_error(failure, str(getattr(request.state, "request_id", "-"))).response()


def _http_error(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    messages = {404: f"there is no {request.url.path!r} here", 405: f"{request.method} is not allowed here"}
    error = ApiError(failure.status_code, messages.get(failure.status_code, str(failure.detail)))
    return error.response(failure.headers)


def _invalid_body(_request: Request, failure: Exception) -> Response:
    assert isinstance(failure, RequestValidationError)
    return _invalid(failure.errors(), failure.body).response()


def _invalid(mistakes: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """Return the error for the deepest mistake: among the forms of a union, that one was meant."""
    found = ((mistake, _place(mistake, body)) for mistake in mistakes)
    mistake, place = max(found, key=lambda one: len(one[1]))
    if mistake["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {mistake['ctx']['error']}", code="invalid_json")
    if not place:
        return ApiError(400, f"the body: {mistake['msg']}; send a JSON object as application/json")
    param = ".".join(map(str, place))
    codes = {"unknown_field": "unknown_parameter", "refused_field": "unsupported_parameter"}
    return ApiError(400, f"{param}: {mistake['msg']}", param=param, code=codes.get(mistake["type"]))


def _place(mistake: Mapping[str, Any], body: Any) -> tuple[str | int, ...]:
    """Return the path of a mistake in the body, without pydantic's names for the forms of a union."""
    path = mistake["loc"][1:] if mistake["loc"][:1] == ("body",) else mistake["loc"]
    found: list[str | int] = []
    for position, part in enumerate(path, start=1):
        is_index = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if is_index or (isinstance(body, dict) and part in body):
            body = body[part]
        elif not (mistake["type"] == "missing" and position == len(path)):
            continue
        found.append(part)
    if mistake["type"] in ("unknown_field", "refused_field"):
        name = mistake["ctx"]["name"]
        if not (found and found[-1] == name):
            found.append(name)
    return tuple(found)
