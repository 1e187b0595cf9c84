"""Calls in Qwen3-Coder's form: however the text is cut, the same calls come of it, with their types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.chat.base import ToolCallDelta
from reason_spec.chat.call_forms import QWEN3_CODER, form_of
from reason_spec.chat.xml_calls import XmlCallParser, _as_json, parser_for

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "size": {"type": "number"},
    "loud": {"type": "boolean"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"type": ["number", "string"]},
    "items": {"type": "array"},
    "nested": {"$ref": "#/$defs/Nested"},
    "kind": {"enum": ["a", "b"]},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES}
TOOLS = [
    {"type": "function", "function": {"name": "write", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "wait"}},
]


def call(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def read(pieces: Sequence[str], *, parallel: bool = True) -> tuple[str, list[tuple[str, str]]]:
    parser = parser_for(QWEN3_CODER, TOOLS, parallel=parallel)
    assert isinstance(parser, XmlCallParser)
    content = ""
    calls: list[tuple[str, str]] = []
    for one in [one for piece in pieces for one in parser.feed(piece)] + parser.close():
        if isinstance(one, str):
            content += one
            continue
        assert isinstance(one, ToolCallDelta)
        if one.index == len(calls):
            assert one.id is not None
            assert one.name is not None
            calls.append((one.name, ""))
        assert one.index == len(calls) - 1
        calls[-1] = (calls[-1][0], calls[-1][1] + one.arguments)
    assert len(calls) == parser.num_calls
    return content, calls


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("text", "a\n  b < c </p", "a\n  b < c </p"),
        ("text", "12", "12"),
        ("text", "", ""),
        ("text", "\n", "\n"),
        ("text", '"é"\\ \n</parameter', '"é"\\ \n</parameter'),
        ("unknown", "12", "12"),
        ("count", "12", 12),
        ("count", "twelve", "twelve"),
        ("count", "NaN", "NaN"),
        ("size", "1e3", 1000.0),
        ("loud", "True", True),
        ("loud", "false", False),
        ("maybe", "null", None),
        ("maybe", "3", "3"),
        ("either", "3", 3),
        ("either", "[3]", "[3]"),
        ("items", '[1, {"a": "</x>"}]', [1, {"a": "</x>"}]),
        ("nested", '{"a": 1}', {"a": 1}),
        ("kind", "a", "a"),
        ("items", "[" * 5000, "[" * 5000),
    ],
)
def test_values_have_the_type_that_the_schema_names(name: str, written: str, value: Any) -> None:
    text = call("write", **{name: written})
    content, [(called, arguments)] = read([text])
    assert (content, called, json.loads(arguments)) == ("", "write", {name: value})
    assert read(list(text)) == (content, [(called, arguments)])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"I wait.\n{call('wait')}\n", "I wait.", [("wait", {})]),
        (f"{call('wait')}\n{call('write', count='1')} So.", " So.", [("wait", {}), ("write", {"count": 1})]),
        ("<function=wait></function> on", " on", [("wait", {})]),
        ("<function=wait>\n</function>\n</tool_call>\n", "", [("wait", {})]),
        ("<tool_call><function=wait></tool_call>", "", [("wait", {})]),
        (
            "<tool_call><function=wait></function><function=wait></function></tool_call>",
            "",
            [("wait", {}), ("wait", {})],
        ),
        (
            "<tool_call><function=wait>now</function></tool_call>",
            "now</function></tool_call>",
            [("wait", {})],
        ),
    ],
)
def test_calls_and_text_are_separated(text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    found = read([text])
    assert found == read(list(text))
    assert (found[0], [(name, json.loads(arguments)) for name, arguments in found[1]]) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>',
        "a <b> c\n<tool_ca",
        "<function=wai",
        "</tool_call> </function>",
        " \n ",
        "<<tool_call><<function=wait",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read([text]) == read(list(text)) == (text, [])


def test_only_the_first_call_is_read_where_calls_go_one_by_one() -> None:
    text = call("wait") + call("write", text="x")
    assert read([text], parallel=False) == read(list(text), parallel=False) == ("", [("wait", "{}")])


def test_a_text_value_streams_while_it_is_written() -> None:
    parser = parser_for(QWEN3_CODER, TOOLS)
    head = parser.feed("<tool_call>\n<function=write>\n<parameter=text>\nThe first line\n")
    assert isinstance(head[-1], ToolCallDelta)
    assert head[-1].arguments == '{"text": "The first line'
    (more,) = parser.feed("and")
    assert isinstance(more, ToolCallDelta)
    assert more.arguments == "\\nand"


def test_the_form_is_known_by_the_template() -> None:
    shown = "...<tool_call>\\n<function=' + tool_call.name + '>\\n<parameter=' ..."
    assert form_of(shown) == QWEN3_CODER
    assert form_of("<tool_call>").name == "hermes"


SCRAPS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=", "wait", "write", ">", "</function>", "<parameter=text>",
        "<parameter=count>", "</parameter>", "\n", " ", "1", "<", "é", '"', "\\", "So.", "<function=wait>",
    ]
)  # fmt: skip


@given(st.lists(SCRAPS, max_size=25), st.data())
def test_how_a_text_is_cut_changes_nothing(scraps: list[str], data: st.DataObject) -> None:
    text = "".join(scraps)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    whole = read([text])
    assert read(pieces) == read(list(text)) == whole
    if not whole[1]:
        assert whole[0] == text


TEXTS = st.text().filter(lambda text: "</parameter>" not in text)


@given(st.dictionaries(st.sampled_from(["text", "unknown"]), TEXTS), st.data())
def test_texts_come_back_as_they_were_written(values: dict[str, str], data: st.DataObject) -> None:
    text = call("write", **values)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    content, [(name, arguments)] = read(pieces)
    assert (content, name, json.loads(arguments)) == ("", "write", values)


def test_a_number_that_json_has_not_is_a_text() -> None:
    assert json.loads(_as_json("1e400", frozenset({"number"}))) == "1e400"
    assert json.loads(_as_json("[1, 1e999]", frozenset({"array"}))) == "[1, 1e999]"
    assert json.loads(_as_json("1e40", frozenset({"number"}))) == 1e40
