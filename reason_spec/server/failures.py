"""Every failure as an error in OpenAI's form: what was wrong, where, and no traceback."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from reason_spec.errors import EngineError, RequestError
from reason_spec.server.base import ApiError
from reason_spec.server.disconnect import ClientGoneError

logger = logging.getLogger(__name__)
_CLIENT_CLOSED_REQUEST = 499
"""As nginx has it; nobody reads it but logs."""


def handle_failures(app: FastAPI) -> None:
    """Make an app answer every failure in OpenAI's form."""
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(ClientGoneError, _answer_nobody)
    for kind in (ApiError, RequestError, EngineError, Exception):
        app.add_exception_handler(kind, _answer_failure)


def api_error(failure: BaseException, request_id: str) -> ApiError:
    """Return what a client is told of a failure; what is the server's own fault goes into the log alone."""
    match failure:
        case ApiError():
            return failure
        case RequestError():
            return ApiError(400, str(failure), param=failure.param)
        case EngineError():
            logger.error("request %s: an engine failed: %s", request_id, failure)
            message = f"the engine failed while it wrote; the server's log says why, under {request_id}"
            return ApiError(500, message, kind="server_error", code="engine_error")
        case _:
            logger.error("request %s: failed", request_id, exc_info=failure)
            message = f"the server made a mistake; its log says which, under {request_id}"
            return ApiError(500, message, kind="server_error", code="internal_error")


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response for an error."""
    found = dict(headers or {})
    if error.retry_after is not None:
        found["retry-after"] = str(math.ceil(error.retry_after))
    return JSONResponse(error.body(), error.status, found)


def request_id_of(request: Request) -> str:
    """Return the id that the server gave a request."""
    return str(getattr(request.state, "request_id", "-"))


def _answer_failure(request: Request, failure: Exception) -> Response:
    return error_response(api_error(failure, request_id_of(request)))


def _answer_nobody(_request: Request, _failure: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


def _answer_http(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    messages = {404: f"there is no {request.url.path!r} here", 405: f"{request.method} is not taken here"}
    error = ApiError(failure.status_code, messages.get(failure.status_code, str(failure.detail)))
    return error_response(error, failure.headers)


def _answer_invalid(_request: Request, failure: Exception) -> Response:
    assert isinstance(failure, RequestValidationError)
    return error_response(_invalid(failure.errors(), failure.body))


def _invalid(mistakes: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """Return the error for the deepest mistake: of a union's forms that is the one that was meant."""
    mistake, place = max(
        ((mistake, _place(mistake, body)) for mistake in mistakes), key=lambda found: len(found[1])
    )
    if mistake["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {mistake['ctx']['error']}", code="invalid_json")
    if not place:
        return ApiError(400, f"the body: {mistake['msg']}; send a JSON object as application/json")
    param = ".".join(map(str, place))
    codes = {"unknown_field": "unknown_parameter", "refused_field": "unsupported_parameter"}
    return ApiError(400, f"{param}: {mistake['msg']}", param=param, code=codes.get(mistake["type"]))


def _place(mistake: Mapping[str, Any], body: Any) -> tuple[str | int, ...]:
    """Return where in the body a mistake is; pydantic's names for the forms of a union are left out."""
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
