"""Conversations of a shop: a user, that user's orders one after the other, sometimes a change."""

from __future__ import annotations

import json
import random
from typing import Any

from reason_spec.lab.tools_ahead.moments import Recorded
from reason_spec.suffix.traces import TraceMessage
from reason_spec.tools_ahead.calls import Event, ReadOnlyTools, events_of

READ_ONLY = ReadOnlyTools(["get_user", "get_order"])


def user(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    orders = [f"{rng.choice('ABCDEFG')}{rng.randrange(10_000, 99_999)}" for _ in range(rng.randrange(2, 5))]
    return {"name": f"Nora {number}", "orders": orders}


def order(identity: str) -> dict[str, Any]:
    return {"order_id": identity, "state": "sent", "price": int(identity[1:]) % 97}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def result(value: Any) -> dict[str, Any]:
    return {"role": "tool", "content": json.dumps(value)}


def messages_of(number: int, *, cancels: bool = False) -> list[dict[str, Any]]:
    """The agent looks at the user, then at each order in turn, then may cancel the first."""
    shown = user(number)
    messages = [
        {"role": "system", "content": "You help in a shop."},
        {"role": "user", "content": f"Where are my orders? My id is nora_{number}."},
        call("get_user", user_id=f"nora_{number}"),
        result(shown),
    ]
    for identity in shown["orders"]:
        messages += [call("get_order", order_id=identity), result(order(identity))]
    if cancels:
        messages += [call("cancel_order", order_id=shown["orders"][0]), result("done")]
    messages.append({"role": "assistant", "content": "All of them are sent."})
    return messages


def events(number: int, *, cancels: bool = False) -> tuple[Event, ...]:
    return tuple(events_of(map(TraceMessage.model_validate, messages_of(number, cancels=cancels))))


def conversations(first: int, last: int) -> list[Recorded]:
    return [
        Recorded(str(number), "0", events(number, cancels=number % 3 == 0)) for number in range(first, last)
    ]
