"""The guard: what is not listed does not pass, nor who is not known, nor what is too large."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from reason_spec.server.base import ApiError, Client
from reason_spec.server.guard import Guard
from reason_spec.server.keys import KeyRing
from reason_spec.server.logs import ACCESS, JsonFormatter
from reason_spec.settings import ServerSettings
from tests.server.asgi import ask, begin

KEY, OTHER_KEY = "rs-the-key-of-ana", "rs-the-key-of-ben"
SECRET = "what nobody else may read"


def keys() -> KeyRing:
    clients = {KEY: Client("ana"), OTHER_KEY: Client("ben", trusted=True)}
    return KeyRing({hashlib.sha256(key.encode()).digest(): client for key, client in clients.items()})


class Echo:
    """Reads the body and says what it knows of the request."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self.waits: asyncio.Event | None = None
        self.fails: Exception | None = None
        self.streams = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.states.append(scope["state"])
        self.asked.set()
        message = await receive()
        kind = b"text/event-stream; charset=utf-8" if self.streams else b"application/json"
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        if self.streams:
            await send(head)
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        if self.waits is not None:
            await self.waits.wait()
        if self.fails is not None:
            raise self.fails
        if not self.streams:
            await send(head)
        await send({"type": "http.response.body", "body": message["body"]})


def guard(app: Any = None, ring: KeyRing | None = None, **values: Any) -> Guard:
    return Guard(app or Echo(), ring or keys(), ServerSettings(**values))


def bearer(key: str = KEY) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {key}")]


OPEN = KeyRing({}, anyone=Client("default", trusted=True))


# Paths and methods ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/chat/../chat/completions",
        "/V1/chat/completions",
        "/v1/models/",
        "/docs",
        "/metrics/..",
        "/health;/../v1/models",
        "/v1/chat/completions\x00",
    ],
)
async def test_what_is_not_listed_is_not_there(path: str) -> None:
    app = Echo()
    answer = await ask(guard(app), "POST", path, headers=bearer())
    assert answer.status == 404
    assert path not in answer.error["message"] or path == "/"
    assert app.states == []


async def test_only_listed_methods_pass() -> None:
    for method, path in [("GET", "/v1/chat/completions"), ("DELETE", "/v1/models"), ("TRACE", "/health")]:
        answer = await ask(guard(), method, path, headers=bearer())
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")


async def test_what_is_listed_passes() -> None:
    for method, path in [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models/org/model"),
        ("DELETE", "/v1/sessions/a/b"),
    ]:
        assert (await ask(guard(), method, path, headers=bearer())).status == 200


# Keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", KEY)],
        [("Authorization", f"Basic {KEY}")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer wrong")],
        [("Authorization", "Bearer \udcff")],
        [*bearer(), *bearer()],
        [("X-Api-Key", KEY)],
    ],
)
async def test_without_a_good_key_nothing_passes_and_no_key_comes_back(
    headers: list[tuple[str, str]],
) -> None:
    app = Echo()
    for method, path in [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics")]:
        answer = await ask(guard(app), method, path, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert b"wrong" not in answer.body
        assert KEY.encode() not in answer.body
    assert app.states == []


async def test_who_has_no_key_is_answered_before_the_body_and_what_comes_is_thrown_away() -> None:
    app = Echo()
    endless = [("Content-Length", "1000000000")]
    silent = begin(guard(app), headers=endless, body=[])
    await asyncio.sleep(0.01)
    assert (silent.status, silent.error["code"]) == (401, "invalid_api_key")
    assert silent.headers["connection"] == "close"
    silent.gone.set()
    sending = await ask(
        guard(app, max_body_bytes=1024), headers=endless, body=[b"x" * 1024] * 100, ends=False
    )
    assert (sending.status, sending.complete, sending.num_received) == (401, True, 4)
    assert app.states == []


async def test_the_tenant_follows_from_the_key() -> None:
    app = Echo()
    for key, client in ((KEY, Client("ana")), (OTHER_KEY, Client("ben", trusted=True))):
        headers = [*bearer(key), ("X-Tenant", "eve"), ("X-Request-Id", "mine")]
        answer = await ask(guard(app), headers=headers, body=b'{"tenant": "eve"}')
        state = app.states[-1]
        assert state["client"] == client
        assert state["request_id"] == answer.headers["x-request-id"] != "mine"


async def test_live_and_ready_are_open_and_metrics_where_the_operator_says_so() -> None:
    assert (await ask(guard(), "GET", "/health")).status == 200
    assert (await ask(guard(), "HEAD", "/ready")).status == 200
    assert (await ask(guard(), "GET", "/metrics")).status == 401
    assert (await ask(guard(open_metrics=True), "GET", "/metrics")).status == 200


async def test_metrics_are_for_trusted_clients_where_there_are_keys() -> None:
    app = Echo()
    refused = await ask(guard(app), "GET", "/metrics", headers=bearer())
    assert (refused.status, refused.error["code"]) == (403, "not_trusted")
    assert app.states == []
    assert (await ask(guard(), "GET", "/metrics", headers=bearer(OTHER_KEY))).status == 200
    assert (await ask(guard(open_metrics=True), "GET", "/metrics", headers=bearer())).status == 200
    anyone = KeyRing({}, anyone=Client("default"))
    assert (await ask(guard(ring=anyone), "GET", "/metrics", headers=[("Host", "localhost")])).status == 200


async def test_without_keys_pages_of_other_sites_may_not_ask() -> None:
    own = guard(ring=OPEN)
    for origin in ("https://evil.example", "http://127.0.0.1.evil.example:8000", "null", "file://"):
        answer = await ask(own, headers=[("Origin", origin), ("Host", "127.0.0.1:8000")])
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
    for origin in ("http://[", "http://[::1", "//", "http://"):
        assert (await ask(own, headers=[("Origin", origin)])).status == 403
    for origin in ("http://127.0.0.1:8000", "http://localhost:3000", "http://[::1]:80"):
        assert (await ask(own, headers=[("Origin", origin), ("Host", "localhost")])).status == 200
    assert (await ask(own)).status == 200
    assert (await ask(guard(), headers=[*bearer(), ("Origin", "https://app.example")])).status == 200


async def test_without_keys_the_server_is_asked_by_names_of_its_own_machine() -> None:
    app = Echo()
    for path in ("/v1/models", "/metrics"):
        answer = await ask(
            guard(app, OPEN, open_metrics=True), "GET", path, headers=[("Host", "evil.example")]
        )
        assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    assert app.states == []
    named = guard(ring=OPEN, allowed_hosts=("box.lan",))
    assert (await ask(named, headers=[("Host", "box.lan:8000")])).status == 200
    assert (await ask(guard(ring=OPEN), "GET", "/health", headers=[("Host", "10.0.0.7")])).status == 200
    assert (await ask(guard(), headers=[*bearer(), ("Host", "api.example")])).status == 200


# Bodies --------------------------------------------------------------------------------------


async def test_a_body_beyond_the_bound_is_refused_however_it_comes() -> None:
    app = Echo()
    small = guard(app, max_body_bytes=1024)
    for body in (b"1" * 1025, [b"1" * 600, b"1" * 600], [b"1" * 512, b"1" * 512, b"1", b"1" * 5000]):
        answer = await ask(small, headers=bearer(), body=body)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert app.states == []
    assert (await ask(small, headers=bearer(), body=b"1" * 1024)).status == 200
    lied = [*bearer(), ("Content-Length", "5")]
    assert (await ask(small, headers=lied, body=[b"1" * 5000])).status == 413


async def test_a_body_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.server.guard._LINGER_SECONDS", 0.01)
    length = [*bearer(), ("Content-Length", "100")]
    answer = await ask(guard(body_timeout=0.01), headers=length, body=[b"{"], ends=False)
    assert answer.headers["connection"] == "close"
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")


async def test_an_application_reads_the_body_and_then_sees_the_client_leave() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            seen.append((await receive())["type"])  # noqa: PERF401 - in the order in which they come

    answer = begin(guard(app), headers=bearer(), body=[b'{"a": ', b"1}"])
    answer.gone.set()
    assert answer.task is not None
    await answer.task
    assert seen == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
async def test_a_bomb_of_brackets_is_a_bad_request(opening: str) -> None:
    answer = await ask(guard(), headers=bearer(), body=(opening * 100_000).encode())
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")
    closed = "[" * 5000 + "]" * 5000
    assert (await ask(guard(), headers=bearer(), body=closed.encode())).status == 400


async def test_compressed_bodies_and_false_lengths_are_refused() -> None:
    assert (await ask(guard(), headers=[*bearer(), ("Content-Encoding", "gzip")])).status == 415
    for length in ("-1", "1e9", "0x10"):
        answer = await ask(guard(), headers=[*bearer(), ("Content-Length", length)], body=[b"{}"])
        assert answer.status == 400
    both = [*bearer(), ("Content-Length", "2"), ("Transfer-Encoding", "chunked")]
    answer = await ask(guard(), headers=both, body=[b"{}"])
    assert (answer.status, answer.headers["connection"]) == (400, "close")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_a_body_that_is_not_said_to_be_json_is_an_unsupported_type(path: str) -> None:
    app = Echo()
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", ""):
        answer = await ask(guard(app), path=path, headers=bearer(), content_type=kind)
        assert answer.status == 415
        assert "application/json" in answer.error["message"]
    assert app.states == []


async def test_a_body_in_another_encoding_than_utf_8_is_refused() -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-32-be"):
        answer = await ask(guard(), headers=bearer(), body='{"a": 1}'.encode(encoding))
        assert (answer.status, answer.error["code"]) == (400, "invalid_json")


async def test_what_takes_no_body_is_sent_none() -> None:
    length = [*bearer(), ("Content-Length", "5")]
    answer = await ask(guard(), "GET", "/health", headers=length, body=[b"x" * 5])
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert (await ask(guard(), "GET", "/health", headers=[("Content-Length", "0")], body=[b""])).status == 200


# Failures ------------------------------------------------------------------------------------


async def test_a_failure_says_nothing_but_where_to_look(caplog: pytest.LogCaptureFixture) -> None:
    app = Echo()
    app.fails = RuntimeError(SECRET)
    answer = await ask(guard(app), headers=bearer())
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert SECRET.encode() not in answer.body
    assert answer.headers["x-request-id"] in answer.error["message"]
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert SECRET not in "".join(lines)
    assert any(json.loads(line).get("error") == "RuntimeError" for line in lines)


async def test_errors_of_routes_keep_their_status() -> None:
    app = Echo()
    app.fails = ApiError(503, "full", kind="server_error", retry_after=2.2)
    answer = await ask(guard(app), headers=bearer())
    assert (answer.status, answer.error["message"], answer.headers["retry-after"]) == (503, "full", "3")


async def test_a_stream_that_fails_ends_with_an_error() -> None:
    app = Echo()
    app.streams, app.fails = True, RuntimeError(SECRET)
    answer = await ask(guard(app), headers=bearer())
    first, error, rest = answer.body.decode().split("\n\n")
    assert (first, rest, answer.complete) == ("data: {}", "", True)
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "internal_error"
    assert SECRET not in error


async def test_a_client_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.server.guard._SEND_SECONDS", 0.01)
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        finally:
            ended.set()

    async def stalled(message: Any) -> None:
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": [], "state": {}}
    await guard(app, OPEN)(scope, lambda: asyncio.sleep(0), stalled)  # type: ignore[arg-type, return-value]
    assert ended.is_set()


# Draining ------------------------------------------------------------------------------------


async def test_draining_waits_for_requests_to_end() -> None:
    app = Echo()
    app.waits = asyncio.Event()
    own = guard(app)
    answer = begin(own, headers=bearer(), body=b"[1]")
    await app.asked.wait()
    draining = asyncio.create_task(own.drain(100))
    await asyncio.sleep(0)
    assert own.num_requests == 1
    app.waits.set()
    assert await draining == 0
    assert (answer.status, answer.body) == (200, b"[1]")


@pytest.mark.parametrize("streams", [False, True])
async def test_requests_that_do_not_end_are_ended_with_an_answer(streams: bool) -> None:
    app = Echo()
    app.waits, app.streams = asyncio.Event(), streams
    own = guard(app)
    answer = begin(own, headers=bearer())
    await app.asked.wait()
    assert await own.drain(0.01) == 1
    assert answer.complete
    assert own.num_requests == 0
    assert b"server_stopped" in answer.body
    assert answer.status == (200 if streams else 503)


# Logs ----------------------------------------------------------------------------------------


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [JsonFormatter().format(record) for record in caplog.records if record.name == ACCESS]
    return [json.loads(line) for line in lines]


async def test_the_log_has_ids_counts_and_hashes_and_no_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = json.dumps({"messages": [SECRET]}).encode()
    own = guard()
    for client_id in ("run-7", "a\nb", "x" * 500):
        await ask(own, headers=[*bearer(), ("X-Request-Id", client_id)], body=body)
    await ask(own, headers=bearer("wrong key of somebody"), path="/secret/path")
    lines = access_lines(caplog)
    assert [line["status"] for line in lines] == [200, 200, 200, 404]
    assert [line.get("client_request_id") for line in lines] == ["run-7", None, None, None]
    assert {line["body_hash"] for line in lines[:3]} == {lines[0]["body_hash"]}
    assert lines[0]["body_hash"] != hashlib.sha256(body).hexdigest()[:16]
    assert (lines[0]["tenant"], lines[0]["bytes_in"], lines[0]["bytes_out"]) == ("ana", len(body), len(body))
    text = json.dumps(lines)
    for hidden in (SECRET, KEY, "wrong key", "/secret/path"):
        assert hidden not in text


async def test_prompts_are_logged_where_the_operator_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await ask(guard(log_prompts=True), headers=bearer(), body=json.dumps(SECRET).encode())
    assert SECRET in access_lines(caplog)[0]["body"]


async def test_what_routes_note_stands_in_the_log_and_cannot_replace_what_is_certain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["notes"] |= {"num_tokens": 7, "tenant": "eve"}
        raise ApiError(400, "no")

    await ask(guard(app), headers=bearer())
    (line,) = access_lines(caplog)
    assert (line["num_tokens"], line["tenant"], line["status"]) == (7, "ana", 400)
