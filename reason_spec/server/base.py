"""What the parts of the server agree on: who asks, and errors in OpenAI's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request: found from its key, never from its body.

    ``trusted`` clients may choose how they are sped up (``reason_spec`` in the body), and are told what
    it did.
    """

    tenant: str
    trusted: bool = False


class ApiError(Exception):
    """An answer with an error status, in OpenAI's form."""

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
