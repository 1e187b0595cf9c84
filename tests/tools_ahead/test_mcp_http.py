"""The MCP proxy before a server over HTTP and behind one, by the bridge that the docs name (mcp-proxy)."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tools_ahead.shop_client import PATIENCE_SECONDS, SHOP, Shop, asked, ran_ahead, ready
from tests.tools_ahead.some_conversations import user

pytestmark = pytest.mark.agents
# The bridge asks for an older mcp than the other tests: it lies beside CrewAI, which does too.
PYTHON_OF_BRIDGE = os.environ.get("CREWAI_PYTHON")


@pytest.fixture
def bridge() -> str:
    if PYTHON_OF_BRIDGE is None:
        pytest.skip("CREWAI_PYTHON names no interpreter with mcp-proxy beside it")
    return str(Path(PYTHON_OF_BRIDGE).with_name("mcp-proxy"))


@asynccontextmanager
async def serving(command: Sequence[str], port: int, log: Path) -> AsyncIterator[str]:
    """Run a server over HTTP; yield its URL once it listens."""
    with log.open("w") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await listens(port):
                assert process.returncode is None, f"{command[0]} has ended: see {log}"
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def orders_ran_ahead(client: Any, shop: Shop) -> bool:
    """Ask for a user and then for each of the orders; return whether all of these ran ahead."""
    orders = user(70)["orders"]
    await ready(client, shop)
    await asked(client, "get_user", user_id="nora_70")
    await shop.serves(1 + len(orders))
    results = [await asked(client, "get_order", order_id=one) for one in orders]
    assert len(shop.served) == 1 + len(orders), "no call is made twice"
    return all(ran_ahead(result) for result in results)


async def test_calls_run_ahead_on_a_server_over_http(shop: Shop, bridge: str) -> None:
    port = free_port()
    server = [sys.executable, str(SHOP), str(shop.served_file), str(port)]
    async with (
        serving(server, port, shop.folder / "server.log") as url,
        shop.client(server=[bridge, "--transport", "streamablehttp", url]) as client,
    ):
        assert await orders_ran_ahead(client, shop)


async def test_calls_run_ahead_for_a_client_over_http(shop: Shop, bridge: str) -> None:
    mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")
    port = free_port()
    command = [bridge, "--port", str(port), "--", *shop.proxied(shop.server)]
    async with serving(command, port, shop.log_file) as url, mcp.Client(url) as client:
        assert await orders_ran_ahead(client, shop)
