"""Many clients for a while: no error, nothing left in the engines, and memory that stays."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

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
def test_many_clients_are_all_answered_and_memory_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(cwd=tmp_path) as server:
        warm = asyncio.run(ask_all(server, NUM_WARM))
        before = memory(server)
        load = asyncio.run(ask_all(server, NUM_REQUESTS - NUM_WARM, start=NUM_WARM))
        after = memory(server)
        with capsys.disabled():
            sys.stdout.write(f"\n{load}; memory {before >> 20} MiB, then {after >> 20} MiB\n")
        assert warm.statuses + load.statuses == {200: NUM_REQUESTS}
        text = server.http.get("/metrics").text
        assert 'vllm:num_requests_running{model_name="says"} 0.0' in text
        assert 'vllm:num_requests_waiting{model_name="says"} 0.0' in text
        assert after < GROWTH * before + SLACK_BYTES, f"{before >> 20} MiB became {after >> 20} MiB"


@dataclass
class Load:
    """What became of requests: how they ended, and how many seconds each took."""

    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        number = len(self.latencies)
        *_, median = quantiles(self.latencies, n=2)
        *_, slow = quantiles(self.latencies, n=20)
        return (
            f"{NUM_CLIENTS} clients, {number} requests in {self.seconds:.1f} s: {number / self.seconds:.1f} "
            f"requests/s, latency p50 {median:.2f} s, p95 {slow:.2f} s"
        )


async def ask_all(server: ServeProcess, number: int, start: int = 0) -> Load:
    """Ask different short questions, so many clients at once."""
    numbers = iter(range(start, start + number))
    load = Load()

    async def client() -> None:
        async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
            for one in numbers:
                question = f"Ana has {one % 97} boxes with {one % 89} pens each. How many pens does she have?"
                body = server.body(question, max_tokens=8, stream=one % 2 == 0)
                asked = time.perf_counter()
                answer = await http.post(CHAT, json=body)
                load.latencies.append(time.perf_counter() - asked)
                assert "[DONE]" in answer.text or "choices" in answer.json(), answer.text
                load.statuses[answer.status_code] += 1

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    load.seconds = time.perf_counter() - began
    return load


def memory(server: ServeProcess) -> int:
    """Return the bytes that the server and its workers hold."""
    process = psutil.Process(server.process.pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
