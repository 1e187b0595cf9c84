"""Many clients for a while: no error, nothing left in the engines, and memory that stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.server.processes import CHAT, PATIENCE_SECONDS, ServeProcess, serving

NUM_CLIENTS = 64
NUM_REQUESTS = 2000
NUM_WARM = 500
"""Requests after which memory is compared: caches have filled by then."""
GROWTH = 1.1
SLACK_BYTES = 48 << 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_clients_are_all_answered_and_memory_stays(tmp_path: Path) -> None:
    with serving(cwd=tmp_path) as server:
        statuses = asyncio.run(ask_all(server, NUM_WARM))
        before = memory(server)
        statuses += asyncio.run(ask_all(server, NUM_REQUESTS - NUM_WARM, start=NUM_WARM))
        after = memory(server)
        assert statuses == {200: NUM_REQUESTS}
        text = server.http.get("/metrics").text
        assert 'vllm:num_requests_running{model_name="says"} 0.0' in text
        assert 'vllm:num_requests_waiting{model_name="says"} 0.0' in text
        assert after < GROWTH * before + SLACK_BYTES, f"{before >> 20} MiB became {after >> 20} MiB"


async def ask_all(server: ServeProcess, number: int, start: int = 0) -> Counter[int]:
    """Ask different short questions, so many clients at once."""
    numbers = iter(range(start, start + number))
    found: Counter[int] = Counter()

    async def client() -> None:
        async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
            for one in numbers:
                question = f"Ana has {one % 97} boxes with {one % 89} pens each. How many pens does she have?"
                body = server.body(question, max_tokens=8, stream=one % 2 == 0)
                answer = await http.post(CHAT, json=body)
                assert "[DONE]" in answer.text or "choices" in answer.json(), answer.text
                found[answer.status_code] += 1

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    return found


def memory(server: ServeProcess) -> int:
    """Return the bytes that the server and its workers hold."""
    process = psutil.Process(server.process.pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
