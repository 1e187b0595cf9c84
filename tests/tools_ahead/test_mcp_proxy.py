"""The MCP proxy between a real client and a real server, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from reason_spec.tools_ahead.calls import Call, Returned, tool_events
from reason_spec.tools_ahead.mcp_messages import result_text
from reason_spec.tools_ahead.mcp_proxy import RAN_AHEAD, McpProxy, _SafePredictor
from reason_spec.tools_ahead.model import CallModel
from reason_spec.tools_ahead.predictor import Prediction
from tests.running_processes import is_alive
from tests.tools_ahead.shop_client import PATIENCE_SECONDS, ROOT, Shop, asked, ran_ahead, ready
from tests.tools_ahead.some_conversations import READ_ONLY, events, order, user

pytestmark = pytest.mark.agents
WRITE: dict[str, Any] = {"id": 1, "method": "tools/call", "params": {"name": "cancel_order", "arguments": {}}}
ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = asked["params"].get("arguments", asked["params"])
    print(json.dumps({"id": asked["id"], "result": result}), flush=True)
"""
SHOWS_CANCELLED = """
import json, sys
print('{"method": "ready"}', flush=True)
for line in sys.stdin:
    params = json.loads(line)["params"]
    if "requestId" in params:
        print(json.dumps({"id": params["requestId"], "error": {"code": 0}}), flush=True)
        print(json.dumps({"method": "cancelled", "params": params}), flush=True)
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(100)
"""


async def test_orders_run_ahead_once_the_user_is_known(shop: Shop) -> None:
    orders = user(70)["orders"]
    async with shop.client() as client:
        await ready(client, shop)
        first = await asked(client, "get_user", user_id="nora_70")
        assert not ran_ahead(first)
        await shop.serves(1 + len(orders))
        for one in orders:
            result = await asked(client, "get_order", order_id=one)
            assert json.loads(result.content[0].text) == order(one)
            assert ran_ahead(result)
    assert sorted(shop.served) == sorted(["get_user nora_70", *(f"get_order {one}" for one in orders)])
    assert f'"num_used": {len(orders)}' in shop.log_file.read_text()


async def test_a_call_that_changes_something_drops_what_ran_ahead(shop: Shop) -> None:
    orders = user(70)["orders"]
    async with shop.client() as client:
        await ready(client, shop)
        await asked(client, "get_user", user_id="nora_70")
        await shop.serves(1 + len(orders))
        await asked(client, "cancel_order", order_id=orders[0])
        result = await asked(client, "get_order", order_id=orders[0])
        assert json.loads(result.content[0].text) == order(orders[0])
    place = shop.served.index(f"cancel_order {orders[0]}")
    assert f"get_order {orders[0]}" in shop.served[place:], "it was read again after the change"


async def test_a_failure_that_ran_ahead_is_not_shown_and_the_call_is_made(shop: Shop) -> None:
    orders = user(70)["orders"]
    (shop.folder / "broken").touch()
    async with shop.client() as client:
        await ready(client, shop)
        await asked(client, "get_user", user_id="nora_70")
        await shop.serves(1 + len(orders))
        (shop.folder / "broken").unlink()
        result = await asked(client, "get_order", order_id=orders[0])
        assert not result.is_error
        assert not ran_ahead(result)
    assert shop.served.count(f"get_order {orders[0]}") == 2


async def test_a_call_that_still_runs_is_waited_for_and_not_made_twice(shop: Shop) -> None:
    orders = user(70)["orders"]
    (shop.folder / "slow").touch()
    async with shop.client() as client:
        await ready(client, shop)
        await asked(client, "get_user", user_id="nora_70")
        await shop.serves(2)
        result = await asked(client, "get_order", order_id=shop.served[1].split()[1])
        assert ran_ahead(result)
    assert len(set(shop.served)) == len(shop.served)
    assert len(shop.served) <= 1 + len(orders)


async def test_tools_without_a_hint_and_answers_pass_unchanged(shop: Shop) -> None:
    async with shop.client() as client, shop.client(proxied=False) as direct:
        assert await client.list_tools() == await direct.list_tools()
        for name in ("cancel_order", "no_such_tool"):
            ours = await asked(client, name, order_id="A1")
            theirs = await asked(direct, name, order_id="A1")
            assert (ours.content, ours.is_error) == (theirs.content, theirs.is_error)


