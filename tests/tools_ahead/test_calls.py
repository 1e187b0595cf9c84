"""Calls: which are the same, which change nothing, and the events of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import SettingsError
from reason_spec.suffix.traces import TraceMessage
from reason_spec.tools_ahead.calls import (
    Call,
    Called,
    ReadOnlyTools,
    Returned,
    Said,
    annotated_tools,
    events_of,
    read_messages,
)
from tests.tools_ahead.some_conversations import call, result

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=4))
def test_the_order_of_arguments_does_not_matter(arguments: dict[str, object]) -> None:
    turned = dict(reversed(arguments.items()))
    assert Call.of("a", arguments) == Call.of("a", turned)
    assert Call.of("a", arguments).arguments == arguments


def test_calls_are_the_same_by_value_and_not_by_resemblance() -> None:
    assert Call.of("a", {"n": 1.0}) == Call.of("a", {"n": 1})
    assert Call.of("a", {"n": "1"}) != Call.of("a", {"n": 1})
    assert Call.of("a", {"q": "Rome"}) != Call.of("a", {"q": "rome"})
    assert Call.of("a", {"q": " Rome"}) != Call.of("a", {"q": "Rome"})
    assert Call.of("a", {}) != Call.of("b", {})
    assert Call.of("a", {"n": True}) != Call.of("a", {"n": 1})
    assert Call.of("a", {"x=1, y": 2}) != Call.of("a", {"x": 1, "y": 2})


def test_a_rule_may_allow_some_calls_of_a_tool_only() -> None:
    may = ReadOnlyTools(["search", "editor(command=view)", "page(number=3)"])
    assert may(Call.of("search", {"q": "x"}))
    assert may(Call.of("editor", {"command": "view", "path": "a"}))
    assert may(Call.of("page", {"number": 3}))
    assert not may(Call.of("editor", {"command": "create", "path": "a"}))
    assert not may(Call.of("editor", {"path": "view"}))
    assert not may(Call.of("book", {}))


@pytest.mark.parametrize("rule", ["", "two words", "a(b)", "a(b=c", "(x=y)"])
def test_an_unreadable_rule_is_refused_by_name(rule: str) -> None:
    with pytest.raises(SettingsError, match="ARGUMENT=VALUE"):
        ReadOnlyTools([rule])


def test_results_belong_to_the_calls_before_them_in_their_order() -> None:
    both = call("a", x=1)
    both["tool_calls"] += call("b", y=2)["tool_calls"]
    messages = [{"role": "user", "content": "go"}, both, result("one"), result("two"), result("three")]
    found = list(events_of(map(TraceMessage.model_validate, messages)))
    a, b = Call.of("a", {"x": 1}), Call.of("b", {"y": 2})
    assert found == [Said("user", "go"), Called(a), Called(b), Returned(a, '"one"'), Returned(b, '"two"')]


class SomeMessage:
    """A message as a framework may have it."""

    role = "user"
    content = "go"


@pytest.mark.parametrize(
    "message", ["go", ("user", "go"), None, SomeMessage()], ids=["text", "pair", "None", "object"]
)
def test_a_message_that_is_no_mapping_is_refused_with_what_it_is(message: Any) -> None:
    with pytest.raises(pydantic.ValidationError, match="valid dictionary") as refused:
        read_messages([{"role": "user", "content": "go"}, message])
    assert f"input_type={type(message).__name__}" in str(refused.value)


@pytest.mark.parametrize(
    ("annotations", "may"),
    [
        ({"readOnlyHint": True}, True),
        ({"readOnlyHint": True, "idempotentHint": True}, True),
        ({"readOnlyHint": True, "idempotentHint": False}, False),
        ({"readOnlyHint": False, "idempotentHint": True}, False),
        ({"idempotentHint": True}, False),
        ({}, False),
        (None, False),
    ],
)
def test_only_tools_that_read_may_run_ahead(annotations: Mapping[str, bool] | None, may: bool) -> None:
    assert annotated_tools([{"name": "a", "annotations": annotations}]) == ({"a"} if may else set())


def test_results_belong_to_the_calls_that_they_name() -> None:
    both = call("a", x=1)
    both["tool_calls"] += call("b", y=2)["tool_calls"]
    both["tool_calls"] = [{**one, "id": str(place)} for place, one in enumerate(both["tool_calls"])]
    results = [{**result("of b"), "tool_call_id": "1"}, {**result("of a"), "tool_call_id": "0"}]
    events = list(events_of(read_messages([both, *results])))
    found = [(event.call.name, event.text) for event in events if isinstance(event, Returned)]
    assert found == [("b", '"of b"'), ("a", '"of a"')]
