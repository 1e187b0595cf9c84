"""The proxy's own calls: their ids, and what they say of the user."""

from __future__ import annotations

from typing import Any

import pytest

from reason_spec.tools_ahead.calls import Call
from reason_spec.tools_ahead.mcp_own_calls import OwnCalls


def test_two_proxies_in_a_row_do_not_take_each_others_answers() -> None:
    sent: list[dict[str, Any]] = []
    inner, outer = OwnCalls(sent.append), OwnCalls(sent.append)
    asked = inner.start(Call.of("get_user", {}))
    outer.start(Call.of("get_order", {}))
    assert sent[0]["id"] != sent[1]["id"]
    assert not inner.take({"id": sent[1]["id"], "result": {"content": []}})
    assert not asked.done()
    assert inner.take({"id": sent[0]["id"], "result": {"content": []}})
    assert asked.result() == {"content": []}


@pytest.mark.parametrize(
    ("meta", "is_other"),
    [
        ({"user": "ann"}, False),
        ({"user": "ann", "progressToken": 3, "traceparent": "00-2"}, False),
        ({"user": "ben"}, True),
        ({}, True),
        (None, True),
        ("no object", True),
    ],
)
def test_another_user_is_noticed_and_another_trace_is_not(meta: object, is_other: bool) -> None:
    sent: list[dict[str, Any]] = []
    calls = OwnCalls(sent.append)
    calls.set_meta({"user": "ann", "progressToken": 1, "traceparent": "00-1"})
    assert calls.set_meta(meta) is is_other
    calls.start(Call.of("get_user", {}))
    assert "progressToken" not in sent[0]["params"].get("_meta", {})
