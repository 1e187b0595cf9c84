"""The outermost ASGI layer: paths, keys and bounds are checked before anything of a request is parsed.

Paths are judged as they arrived (``scope["path"]``), never by a URL that is composed from headers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reason_spec.server.base import CLIENT_GONE, ApiError, Client, ClientGoneError
from reason_spec.server.checks import check_json, check_json_type, check_site
from reason_spec.server.keys import KeyRing
from reason_spec.server.logs import ACCESS, Fingerprint, harmless, log
from reason_spec.settings import ServerSettings

logger = logging.getLogger(__name__)
access = logging.getLogger(ACCESS)

_SEND_SECONDS = 60.0
"""Seconds that a client may leave its response unread."""
_END_SECONDS = 2.0
"""Seconds for requests to end after they were cancelled; those of a hanging engine do not."""
_LINGER_BODIES = 4
_LINGER_SECONDS = 5.0
"""If the response is sent before the end of the body, the rest of the body is discarded, within these limits
of time (seconds) and size (multiples of the largest body). Closing a connection with unread bytes would reset
it, and the client would see the reset instead of the response."""

_MODEL, _SESSION = "/v1/models/", "/v1/sessions/"
ROUTES: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("POST",),
    "/v1/completions": ("POST",),
    "/v1/responses": ("POST",),
    "/v1/models": ("GET",),
    f"{_MODEL}*": ("GET",),
    f"{_SESSION}*": ("DELETE",),
    "/health": ("GET", "HEAD"),
    "/ready": ("GET", "HEAD"),
    "/version": ("GET",),
    "/metrics": ("GET",),
    "/openapi.json": ("GET",),
}
"""Methods by path; the path ends with ``*`` where the rest is free."""
_OPEN = ("/health", "/ready")
"""Need no key."""


class Guard:
    """Wraps an application.

    ``scope["state"]`` gives the application ``client`` (`Client`), ``request_id`` (made here, never the
    client's) and ``notes``, a dict whose values are written into the access log. Every response has the
    header ``x-request-id``.

    Args:
        app: the application; may be replaced while the server runs.
        on_response: called with the route and the status of each response.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        settings: ServerSettings,
        *,
        on_response: Callable[[str, int], None] | None = None,
    ) -> None:
        self.app = app
        self.keys = keys
        """May be replaced while the server runs."""
        self._settings = settings
        self._on_response = on_response
        self._fingerprint = Fingerprint()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(_Exchange(scope, receive, send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    @property
    def num_requests(self) -> int:
        """Requests that are running."""
        return len(self._tasks)

    async def drain(self, seconds: float) -> int:
        """Wait for running requests; cancel those that take longer, which get a 503.

        Returns:
            How many were cancelled.
        """
        end = time.monotonic() + seconds
        while self._tasks and (left := end - time.monotonic()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left)
        self._stopping = True
        late = list(self._tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_END_SECONDS)
        return len(late)

    async def _serve(self, exchange: _Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass(exchange)
        except ApiError as error:
            await exchange.fail(error)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            task.uncancel()
            text = "the server was stopped before the answer was complete"
            await exchange.fail(
                ApiError(503, text, kind="server_error", code="server_stopped", retry_after=5)
            )
        except ClientGoneError:
            exchange.status = CLIENT_GONE
        except Exception as error:
            if not (exchange.ended or exchange.gone):
                logger.exception("a request failed", exc_info=error)
            text = f"the server failed at this request; its log has the reason, under {exchange.request_id}"
            await exchange.fail(ApiError(500, text, kind="server_error", code="internal_error"))
        finally:
            self._tasks.discard(task)
            self._log(exchange)
        await exchange.linger(_LINGER_BODIES * self._settings.max_body_bytes)

    async def _pass(self, exchange: _Exchange) -> None:
        """Check a request and pass it to the application."""
        scope, headers = exchange.scope, exchange.headers
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy that believes the other one would find a second request inside the body.
            raise ApiError(400, "Content-Length and Transfer-Encoding exclude each other; send one of them")
        exchange.route = route = _route_of(scope["path"], scope["method"])
        if self.keys.anyone is not None and route not in _OPEN:
            check_site(headers.get("host", ""), headers.get("origin", ""), self._settings.allowed_hosts)
        if not (route in _OPEN or (route == "/metrics" and self._settings.open_metrics)):
            exchange.client = self._client_of(headers)
            if route == "/metrics":
                self._check_metrics(exchange.client)
        receive: Receive = exchange.receive
        if scope["method"] == "POST":
            if headers.get("content-encoding", "identity") != "identity":
                raise ApiError(415, "compressed bodies are not accepted; leave out Content-Encoding")
            check_json_type(headers.getlist("content-type"))
            exchange.body = await self._read_body(exchange)
            check_json(exchange.body)
            receive = _replay(exchange.body, exchange.receive)
        elif exchange.has_body:
            raise ApiError(400, f"{scope['method']} takes no body; leave it out")
        state = scope["state"] = dict(scope.get("state") or {})
        state |= {"client": exchange.client, "request_id": exchange.request_id, "notes": exchange.notes}
        await self.app(scope, receive, exchange.send)

    def _client_of(self, headers: Headers) -> Client:
        """Return the owner of the key that came with a request."""
        if self.keys.anyone is not None:
            return self.keys.anyone
        given = headers.getlist("authorization")
        scheme, _, key = (given[0] if len(given) == 1 else "").partition(" ")
        client = None
        if scheme.lower() == "bearer":
            sent = key.strip(" \t").encode("latin-1").decode("utf-8", "surrogateescape")
            client = self.keys.client_of(sent)
        if client is None:
            text = "a key is needed: send the header Authorization: Bearer KEY"
            if given:
                text = "this is not a key of this server; send one as Authorization: Bearer KEY"
            raise ApiError(401, text, kind="authentication_error", code="invalid_api_key")
        return client

    def _check_metrics(self, client: Client) -> None:
        """Check that a client may see what speculation did for others.

        Raises:
            ApiError: 403, there are keys and this one is not of a trusted client.
        """
        if self.keys.anyone is None and not client.trusted:
            text = (
                "this key may not see the metrics; use one of a trusted client (reason-spec keys new TENANT "
                "--trusted), or serve with server.open_metrics"
            )
            raise ApiError(403, text, kind="permission_error", code="not_trusted")

    async def _read_body(self, exchange: _Exchange) -> bytes:
        """Read a body within the limits of size and time."""
        limit = self._settings.max_body_bytes
        length = exchange.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise ApiError(400, "Content-Length is not a number")
        parts: list[bytes] = []
        num_bytes, num_read = int(length), 0
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                more = True
                while more and max(num_bytes, num_read) <= limit:
                    message = await exchange.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    parts.append(message.get("body", b""))
                    num_read += len(parts[-1])
                    more = message.get("more_body", False)
        except TimeoutError:
            text = f"the body did not arrive within {self._settings.body_timeout:g} seconds"
            raise ApiError(408, text, code="request_timeout") from None
        if max(num_bytes, num_read) > limit:
            text = f"the body is longer than {limit} bytes (server.max_body_bytes)"
            raise ApiError(413, text, code="request_too_large")
        return b"".join(parts)

    def _log(self, exchange: _Exchange) -> None:
        if self._on_response is not None:
            self._on_response(exchange.route, exchange.status)
        body = exchange.body
        fields: dict[str, Any] = {
            "request_id": exchange.request_id,
            "client_request_id": harmless(exchange.headers.get("x-request-id", "")),
            "tenant": exchange.client.tenant if exchange.client else None,
            "method": harmless(exchange.scope["method"]),
            "path": exchange.route,
            "status": exchange.status,
            "seconds": round(time.perf_counter() - exchange.started, 6),
            "bytes_in": len(body),
            "bytes_out": exchange.num_sent,
            "body_hash": self._fingerprint.of(body) if body else None,
        }
        if self._settings.log_prompts and body:
            fields["body"] = body.decode("utf-8", "replace")
        is_check = exchange.route in (*_OPEN, "/metrics")
        log(access, logging.DEBUG if is_check else logging.INFO, "request", **(exchange.notes | fields))


class _Exchange:
    """A request, and how much of its response was sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.request_id = f"req-{secrets.token_hex(12)}"
        self.client: Client | None = None
        self.route = "unknown"
        self.started = time.perf_counter()
        self.status = CLIENT_GONE
        self.notes: dict[str, Any] = {}
        self.body = b""
        self.num_sent = 0
        self.gone = False
        self.ended = False
        self._receive = receive
        self._send = send
        self._is_stream = False
        self._has_started = False
        self._body_ended = False
        self._lingers = False

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"

    @property
    def _is_still_sent(self) -> bool:
        return self.has_body and not (self._body_ended or self.gone)

    async def receive(self) -> Message:
        message = await self._receive()
        self.gone = self.gone or message["type"] == "http.disconnect"
        self._body_ended = self._body_ended or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response.

        Raises:
            ClientGoneError: the client does not read.
        """
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"x-request-id"]
            headers.append((b"x-request-id", self.request_id.encode()))
            message = {**message, "headers": headers}
            self.status, self._has_started = message["status"], True
            self._is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
        elif message["type"] == "http.response.body":
            self.num_sent += len(message.get("body", b""))
            self.ended = not message.get("more_body", False)
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._send(message)
        except TimeoutError:
            self.gone = True
            raise ClientGoneError from None

    async def fail(self, error: ApiError) -> None:
        """Send an error, or end a stream with one; do nothing if the response is complete."""
        if self.ended or self.gone:
            return
        self.notes["code"] = error.code
        try:
            if not self._has_started:
                response = error.response()
                self._lingers = self._is_still_sent
                if self._lingers:
                    response.headers["connection"] = "close"
                head = {"status": error.status, "headers": response.raw_headers}
                await self.send({"type": "http.response.start", **head})
                await self.send(
                    {"type": "http.response.body", "body": response.body, "more_body": self._lingers}
                )
            elif self._is_stream:
                event = f"data: {json.dumps(error.body())}\n\n".encode()
                await self.send({"type": "http.response.body", "body": event, "more_body": False})
        except ClientGoneError:
            pass

    async def linger(self, num_bytes: int) -> None:
        """Discard the rest of the body, within limits, then end the response."""
        if not self._lingers:
            return
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while num_bytes > 0 and self._is_still_sent:
                    num_bytes -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
        if not self.gone:
            with suppress(ClientGoneError):
                await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def _route_of(path: str, method: str) -> str:
    """Return the entry of `ROUTES` for a path.

    Raises:
        ApiError: 404, 405.
    """
    begun = next((one for one in (_MODEL, _SESSION) if path.startswith(one) and path != one), None)
    route = path if begun is None else f"{begun}*"
    if route not in ROUTES:
        raise ApiError(404, "there is nothing at this path", code="not_found")
    if method not in ROUTES[route]:
        raise ApiError(405, f"this path takes {', '.join(ROUTES[route])}", code="method_not_allowed")
    return route


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a callable that gives the body that was read, and then what ``receive`` gives."""
    done = False

    async def replayed() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
