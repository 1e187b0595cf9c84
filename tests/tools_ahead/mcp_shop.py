"""An MCP server of a shop: mcp_shop.py FILE [PORT], over stdio or, with a port, over HTTP.

It writes each call that it serves into the file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.tools_ahead.some_conversations import order, user

SERVED = Path(sys.argv[1])
server = MCPServer("shop")


def serve(name: str, argument: str) -> None:
    with SERVED.open("a") as file:
        file.write(f"{name} {argument}\n")


def get_user(user_id: str) -> str:
    serve("get_user", user_id)
    return json.dumps(user(int(user_id.rpartition("_")[2])))


def get_order(order_id: str) -> str:
    serve("get_order", order_id)
    if (SERVED.parent / "broken").exists():
        raise RuntimeError("the shop is closed")
    if (SERVED.parent / "slow").exists():
        time.sleep(0.3)
    return json.dumps(order(order_id))


def cancel_order(order_id: str) -> str:
    serve("cancel_order", order_id)
    return "done"


def die(reason: str) -> str:
    os._exit(7)


if __name__ == "__main__":
    for tool in (get_user, get_order):
        server.add_tool(tool, annotations=ToolAnnotations(readOnlyHint=True))
    server.add_tool(cancel_order)
    server.add_tool(die, annotations=ToolAnnotations(readOnlyHint=False, idempotentHint=True))
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
