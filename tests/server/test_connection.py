"""Connections as clients open them, on real sockets: slow, too many, ambiguous, sending on, not reading."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from reason_spec.server import connection
from reason_spec.server.base import Client
from reason_spec.server.connection import http_config
from reason_spec.server.guard import Guard
from reason_spec.server.keys import KeyRing
from reason_spec.settings import ServerSettings

PATIENCE_SECONDS = 60.0
OPEN = KeyRing({}, anyone=Client("default"))
CLOSED = KeyRing({bytes(32): Client("ana")})
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.server.guard._LINGER_SECONDS", 1.0)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body."""
    body = (await receive())["body"] if scope["method"] == "POST" else b"{}"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def listening(
    ring: KeyRing = OPEN,
    header_seconds: float = PATIENCE_SECONDS,
    app: ASGIApp = echo,
    **values: Any,
) -> AsyncIterator[int]:
    """Serve an application behind the guard, as `serve` does; yields the port."""
    settings = ServerSettings(**values)
    server = uvicorn.Server(http_config(Guard(app, ring, settings), settings))
    taken = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([taken]))
    try:
        while not server.started:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        with patch.object(connection, "_HEADER_SECONDS", header_seconds):
            yield taken.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def raw(port: int, *parts: bytes) -> bytes:
    """Send bytes as they are; return all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            return await reader.read()
    finally:
        writer.close()


async def rest_while(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> bytes:
    """Go on sending, little by little, until the server closes; return what it said."""
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reading.done():
            writer.write(sent)
            await asyncio.sleep(0.01)
    writer.close()
    return await reading


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# Slow headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"", b"GET /he", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_headers_have_their_time_from_the_start_of_the_connection(start: bytes) -> None:
    async with listening(header_seconds=0.2) as port:
        answers = await asyncio.gather(*(raw(port, start) for _ in range(30)))
        assert {status(answer) for answer in answers} == {408}
        assert b"request_timeout" in answers[0]


async def test_headers_that_drip_get_no_more_time() -> None:
    async with listening(header_seconds=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nX: ")
        assert status(await rest_while(reader, writer, b"x")) == 408


async def test_a_connection_that_is_kept_has_as_much_time_for_each_headers() -> None:
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with listening(header_seconds=0.3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(2):
                writer.write(whole)
                assert status(await reader.readuntil(b"\r\n\r\n{}")) == 200
                await asyncio.sleep(0.5)  # idle is not slow
            writer.write(whole + whole[:10])
            assert status(await reader.readuntil(b"\r\n\r\n{}")) == 200
            assert status(await reader.read()) == 408
        writer.close()


async def test_a_slow_body_has_a_time_of_its_own() -> None:
    async with listening(header_seconds=0.5, body_timeout=1) as port:
        answer = await raw(port, HEAD + b"Content-Length: 100\r\n\r\n{", *[b" "] * 60)
        assert status(answer) == 408
        assert b"the body did not arrive" in answer


# Too many ------------------------------------------------------------------------------------


async def test_connections_beyond_their_number_are_refused_and_places_come_back() -> None:
    async with listening(max_running_requests=1, max_queued_requests=1) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await raw(port, whole)
        assert status(answer) == 503
        assert b"retry-after" in answer
        assert b"too_many_connections" in answer
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while status(await raw(port, whole)) != 200:  # noqa: ASYNC110 - closing takes a moment
                await asyncio.sleep(0.05)


# What others may read otherwise --------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: y\n",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
)
async def test_ambiguous_headers_are_refused_and_the_connection_ends(request_: bytes) -> None:
    async with listening() as port:
        answer = await raw(port, request_)
        assert status(answer) == 400
        assert b"connection: close" in answer.lower()
        json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_bare_line_feed_in_a_second_request_is_refused_too() -> None:
    body = b'{\n "a": 1\n}'
    first = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with listening() as port:
        answer = await raw(port, first + b"GET /health HTTP/1.1\nHost: localhost\r\n\r\n")
        assert status(answer) == 200
        assert body in answer
        assert status(answer.partition(body)[2]) == 400


async def test_headers_may_come_in_pieces() -> None:
    async with listening() as port:
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert status(await raw(port, *(whole[at : at + 1] for at in range(len(whole))))) == 200


# Still sending -------------------------------------------------------------------------------


@pytest.mark.parametrize(("ring", "expected"), [(CLOSED, 401), (OPEN, 413)])
async def test_the_answer_comes_while_the_body_is_still_sent(ring: KeyRing, expected: int) -> None:
    async with listening(ring) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = time.monotonic()
        writer.write(HEAD + b"Content-Length: 1000000000\r\n\r\n" + b" " * 100_000)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await reader.readuntil(b"}}")
            assert time.monotonic() - began < 10
            assert status(answer) == expected
        # The client saw its answer; one that goes on for ever is cut off.
        with suppress(ConnectionResetError):
            assert await rest_while(reader, writer, b" ") == b""


@pytest.mark.parametrize(("ring", "expected"), [(CLOSED, 401), (OPEN, 413)])
async def test_a_client_that_sends_all_before_it_reads_sees_the_answer(ring: KeyRing, expected: int) -> None:
    async with listening(ring) as port, httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        for _ in range(5):
            headers = {"content-type": "application/json"}
            answer = await http.post(url, content=b" " * (12 << 20), headers=headers)
            assert answer.status_code == expected


# Not reading ---------------------------------------------------------------------------------


def parts_of(num_parts: int) -> ASGIApp:
    """Make an application that answers with so many parts, each larger than the buffers of a connection."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = b"{}" if scope["path"] == "/health" else b" " * (16 << 20)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for num_left in reversed(range(num_parts)):
            await send({"type": "http.response.body", "body": body, "more_body": num_left > 0})

    return app


def asked(port: int, header: bytes) -> socket.socket:
    """Send a request from a client that can take little of its response at once."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n")
    return client


@pytest.mark.parametrize(
    ("num_parts", "header"),
    [(2, b""), (1, b"Connection: close\r\n"), (1, b"")],
    ids=["incomplete", "closed by the response", "idle"],
)
async def test_places_of_clients_that_do_not_read_come_back(
    num_parts: int, header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reason_spec.server.guard._SEND_SECONDS", 0.1)
    monkeypatch.setattr(connection, "_KEEP_ALIVE_SECONDS", 0)
    monkeypatch.setattr(connection, "_UNREAD_SECONDS", 0.2)
    async with listening(app=parts_of(num_parts), max_running_requests=1, max_queued_requests=1) as port:
        held = [asked(port, header) for _ in range(4)]
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert status(await raw(port, whole)) == 503
        async with asyncio.timeout(PATIENCE_SECONDS):
            while status(await raw(port, whole)) != 200:  # noqa: ASYNC110 - closing takes a moment
                await asyncio.sleep(0.05)
        for client in held:
            client.close()


async def test_a_client_that_reads_slowly_gets_the_whole_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_UNREAD_SECONDS", 1.0)
    async with listening(app=parts_of(1)) as port:
        reader, writer = await asyncio.open_connection(sock=asked(port, b"Connection: close\r\n"))
        num_read = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while part := await reader.read(1 << 20):
                num_read += len(part)
                await asyncio.sleep(0.02)
        writer.close()
    assert num_read > 16 << 20