async def test_lines_that_are_no_calls_pass_and_do_not_end_the_proxy(shop: Shop) -> None:
    script = "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush()"
    files = ["--model", str(shop.folder / "model.json")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "cli.py"), "mcp", *files, "--", sys.executable, "-c", script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    lines = [
        b"no json\n",
        b"[1, 2]\n",
        b'{"method": "notifications/cancelled", "params": [1]}\n',
        b'{"id": 1, "method": "tools/call", "params": [1]}\n',
        b'{"id": 2, "method": "tools/call"}\n',
        b'{"id": "x", "method": "made/up", "params": {"a":   1}}\n',
        b'{"id": 3, "method": "tools/call", "params": {"name": "a", "_meta": [1]}}\n',
        b'{"id": [1], "method": "tools/call", "params": {"name": "a"}}\n',
        b'{"id": {"a": 1}, "result": [1]}\n',
        b'{"method": "notifications/cancelled", "params": {"requestId": [1]}}\n',
    ]
    echoed, _ = await process.communicate(b"".join(lines))
    assert echoed == b"".join(lines), "what is passed on is passed on as it is"
    assert process.returncode == 0


async def test_a_dying_server_is_reported_by_name_and_status(shop: Shop) -> None:
    mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")
    async with shop.client() as client:
        await ready(client, shop)
        for _ in range(2):
            with pytest.raises(mcp.MCPError, match=r"mcp_shop\.py.* has ended with exit status 7"):
                await asked(client, "die", reason="test")


async def test_a_server_that_cannot_start_is_named() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "cli.py"), "mcp", "--", "no-such-command-here"),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode != 0
    assert b"no-such-command-here" in errors
    assert b"Traceback" not in errors


def test_the_text_of_a_result_is_its_structure_where_there_is_one() -> None:
    assert result_text({"content": [{"type": "text", "text": "a"}, {"type": "image"}]}) == "a\n"
    assert result_text({"content": [], "structuredContent": {"result": [1]}}) == "[1]"
    assert result_text({"content": [], "structuredContent": {"n": 1}}) == '{"n": 1}'


