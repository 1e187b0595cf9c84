"""A client of the MCP server of a shop, and what both of them leave behind."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reason_spec.tools_ahead.mcp_proxy import RAN_AHEAD
from reason_spec.tools_ahead.model import CallModel
from tests.tools_ahead.some_conversations import messages_of

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
SHOP = Path(__file__).with_name("mcp_shop.py")


class Shop:
    """The files of one test, and the client's view of the server through the proxy."""

    def __init__(self, folder: Path, model: CallModel) -> None:
        self.folder = folder
        self.served_file = folder / "served"
        self.log_file = folder / "log"
        (folder / "model.json").write_text(model.to_json())
        lines = [json.dumps({"messages": messages_of(number)}) for number in range(20)]
        (folder / "past.jsonl").write_text("\n".join(lines))

    @property
    def served(self) -> list[str]:
        return self.served_file.read_text().splitlines() if self.served_file.exists() else []

    async def serves(self, num_calls: int) -> None:
        """Wait until the server has served so many calls."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.served) < num_calls:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    @property
    def server(self) -> list[str]:
        """The command of the server over stdio."""
        return [sys.executable, str(SHOP), str(self.served_file)]

    def proxied(self, server: Sequence[str], *options: str) -> list[str]:
        """The command of the proxy in front of a server."""
        files = ["--model", str(self.folder / "model.json"), "--learn", str(self.folder / "past.jsonl")]
        return [sys.executable, str(ROOT / "cli.py"), "mcp", *files, "--log", *options, "--", *server]

    @asynccontextmanager
    async def client(
        self, *options: str, proxied: bool = True, server: Sequence[str] | None = None
    ) -> AsyncIterator[Any]:
        """A client over stdio, of the proxy or of the server itself."""
        mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")
        command = list(self.server if server is None else server)
        if proxied:
            command = self.proxied(command, *options)
        parameters = mcp.StdioServerParameters(command=command[0], args=command[1:])
        with self.log_file.open("w") as log:
            async with mcp.Client(mcp.client.stdio.stdio_client(parameters, errlog=log)) as client:
                yield client


async def asked(client: Any, name: str, **arguments: str) -> Any:
    return await client.call_tool(name, arguments)


async def ready(client: Any, shop: Shop) -> None:
    """List the tools, and wait until the past is learned."""
    await client.list_tools()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "learned" not in shop.log_file.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def ran_ahead(result: Any) -> bool:
    return RAN_AHEAD in (result.meta or {})
