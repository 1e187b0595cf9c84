"""Trusted clients get the predicted calls; the text, other clients and other tenants see nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest

from tests.server.processes import ServeProcess, bearer, refused, until
from tests.server.shop import MARKED, NUM_PAST, ORDERS, TOOLS, ask, keys_and_server, with_ids
from tests.tools_ahead.conftest import shop_model
from tests.tools_ahead.some_conversations import messages_of, result

__all__ = ["keys_and_server", "shop_model"]


def openai_client(server: ServeProcess, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def items_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as items of ``/v1/responses``."""
    items: list[dict[str, Any]] = []
    for message in with_ids(messages):
        if message["role"] == "tool":
            result = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **result})
        elif message["content"] is not None:
            items.append({"role": message["role"], "content": message["content"]})
        items += [
            {"type": "function_call", "call_id": called["id"], **called["function"]}
            for called in message.get("tool_calls", ())
        ]
    return items


def flat(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tools as ``/v1/responses`` has them."""
    return [{"type": "function", **tool["function"]} for tool in tools]


def orders_in(calls: list[dict[str, Any]]) -> list[str]:
    assert {call["function"]["name"] for call in calls} <= {"get_order"}
    assert all(0 <= call["probability"] <= 1 for call in calls)
    return [json.loads(call["function"]["arguments"])["order_id"] for call in calls]


def chunks_of(server: ServeProcess, key: str, **body: Any) -> list[dict[str, Any]]:
    lines = ask(server, key, stream=True, **body).text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_a_stream_has_the_predicted_calls_before_the_model_writes_one(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    chunks: list[dict[str, Any]] = []

    def is_predicted() -> bool:
        chunks[:] = chunks_of(server, keys["ann"])
        return "reason_spec" in chunks[0]

    # On a busy machine the answer may begin before.
    until(is_predicted)
    first, *rest = chunks
    assert set(orders_in(first["reason_spec"]["predicted_tool_calls"])) == set(ORDERS)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    report = rest[-1]["reason_spec"]["predicted_tool_calls"]
    made = [json.loads(one["function"]["arguments"])["order_id"] for one in report if one["made"]]
    assert made == ORDERS[:1]


def test_the_text_and_the_prompt_are_those_without(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    marked, plain = ask(server, keys["ann"]).json(), ask(server, keys["ann"], tools=TOOLS).json()
    assert plain["reason_spec"]["predicted_tool_calls"] is None
    assert len(marked["reason_spec"]["predicted_tool_calls"]) == len(ORDERS)
    for body in (marked, plain):
        body["choices"][0]["message"]["tool_calls"][0].pop("id")
    assert marked["choices"][0]["message"] == plain["choices"][0]["message"]
    assert marked["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert marked["reason_spec"]["loss_class"] == "exact"


def test_the_access_log_has_the_number_of_predicted_calls(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    asked = [ask(server, keys["ann"], tools=tools).headers["x-request-id"] for tools in (MARKED, TOOLS)]

    def numbers() -> list[int | None]:
        lines = {line.get("request_id"): line for line in server.log()}
        return [lines[identity].get("predicted_calls") for identity in asked if identity in lines]

    until(lambda: len(numbers()) == 2)
    assert numbers() == [len(ORDERS), None]


def test_neither_other_tenants_nor_other_salts_nor_untrusted_clients_get_predictions(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    assert ask(server, keys["bob"]).json()["reason_spec"]["predicted_tool_calls"] == []
    salted = ask(server, keys["ann"], cache_salt="another").json()
    assert salted["reason_spec"]["predicted_tool_calls"] == []
    assert "reason_spec" not in ask(server, keys["eve"]).json()
    assert all("reason_spec" not in chunk for chunk in chunks_of(server, keys["eve"]))


def test_the_client_of_openai_reads_the_stream(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    client = openai_client(server, keys["ann"])
    messages: Any = with_ids(messages_of(70)[:4])
    tools: Any = MARKED
    with client.chat.completions.stream(model="says", messages=messages, tools=tools) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments) == {"order_id": ORDERS[0]}


def test_a_stream_of_responses_begins_with_the_predicted_calls(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    asked: dict[str, Any] = {"model": "says", "input": items_of(messages_of(70)[:4]), "tools": flat(MARKED)}
    events: list[Any] = []

    def is_predicted() -> bool:
        with openai_client(server, keys["ann"]).responses.stream(**asked) as stream:
            events[:] = stream
        return hasattr(events[0].response, "reason_spec")

    # On a busy machine the answer may begin before.
    until(is_predicted)
    created, in_progress, *_, completed = events
    assert [created.type, completed.type] == ["response.created", "response.completed"]
    assert set(orders_in(created.response.reason_spec["predicted_tool_calls"])) == set(ORDERS)
    assert not hasattr(in_progress.response, "reason_spec")
    report = completed.response.reason_spec["predicted_tool_calls"]
    assert orders_in([one for one in report if one["made"]]) == ORDERS[:1]
    (call,) = completed.response.output
    assert json.loads(call.arguments) == {"order_id": ORDERS[0]}


def test_a_whole_response_reports_the_predicted_calls(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    items = items_of(messages_of(70)[:4])

    def reported(name: str, tools: list[dict[str, Any]], **more: Any) -> Any:
        client = openai_client(server, keys[name])
        given: dict[str, Any] = {"model": "says", "input": items, "tools": flat(tools)}
        report = getattr(client.responses.create(**given, extra_body=more), "reason_spec", None)
        return report and report["predicted_tool_calls"]

    found = reported("ann", MARKED)
    assert set(orders_in(found)) == set(ORDERS)
    assert orders_in([one for one in found if one["made"]]) == ORDERS[:1]
    rule = {"read_only_tools": [f"get_order(order_id={ORDERS[1]})"]}
    assert orders_in(reported("ann", TOOLS, reason_spec=rule)) == ORDERS[1:2]
    assert reported("ann", TOOLS) is None
    assert reported("bob", MARKED) == []
    assert reported("eve", MARKED) is None


EVICT = {"context_management": {"edits": [{"type": "evict"}]}}


@pytest.mark.parametrize(("name", "is_hinted"), [("cid", False), ("dan", True)])
def test_responses_of_a_session_are_learned_when_it_ends(
    keys_and_server: tuple[dict[str, str], ServeProcess], name: str, is_hinted: bool
) -> None:
    keys, server = keys_and_server
    client = openai_client(server, keys[name])

    def answered(number: int, turns: list[dict[str, Any]], **more: Any) -> Any:
        given: dict[str, Any] = {"model": "says", "input": items_of(turns), "tools": flat(MARKED)}
        session = f"past {number}"
        named = {"agent_hint": {"session_id": session, **more}} if is_hinted else {"session_id": session}
        return client.responses.create(**given, extra_body=named).model_extra["reason_spec"]

    for number in range(NUM_PAST):
        answered(number, messages_of(number)[:-1])
    assert answered(70, messages_of(70)[:4])["predicted_tool_calls"] == [], "no session has ended"
    for number in range(NUM_PAST):
        if is_hinted:
            answered(number, messages_of(number)[:-1], **EVICT)
        else:
            ended = server.http.delete(f"/v1/sessions/past {number}", headers=bearer(keys[name]))
            assert ended.json()["deleted"]
    assert set(orders_in(answered(70, messages_of(70)[:4])["predicted_tool_calls"])) == set(ORDERS)


def test_calls_may_be_marked_by_rules(keys_and_server: tuple[dict[str, str], ServeProcess]) -> None:
    keys, server = keys_and_server
    rule = {"read_only_tools": [f"get_order(order_id={ORDERS[1]})"]}
    answer = ask(server, keys["ann"], tools=TOOLS, reason_spec=rule).json()
    assert orders_in(answer["reason_spec"]["predicted_tool_calls"]) == ORDERS[1:2]
    wrong = ask(server, keys["ann"], reason_spec={"read_only_tools": ["get_order("]}).json()["error"]
    assert (wrong["param"], "names no tool" in wrong["message"]) == ("reason_spec.read_only_tools", True)


def test_metrics_count_what_was_predicted_and_made(
    keys_and_server: tuple[dict[str, str], ServeProcess],
) -> None:
    keys, server = keys_and_server
    before = settled_counts(server, keys["bob"])
    # A conversation of its own: calls that are awaited already count once.
    ask(server, keys["ann"], session_id="counted")
    until(
        lambda: (
            counted(server, keys["bob"])["predicted_calls_made_total"] > before["predicted_calls_made_total"]
        )
    )
    grown = {name: value - before[name] for name, value in counted(server, keys["bob"]).items()}
    assert grown == {
        "predicted_calls_total": len(ORDERS),
        "predicted_calls_made_total": 1,
        "read_only_calls_total": 1,
    }


def settled_counts(server: ServeProcess, key: str) -> dict[str, float]:
    """Return the counts once two readings agree: calls count a moment after their answer."""
    before = counted(server, key)
    while True:
        time.sleep(0.2)
        now = counted(server, key)
        if now == before:
            return now
        before = now


def counted(server: ServeProcess, key: str) -> dict[str, float]:
    lines = server.http.get("/metrics", headers=bearer(key)).text.splitlines()
    found = dict.fromkeys(
        ("predicted_calls_total", "predicted_calls_made_total", "read_only_calls_total"), 0.0
    )
    for line in lines:
        for name in found:
            if line.startswith(f'reason_spec:{name}{{model_name="says",tool="get_order"}}'):
                found[name] = float(line.rpartition(" ")[2])
    return found


def test_a_bad_rule_of_the_settings_is_refused(tmp_path: Any) -> None:
    values = ("server.predicted_calls.use=true", "server.predicted_calls.read_only=get_order(")
    options = [part for value in values for part in ("--set", value)]
    assert "names no tool" in refused("--port", "0", *options, cwd=tmp_path)


@pytest.mark.parametrize("name", ["Half 71", "Half 72"])
def test_half_a_surrogate_pair_in_a_result_or_a_call_does_not_hurt_an_answer(
    keys_and_server: tuple[dict[str, str], ServeProcess], name: str
) -> None:
    keys, server = keys_and_server
    messages = [*messages_of(71)[:3], result({"name": name, "orders": ["\ud83d", "A12345"]})]
    whole = ask(server, keys["ann"], messages)
    assert whole.status_code == 200, whole.text
    assert whole.json()["choices"][0]["finish_reason"] == ("tool_calls" if name == "Half 71" else "stop")
    chunks = chunks_of(server, keys["ann"], messages=messages)
    assert chunks[-1].get("usage") or any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