def as_lines(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_ended(pid: int) -> None:
    """Wait until a process has ended; nothing may be left that reads its exit status."""
    await until(lambda: not is_alive(pid))


@asynccontextmanager
async def relayed(
    script: str, model: CallModel, **options: Any
) -> AsyncIterator[tuple[McpProxy, asyncio.StreamReader, list[bytes]]]:
    """A proxy in this process, before a server that is a script; its client, and what is written to that."""
    written: list[bytes] = []
    client = asyncio.StreamReader()
    proxy = McpProxy([sys.executable, "-c", script], model, **options)
    running = asyncio.create_task(proxy.run(client, written.append))
    try:
        yield proxy, client, written
    finally:
        client.feed_eof()
        await running


async def test_a_server_that_sends_a_message_without_end_is_ended_and_named(
    shop_model: CallModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reason_spec.tools_ahead.mcp_server.MAX_LINE", 1000)
    script = "import sys; sys.stdin.readline(); print('x' * 100_000, flush=True); sys.stdin.read()"
    async with relayed(script, shop_model) as (_, client, written):
        client.feed_data(as_lines({"id": 1, "method": "tools/list"}))
        await until(lambda: bool(written))
    assert "a message of more than 1000 bytes" in json.loads(written[0])["error"]["message"]


async def test_nothing_runs_ahead_behind_a_write_that_was_cancelled_and_may_go_on(
    shop_model: CallModel,
) -> None:
    call = Call.of("get_user", {"user_id": "U1"})
    answers = (
        "import sys\n"
        "for line in sys.stdin:\n"
        """    if "answer" in line: print('{"id": 1, "result": {}}', flush=True)"""
    )
    async with relayed(answers, shop_model) as (proxy, client, _):
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 1}}
        client.feed_data(as_lines(WRITE, cancel))

        def starts() -> bool:
            return bool(proxy.held.start([Prediction(call, 1.0)], 0.5, lambda _: Future()))

        await until(lambda: proxy.held.is_writing)
        await asyncio.sleep(0.1)
        assert not starts()
        client.feed_data(as_lines({"method": "answer"}))
        await until(starts)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (as_lines({**WRITE, "params": {**WRITE["params"], "task": {}}}), {"id": 1, "result": {"task": {}}}),
        (b" [" + as_lines(WRITE).strip() + b"]\n", [{"id": 1, "result": {}}]),
        (as_lines({**WRITE, "id": 1.0}), {"id": 1.0, "result": {}}),
        (as_lines({**WRITE, "id": None}), {"id": None, "result": {}}),
        (as_lines(WRITE).replace(b"cancel_order", b"\xff"), {"id": 1, "result": {}}),
        (as_lines(WRITE).replace(b"{}", b'{"n": ' + b"1" * 5000 + b"}"), {"id": 1, "result": {}}),
        # Some versions of Python can read so many brackets, but not compare them.
        (as_lines(WRITE).replace(b"{}", b'{"n": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"), {"id": 2}),
        (as_lines(WRITE).replace(b"{}", b'{"n": ' + b"[" * 900 + b"]" * 900 + b"}"), {"id": 2}),
    ],
    ids=["task", "batch", "id no integer", "id null", "no UTF-8", "large number", "very deep", "deep"],
)
async def test_nothing_runs_ahead_behind_a_write_whose_end_is_not_seen(
    line: bytes, answer: object, shop_model: CallModel
) -> None:
    script = f"import sys\nfor line in sys.stdin.buffer: print({json.dumps(answer)!r}, flush=True)"
    async with relayed(script, shop_model) as (proxy, client, written):
        client.feed_data(line)
        await until(lambda: bool(written))
        assert proxy.held.is_writing
        # The relay goes on.
        client.feed_data(as_lines({"method": "notifications/initialized"}))
        await until(lambda: len(written) == 2)


@pytest.mark.parametrize(("extra", "is_used"), [({}, True), ({"_meta": [1]}, False)])
async def test_half_a_surrogate_pair_passes_and_a_result_of_another_form_is_asked_for_again(
    extra: dict[str, Any], is_used: bool, shop_model: CallModel
) -> None:
    arguments = {"text": "\ud83d", **extra}
    call = {"id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": arguments}}
    async with relayed(ECHO, shop_model, read_only=["echo"]) as (proxy, client, written):
        client.feed_data(as_lines({"id": 0, "method": "ping", "params": {}}))
        await until(lambda: len(written) == 1)
        assert proxy.held.start([Prediction(Call.of("echo", arguments), 1.0)], 0.5, proxy.own_calls.start)
        client.feed_data(as_lines(call))
        await until(lambda: len(written) == 2)
    result = json.loads(written[1])["result"]
    assert result["text"] == "\ud83d"
    assert (RAN_AHEAD in result.get("_meta", ())) is is_used


async def test_the_server_is_asked_to_cancel_a_call_that_was_dropped_and_the_client_does_not_see_it(
    shop_model: CallModel,
) -> None:
    async with relayed(SHOWS_CANCELLED, shop_model) as (proxy, _, written):
        await until(lambda: len(written) == 1)
        assert proxy.held.start([Prediction(Call.of("get", {}), 1.0)], 0.5, proxy.own_calls.start)
        proxy.held.drop_all()
        await until(lambda: len(written) == 2)
        assert proxy.held.report().dropped == {"changed": 1}
    assert json.loads(written[1])["method"] == "cancelled", (
        "not the answer to the call, which is not the client's"
    )


