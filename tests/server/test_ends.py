"""How requests end before their time: clients that go away, engines that fail, answers that take too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.server.serving import Serving, failing, scripted, serve

LONG = " ".join(["word"] * 5000)
CHAT: Any = {"model": "says", "messages": [{"role": "user", "content": "Go!"}], "max_tokens": 5000}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A target that writes for a minute."""
    folder = tmp_path_factory.mktemp("slow")
    answers = {"Go!": LONG, "Hello?": "Hello to you."}
    pings = patch("reason_spec.server.streaming.PING_SECONDS", 0.05)
    with pings, serve(scripted(folder, answers, seconds=0.012)) as serving:
        yield serving


async def leave(serving: Serving, body: dict[str, Any], *, after: bytes) -> None:
    """Send a request and close the connection once its answer, or the engine, is at work."""
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    content = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    if after:
        await reader.readuntil(after)
    else:
        while await asyncio.to_thread(serving.num_running) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the engines announce no end
    writer.close()


async def becomes_idle(serving: Serving) -> bool:
    admission = serving.app.state.context.admission
    with suppress(TimeoutError):
        async with asyncio.timeout(30):
            while await asyncio.to_thread(serving.num_running) or admission.num_running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the engines announce no end
            return True
    return False


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(("stream", "after"), [(True, b'"content":" word"'), (False, b"")])
def test_the_engine_is_free_once_the_client_is_gone(
    slow: Serving, stream: bool, after: bytes, number: int
) -> None:
    async def main() -> None:
        await leave(slow, {**CHAT, "stream": stream, "n": number}, after=after)
        assert await becomes_idle(slow)

    asyncio.run(main())


def test_one_that_leaves_hurts_no_other(slow: Serving) -> None:
    async def main() -> str | None:
        async with slow.async_client() as client:
            messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello?"}]
            asking = asyncio.create_task(client.chat.completions.create(model="says", messages=messages))
            await leave(slow, {**CHAT, "stream": True}, after=b"data:")
            return (await asking).choices[0].message.content

    assert asyncio.run(main()) == "Hello to you."


def test_a_silent_stream_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.server.streaming.PING_SECONDS", 0.05)
    settings = scripted(tmp_path, {"Go!": "So."}, seconds=0.5)
    with serve(settings) as says:
        with says.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            text = response.read().decode()
        assert response.headers["content-type"].startswith("text/event-stream")
    assert text.startswith(": ping\n\n")
    assert text.endswith("data: [DONE]\n\n")
    messages = CHAT["messages"]
    with serve(settings) as says:
        stream = says.client().chat.completions.create(model="says", messages=messages, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "So."


def test_a_failure_before_the_first_word_has_a_status(tmp_path: Path) -> None:
    with serve(scripted(tmp_path, {"x": "y"}), change=failing(0, LONG)) as says:
        for stream in (False, True):
            response = says.http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "engine_error"


def test_a_failure_in_a_stream_is_said_in_it(tmp_path: Path) -> None:
    with serve(scripted(tmp_path, {"x": "y"}), change=failing(200, LONG)) as says:
        with says.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            text = response.read().decode()
        assert "[DONE]" not in text
        assert json.loads(text.rpartition("data: ")[2])["error"]["code"] == "engine_error"
    with serve(scripted(tmp_path, {"x": "y"}), change=failing(200, LONG)) as says:
        stream = says.client().chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError, match="engine failed"):
            list(stream)
    with serve(scripted(tmp_path, {"x": "y"}), change=failing(200, LONG)) as says:
        events = list(says.client().responses.create(model="says", input="Go!", stream=True))
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert events[-1].response.error.code == "server_error"


def test_a_request_that_takes_too_long_is_stopped_and_not_repeated(tmp_path: Path) -> None:
    settings = scripted(tmp_path, {"Go!": LONG}, seconds=0.01, server__request_timeout=0.2)
    with serve(settings) as says:
        with pytest.raises(openai.InternalServerError) as caught:
            says.client().with_options(max_retries=2).chat.completions.create(**CHAT)
        assert caught.value.status_code == 504
        assert caught.value.request.headers["x-stainless-retry-count"] == "0"
        with says.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            assert "deadline_exceeded" in response.read().decode()
        assert asyncio.run(becomes_idle(says))
