"""What stands in front of every route: it lets through what is listed, from whom it knows, within bounds.

Pure ASGI, and the outermost layer: nothing of a request is parsed before it was let through. Paths are
judged as they arrived (``scope["path"]``), never by a URL that is put together from headers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from reason_spec.server.base import ApiError, Client
from reason_spec.server.checks import check_json, check_json_type, check_site
from reason_spec.server.keys import KeyRing
from reason_spec.server.logs import ACCESS, Fingerprint, harmless, log
from reason_spec.settings import ServerSettings

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)
access = logging.getLogger(ACCESS)

_CLIENT_GONE = 499
_END_SECONDS = 2.0
"""Seconds for requests to end after they were cancelled; those of a hanging engine do not."""
_LINGER_BODIES = 4
_LINGER_SECONDS = 5.0
"""If the response is sent before the end of the body, the rest of the body is discarded, within these limits
of time (seconds) and size (multiples of the largest body). Closing a connection with unread bytes would reset
it, and the client would see the reset instead of the response."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path that is let through; with ``*`` at its end all that begin with it and go on.

    ``is_open``: without a key.
    """

    path: str
    methods: tuple[str, ...]
    is_open: bool = False

    def matches(self, path: str) -> bool:
        if self.path.endswith("*"):
            return path.startswith(self.path[:-1]) and len(path) >= len(self.path)
        return path == self.path


ROUTES = (
    Route("/v1/chat/completions", ("POST",)),
    Route("/v1/completions", ("POST",)),
    Route("/v1/responses", ("POST",)),
    Route("/v1/models", ("GET",)),
    Route("/v1/models/*", ("GET",)),
    Route("/health", ("GET", "HEAD"), is_open=True),
    Route("/ready", ("GET", "HEAD"), is_open=True),
    Route("/version", ("GET",)),
    Route("/metrics", ("GET",)),
    Route("/openapi.json", ("GET",)),
)


class Guard:
    """Wraps an application.

    To the application ``scope["state"]`` says ``client`` (`Client`), ``request_id`` (ours, never the
    client's) and ``notes``, a dict whose values are written into the access log. Every response has the
    header ``x-request-id``.

    Args:
        app: what is guarded; may be replaced while the server runs.
        on_response: told of the route and the status of each response.
    """

    def __init__(
        self,
        app: App,
        keys: KeyRing,
        settings: ServerSettings,
        *,
        routes: Iterable[Route] = ROUTES,
        on_response: Callable[[str, int], None] | None = None,
    ) -> None:
        self.app = app
        self.keys = keys
        """May be replaced while the server runs."""
        self._settings = settings
        self._routes = tuple(routes)
        self._on_response = on_response
        self._fingerprint = Fingerprint()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(_Exchange(scope, receive, send, self._settings.send_timeout))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    @property
    def num_requests(self) -> int:
        """Requests that are under way."""
        return len(self._tasks)

    async def drain(self, seconds: float) -> int:
        """Wait for requests under way, and end those that take longer, each with an answer that says so.

        Returns:
            How many were ended.
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
            await self._let_through(exchange)
        except ApiError as error:
            await exchange.fail(error)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            task.uncancel()
            await exchange.fail(_stopped())
        except ClientGoneError:
            exchange.status = _CLIENT_GONE
        except Exception as error:
            if not (exchange.ended or exchange.gone):
                logger.exception("a request failed", exc_info=error)
            await exchange.fail(_our_fault(exchange.request_id))
        finally:
            self._tasks.discard(task)
            self._log(exchange)
        await exchange.linger(_LINGER_BODIES * self._settings.max_body_bytes)

    async def _let_through(self, exchange: _Exchange) -> None:
        scope = exchange.scope
        if exchange.all_headers(b"transfer-encoding") and exchange.all_headers(b"content-length"):
            # Where a proxy believes the one and the server the other, one request holds another.
            raise ApiError(400, "Content-Length and Transfer-Encoding exclude each other; send one of them")
        route = self._route_of(scope["path"], scope["method"])
        exchange.route = route.path
        if self.keys.anyone is not None and not route.is_open:
            host, origin = exchange.header(b"host"), exchange.header(b"origin")
            check_site(host, origin, self._settings.allowed_hosts)
        is_open = route.is_open or (route.path == "/metrics" and self._settings.open_metrics)
        client = None if is_open else self._client_of(exchange)
        exchange.client = client
        receive: Receive = exchange.receive
        if scope["method"] == "POST":
            if exchange.header(b"content-encoding", b"identity") != b"identity":
                raise ApiError(415, "compressed bodies are not taken; leave out Content-Encoding")
            check_json_type(exchange.all_headers(b"content-type"))
            exchange.body = await self._read_body(exchange)
            check_json(exchange.body)
            receive = _replay(exchange.body, exchange.receive)
        elif exchange.has_body:
            raise ApiError(400, f"{scope['method']} takes no body; leave it out")
        state = scope["state"] = dict(scope.get("state") or {})
        state |= {"client": client, "request_id": exchange.request_id, "notes": exchange.notes}
        await self.app(scope, receive, exchange.send)

    def _route_of(self, path: str, method: str) -> Route:
        found = [route for route in self._routes if route.matches(path)]
        if not found:
            raise ApiError(404, "there is nothing at this path", code="not_found")
        for route in found:
            if method in route.methods:
                return route
        allowed = ", ".join(sorted({name for route in found for name in route.methods}))
        raise ApiError(405, f"this path takes {allowed}", code="method_not_allowed")

    def _client_of(self, exchange: _Exchange) -> Client:
        """Return whose key came with a request."""
        if self.keys.anyone is not None:
            return self.keys.anyone
        given = exchange.all_headers(b"authorization")
        scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
        client = None
        if scheme.lower() == b"bearer":
            client = self.keys.client_of(key.strip().decode("utf-8", "surrogateescape"))
        if client is None:
            text = "a key is needed: send the header Authorization: Bearer KEY"
            if given:
                text = "this is not a key of this server; send one as Authorization: Bearer KEY"
            raise ApiError(401, text, kind="authentication_error", code="invalid_api_key")
        return client

    async def _read_body(self, exchange: _Exchange) -> bytes:
        """Read a body within its bounds; nothing is parsed that is longer or slower."""
        limit = self._settings.max_body_bytes
        length = exchange.header(b"content-length", b"0")
        if not length.isdigit():
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
            "client_request_id": harmless(exchange.header(b"x-request-id").decode("latin-1")),
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
        is_check = exchange.route in ("/health", "/ready", "/metrics")
        log(access, logging.DEBUG if is_check else logging.INFO, "request", **(exchange.notes | fields))


class ClientGoneError(OSError):
    """The client left, or does not read what it is sent."""


class _Exchange:
    """A request and what has been answered to it so far."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, send_timeout: float) -> None:
        self.scope = scope
        self.request_id = f"req-{secrets.token_hex(12)}"
        self.client: Client | None = None
        self.route = "unknown"
        self.started = time.perf_counter()
        self.status = _CLIENT_GONE
        self.notes: dict[str, Any] = {}
        self.body = b""
        self.num_sent = 0
        self.gone = False
        self._receive = receive
        self._send = send
        self._send_timeout = send_timeout
        self._is_stream = False
        self._started = False
        self._body_ended = False
        self._lingers = False
        self.ended = False

    @property
    def has_body(self) -> bool:
        return bool(self.all_headers(b"transfer-encoding")) or self.header(b"content-length", b"0") != b"0"

    @property
    def _is_still_sent(self) -> bool:
        return self.has_body and not (self._body_ended or self.gone)

    def all_headers(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.scope["headers"] if key.lower() == name]

    def header(self, name: bytes, default: bytes = b"") -> bytes:
        return next(iter(self.all_headers(name)), default)

    async def receive(self) -> Message:
        message = await self._receive()
        self.gone = self.gone or message["type"] == "http.disconnect"
        self._body_ended = self._body_ended or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Pass a part of the response on.

        Raises:
            ClientGoneError: the client does not read.
        """
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"x-request-id"]
            headers.append((b"x-request-id", self.request_id.encode()))
            message = {**message, "headers": headers}
            self.status, self._started = message["status"], True
            self._is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
        elif message["type"] == "http.response.body":
            self.num_sent += len(message.get("body", b""))
            self.ended = not message.get("more_body", False)
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._send(message)
        except TimeoutError:
            self.gone = True
            raise ClientGoneError from None

    async def fail(self, error: ApiError) -> None:
        """Answer with an error, or end a stream with one; where an answer has ended, do nothing."""
        if self.ended or self.gone:
            return
        self.notes["code"] = error.code
        try:
            if not self._started:
                await self._answer(error)
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
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, error: ApiError) -> None:
        body = json.dumps(error.body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if error.retry_after is not None:
            headers.append((b"retry-after", str(math.ceil(error.retry_after)).encode()))
        self._lingers = self._is_still_sent
        if self._lingers:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": self._lingers})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what hands out a body that was read, and then tells whether the client is gone."""
    done = False

    async def replayed() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _stopped() -> ApiError:
    text = "the server was stopped before the answer was complete"
    return ApiError(503, text, kind="server_error", code="server_stopped", retry_after=5)


def _our_fault(request_id: str) -> ApiError:
    text = f"the server failed at this request; its log says more under {request_id}"
    return ApiError(500, text, kind="server_error", code="internal_error")
