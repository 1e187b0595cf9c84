"""A server that predicts calls of a shop's agent, and what its clients send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from reason_spec.server.keys import add_key
from reason_spec.tools_ahead.model import CallModel
from tests.server.processes import CHAT, ServeProcess, bearer, serving
from tests.tools_ahead.some_conversations import messages_of, user

NAMES = ("get_user", "get_order", "cancel_order")
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in NAMES]
READ_ONLY = {"readOnlyHint": True}
MARKED = [
    {**tool, "function": {**tool["function"], "annotations": READ_ONLY}}
    if tool["function"]["name"] != "cancel_order"
    else tool
    for tool in TOOLS
]
ORDERS = user(70)["orders"]
NUM_PAST = 12


def call_text(order: str) -> str:
    return f'<tool_call>{{"name": "get_order", "arguments": {{"order_id": "{order}"}}}}</tool_call>'


@pytest.fixture(scope="module")
def keys_and_server(
    tmp_path_factory: pytest.TempPathFactory,
    shop_model: CallModel,
) -> Iterator[tuple[dict[str, str], ServeProcess]]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "calls.json").write_text(shop_model.to_json())
    script = {
        "answers": {"Nora 70": call_text(ORDERS[0]), "Half 71": call_text(r"\ud83d")},
        "otherwise": "Sent.",
        "seconds_per_pass": 0.03,
    }
    (folder / "says.json").write_text(json.dumps(script))
    keys = {
        name: add_key(folder / "keys.yaml", name, trusted=name != "eve")
        for name in ("ann", "bob", "cid", "dan", "eve")
    }
    values = (
        "target.kind=scripted",
        "suffix.use=none",
        "predicted_calls.use=true",
        "predicted_calls.model=calls.json",
    )
    options = ["--target", "says.json", "--strategy", "autoregressive", "--api-keys", "keys.yaml"]
    for value in values:
        options += ["--set", f"server.{value}" if value.startswith("predicted") else value]
    with serving(*options, cwd=folder) as server:
        for name in ("ann", "eve"):
            teach(server, keys[name])
        yield keys, server


def teach(server: ServeProcess, key: str) -> None:
    for number in range(NUM_PAST):
        named = {"session_id": f"past {number}"}
        assert ask(server, key, messages_of(number)[:-1], **named).status_code == 200
        ended = server.http.delete(f"/v1/sessions/past {number}", headers=bearer(key))
        assert ended.json() == {"id": f"past {number}", "object": "session", "deleted": True}


def ask(server: ServeProcess, key: str, messages: list[dict[str, Any]] | None = None, **body: Any) -> Any:
    turns = messages_of(70)[:4] if messages is None else messages
    given = {"model": "says", "messages": with_ids(turns), "tools": MARKED, **body}
    return server.http.post(CHAT, json=given, headers=bearer(key))


def with_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as a client sends them: calls and results have an id."""
    found = []
    for place, message in enumerate(messages):
        calls = [{"id": f"call-{place}", **call} for call in message.get("tool_calls", ())]
        answers = {"tool_call_id": f"call-{place - 1}"} if message["role"] == "tool" else {}
        found.append({**message, **answers, **({"tool_calls": calls} if calls else {})})
    return found