async def test_a_long_session_predicts_as_before_and_does_not_grow(
    shop_model: CallModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reason_spec.tools_ahead.mcp_proxy._MAX_EVENTS", 40)
    logged: list[str] = []
    predictor = _SafePredictor(shop_model, [events(number) for number in range(20)], READ_ONLY, logged.append)
    await predictor.learn_past({"get_user", "get_order"})
    for number in range(100, 130):
        for event in tool_events(events(number)):
            predictor.observe(event)
            assert len(predictor._predictor.history.entries) <= 80
    for event in tool_events(events(70))[:2]:
        predictor.observe(event)
    likely = {one.call for one in predictor.predict() if one.chance >= shop_model.threshold}
    assert likely >= {Call.of("get_order", {"order_id": one}) for one in user(70)["orders"]}
    assert logged == ["learned 20 past conversations"]


async def test_of_a_long_result_the_beginning_is_kept(shop_model: CallModel) -> None:
    proxy = McpProxy(["no-server"], shop_model)
    proxy._returned(Call.of("get", {}), {"content": [{"type": "text", "text": "word " * 200_000}]})
    (entry,) = proxy._predictor._predictor.history.entries
    assert isinstance(entry.event, Returned)
    assert len(entry.event.text) == 1 << 18


async def test_the_past_is_learned_anew_only_where_other_tools_are_annotated(shop_model: CallModel) -> None:
    def listed(number: int, *names: str) -> dict[str, Any]:
        tools = [{"name": name, "annotations": {"readOnlyHint": True}} for name in names]
        return {"id": number, "method": "tools/list", "params": {"tools": tools}}

    logged: list[str] = []
    async with relayed(ECHO, shop_model, log=logged.append) as (_, client, written):
        client.feed_data(as_lines(listed(1, "a")))
        await until(lambda: len(logged) == 1)
        client.feed_data(as_lines(listed(2, "a"), listed(3, "b", "a")))
        await until(lambda: len(written) == 3 and len(logged) == 2)
        await asyncio.sleep(0.1)
    assert logged == ["learned 0 past conversations"] * 2


@pytest.mark.parametrize("has_parent", [True, False], ids=["server runs", "server has ended"])
async def test_a_child_that_keeps_the_servers_output_open_does_not_keep_the_proxy_and_ends_with_its_server(
    has_parent: bool, shop_model: CallModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reason_spec.tools_ahead.mcp_server._GRACE", 0.1)
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    start = "run" if has_parent else "Popen"
    script = f"import subprocess, sys; subprocess.{start}([sys.executable, '-c', {child!r}])"
    async with relayed(script, shop_model) as (_, _, written):
        await until(lambda: bool(written))
    child_pid = int(written[0])
    if not has_parent:
        assert psutil.pid_exists(child_pid), "the proxy has waited for the child"
        os.kill(child_pid, signal.SIGKILL)
    await until_ended(child_pid)


@pytest.mark.parametrize("input_ends", [True, False])
async def test_sigterm_ends_a_server_that_ignores_it_before_a_client_would_kill_the_proxy(
    input_ends: bool, shop: Shop
) -> None:
    model = ["--model", str(shop.folder / "model.json")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "cli.py"), "mcp", *model, "--", sys.executable, "-c", STUBBORN),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    server_pid = int(await process.stdout.readline())
    if input_ends:
        process.stdin.close()
        await asyncio.sleep(0.2)
    process.terminate()
    async with asyncio.timeout(4):
        await process.wait()
    assert input_ends or process.returncode == 128 + signal.SIGTERM
    await until_ended(server_pid)


DIES_IN_A_LINE = """
import os, sys
sys.stdin.readline(); sys.stdin.readline()
sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "result": {"content": [')
sys.stdout.flush()
os._exit(9)
"""


async def test_a_server_that_dies_within_a_line_leaves_no_request_unanswered(shop_model: CallModel) -> None:
    proxy = McpProxy([sys.executable, "-c", DIES_IN_A_LINE], shop_model)
    out: list[bytes] = []
    client = asyncio.StreamReader()
    for number in (1, 2):
        asked_for = {"id": number, "method": "tools/call", "params": {"name": "a", "arguments": {}}}
        client.feed_data(json.dumps({"jsonrpc": "2.0", **asked_for}).encode() + b"\n")
    running = asyncio.create_task(proxy.run(client, out.append))
    await until(lambda: b"".join(out).count(b"exit status 9") == 2)
    client.feed_eof()
    await running
    _begun, *answers = b"".join(out).splitlines()
    assert {json.loads(answer)["id"] for answer in answers} == {1, 2}
