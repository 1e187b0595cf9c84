"""Two hundred clients at once of whom half leave: the others are answered, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.server.processes import CHAT, PATIENCE_SECONDS, ServeProcess, scripted, serving, until

NUM_CLIENTS = 200
WORDS = "one two three four five six seven eight nine ten eleven twelve"


async def ask_or_leave(
    http: httpx2.AsyncClient, server: ServeProcess, number: int, most_tokens: int, moments: random.Random
) -> int | None:
    """Ask, and return the status; those with odd numbers leave before the end."""
    question = f"Ana has {number} boxes with 3 pens each. How many pens does she have?"
    body = server.body(question, max_tokens=most_tokens, stream=number % 4 < 2)
    if number % 2 == 0:
        answer = await http.post(CHAT, json=body)
        assert "[DONE]" in answer.text or answer.json()["choices"][0]["message"]["content"]
        return answer.status_code
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    # Some leave in the middle of the headers or of the body.
    writer.write(sent[: moments.randrange(len(sent))] if number % 8 == 3 else sent)
    await writer.drain()
    if number % 8 == 1:
        await reader.readuntil(b"data: ")
    else:
        await asyncio.sleep(moments.uniform(0, 2))
    writer.transport.abort() if number % 3 == 0 else writer.close()
    return None


async def ask_all(server: ServeProcess, most_tokens: int) -> list[int | None]:
    moments = random.Random(5)
    # One client with a connection for each request. To make a hundred clients takes seconds, in which those
    # that are connected send nothing, and the server closes such connections after ten seconds.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS, limits=limits) as http:
        return await asyncio.gather(
            *(ask_or_leave(http, server, number, most_tokens, moments) for number in range(NUM_CLIENTS))
        )


def is_idle(server: ServeProcess) -> bool:
    text = server.http.get("/metrics").text
    return all(
        f'vllm:num_requests_{what}{{model_name="says"}} 0.0' in text for what in ("running", "waiting")
    )


@pytest.mark.parametrize("pair", ["scripted", pytest.param("embedded", marks=pytest.mark.slow)])
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_the_others_are_answered_and_nothing_stays_behind(tmp_path: Path, pair: str) -> None:
    options = scripted(tmp_path, WORDS, seconds_per_pass=0.005) if pair == "scripted" else []
    with serving(*options, cwd=tmp_path) as server:
        assert server.ask("?", max_tokens=4).status_code == 200
        statuses = asyncio.run(ask_all(server, most_tokens=12))
        assert statuses == [200, None] * (NUM_CLIENTS // 2)
        until(lambda: is_idle(server))
        process = psutil.Process(server.process.pid)
        # Ours is the one that is kept; the server listens on another socket.
        until(lambda: sum(one.status == "ESTABLISHED" for one in process.net_connections("tcp")) <= 1)
        assert not [line for line in server.log() if line["level"] == "error" or line.get("status") == 500]
        assert server.ask("?", max_tokens=4).status_code == 200
