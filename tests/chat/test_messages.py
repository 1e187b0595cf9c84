"""Conversations of every client become messages of one form, and what cannot be read is named."""

from __future__ import annotations

from typing import Any

import pytest

from reason_spec.chat.messages import normalised
from reason_spec.errors import RequestError


def one(**message: Any) -> dict[str, Any]:
    return dict(normalised([message])[0])


@pytest.mark.parametrize(
    ("role", "made"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_roles_are_those_that_templates_know(role: str, made: str) -> None:
    assert one(role=role, content="x") == {"role": made, "content": "x"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("x", "x"),
        ([], ""),
        ([{"type": "text", "text": "x"}, {"type": "text", "text": "y"}], "x\ny"),
        ([{"type": "input_text", "text": "x"}], "x"),
        (["x"], "x"),
    ],
)
def test_contents_become_text(content: Any, text: str) -> None:
    assert one(role="user", content=content)["content"] == text


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_taken_in_both_spellings(name: str) -> None:
    message = {"role": "assistant", "content": "x", name: "hm", "refusal": None, "audio": None}
    assert one(**message) == {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    # It is the model's alone.
    assert one(role="user", content="x", **{name: "hm"}) == {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("arguments", "made"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("a = 1", "a = 1"), ("[1]", "[1]"), ("", {}), (None, {})],
)
def test_arguments_become_objects_where_they_are_json(arguments: Any, made: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    message = one(role="assistant", content=None, tool_calls=[call])
    assert message["tool_calls"] == [
        {"type": "function", "id": "c1", "function": {"name": "add", "arguments": made}}
    ]


def test_the_old_form_of_a_call_is_read() -> None:
    message = one(role="assistant", content=None, function_call={"name": "add", "arguments": "{}"})
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "add", "arguments": {}}}]


def test_results_keep_what_they_answer() -> None:
    made = one(role="tool", content="4", tool_call_id="c1", name="add")
    assert made == {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "add"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content"),
        ({"role": "user", "content": "\udc00"}, "messages[1].content"),
        ({"role": "user", "content": "x", "name": 3}, "messages[1].name"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": None}}]},
            "messages[1].tool_calls[0].function.name",
        ),
        *(
            (
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
                "messages[1].tool_calls[0].function.arguments",
            )
            for arguments in ('{"a": "\\ud800"}', '{"a": ' + 5000 * "[" + 5000 * "]" + "}")
        ),
        ("hello", "messages[1]"),
    ],
)
def test_what_cannot_be_read_is_refused_by_place(message: Any, param: str) -> None:
    with pytest.raises(RequestError) as error:
        normalised([{"role": "user", "content": "x"}, message])
    assert error.value.param == param


def test_a_conversation_without_messages_is_refused() -> None:
    with pytest.raises(RequestError) as error:
        normalised([])
    assert error.value.param == "messages"
