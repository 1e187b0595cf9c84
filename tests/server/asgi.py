"""Requests to an ASGI application, without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp

Header = tuple[str, str]


@dataclass
class Exchange:
    """A request, and what comes back as it comes."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    task: asyncio.Task[None] | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    num_received: int = 0

    @property
    def error(self) -> dict[str, Any]:
        error = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return dict(error)


def begin(
    app: ASGIApp,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    *,
    headers: Sequence[Header] = (),
    body: bytes | Sequence[bytes] = b"{}",
    ends: bool = True,
    content_type: str | None = "application/json",
) -> Exchange:
    """Send a request; a body of several parts arrives in as many messages, without its length."""
    exchange = Exchange()
    parts = [body] if isinstance(body, bytes) else list(body)
    sent = [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers]
    if isinstance(body, bytes) and method == "POST":
        sent.append((b"content-length", str(len(body)).encode()))
    if content_type is not None and method == "POST":
        sent.append((b"content-type", content_type.encode()))

    async def receive() -> dict[str, Any]:
        number = exchange.num_received
        exchange.num_received += 1
        if number < len(parts):
            more = number + 1 < len(parts) or not ends
            return {"type": "http.request", "body": parts[number], "more_body": more}
        await exchange.gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert exchange.status is None
            exchange.status = message["status"]
            exchange.headers = {key.decode().lower(): value.decode() for key, value in message["headers"]}
        else:
            assert not exchange.complete
            exchange.body += message.get("body", b"")
            exchange.complete = not message.get("more_body", False)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "query_string": b"",
        "headers": sent,
        "state": {},
    }
    exchange.task = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    return exchange


async def ask(app: ASGIApp, *arguments: Any, **options: Any) -> Exchange:
    """Send a request and wait for all of its answer."""
    exchange = begin(app, *arguments, **options)
    assert exchange.task is not None
    await exchange.task
    return exchange
