"""Clients, and errors in OpenAI's form: what all parts of the server share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.responses import JSONResponse

from reason_spec.chat.base import ChatEvent, PredictedCall

CLIENT_GONE = 499
"""Status in the log of a request whose client closed the connection; nginx uses it too."""


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request, found from its key, never from the body.

    ``trusted`` clients may set speculation options (``reason_spec`` in the body) and see what it did.
    """

    tenant: str
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class PredictedCallsEvent:
    """The predicted calls, likeliest first; sent before all else of an answer."""

    calls: tuple[PredictedCall, ...]


StreamEvent: TypeAlias = ChatEvent | PredictedCallsEvent


class ClientGoneError(Exception):
    """The client closed its connection, or does not read its response."""


class ApiError(Exception):
    """A response with an error status, in OpenAI's form."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """Return the response, with further ``headers``."""
        found = dict(headers or {})
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        if self.retry_after is not None:
            found["retry-after"] = str(math.ceil(self.retry_after))
        if self.status == 504:
            # OpenAI's clients repeat what a server failed at; this would take as long again.
            found["x-should-retry"] = "false"
        return JSONResponse(self.body(), self.status, found)
