"""However a text is cut into pieces, the same calls and the same content come of it; nothing is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.chat.base import ChatRequest, ChatSampling, ToolCallDelta
from reason_spec.chat.call_forms import HERMES, LLAMA, MISTRAL, CallForm, form_of
from reason_spec.chat.tool_calls import ToolCallParser
from reason_spec.errors import RequestError
from tests.chat.scripted import ADD, LOOK, answer_of, asks, chat_with, events_of, num_running

NAMES = ("add", "look_up", "lo")
FORMS = (HERMES, MISTRAL, LLAMA)
ID = re.compile(r"call_[0-9a-f]{24}")


class Read(NamedTuple):
    content: str
    calls: list[tuple[str, str]]


def read(form: CallForm, pieces: Sequence[str], *, parallel: bool = True) -> Read:
    parser = ToolCallParser(form, NAMES, parallel=parallel)
    found = [one for piece in pieces for one in parser.feed(piece)] + parser.close()
    content = ""
    calls: list[tuple[str, str]] = []
    ids: set[str | None] = set()
    for one in found:
        if isinstance(one, str):
            content += one
            continue
        assert isinstance(one, ToolCallDelta)
        if one.index == len(calls):
            assert one.name is not None
            assert ID.fullmatch(one.id or "")
            calls.append((one.name, ""))
            ids.add(one.id)
        else:
            assert one.name is one.id is None
            # Calls do not run into each other.
            assert one.index == len(calls) - 1
        calls[one.index] = (calls[one.index][0], calls[one.index][1] + one.arguments)
    assert len(ids) == len(calls) == parser.num_calls
    return Read(content, calls)


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (
            HERMES,
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
            "",
            [("add", '{"a": 1}')],
        ),
        (
            HERMES,
            'Sum.\n<tool_call>{"name":"add"}</tool_call>\n<tool_call>{"name":"lo","arguments":{}}</tool_call>\n',
            "Sum.",
            [("add", "{}"), ("lo", "{}")],
        ),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [("add", '{"a": 1}')]),
        (
            HERMES,
            '<tool_call>{"name":"add","arguments":"{\\"a\\": 1}"}</tool_call>',
            "",
            [("add", '{"a": 1}')],
        ),
        (HERMES, '<tool_call>{"function":{"name":"add","arguments":{}}}</tool_call>', "", [("add", "{}")]),
        (HERMES, '<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
        (
            HERMES,
            '<tool_call>{"name":"add","arguments":{"a":"</tool_call>}\\""}}</tool_call> So.',
            " So.",
            [("add", '{"a":"</tool_call>}\\""}')],
        ),
        (
            HERMES,
            '<tool_call>{"name":"add","arguments":{"a":[{}]}}}</tool_call>',
            "",
            [("add", '{"a":[{}]}')],
        ),
        (MISTRAL, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', "", [("add", '{"a": 1}')]),
        (
            MISTRAL,
            '[{"name": "add", "arguments": {}}, {"name": "lo", "arguments": {}}]',
            "",
            [("add", "{}"), ("lo", "{}")],
        ),
        (MISTRAL, '[TOOL_CALLS]look_up[ARGS]{"a": {}}', "", [("look_up", '{"a": {}}')]),
        (MISTRAL, 'lo{"a": 1}look_up{}', "", [("lo", '{"a": 1}'), ("look_up", "{}")]),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}}', "", [("add", '{"a": 1}')]),
        (
            LLAMA,
            '<|python_tag|>{"type":"function","name":"add","parameters":{}}; {"name":"lo", "parameters":{}}',
            "",
            [("add", "{}"), ("lo", "{}")],
        ),
    ],
)
def test_calls_are_read_in_every_form(
    form: CallForm, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read(form, [text]) == read(form, list(text)) == Read(content, calls)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, "<tool_call>add 2 and 2</tool_call>"),
        (HERMES, 'So:\n<tool_call>{"name": "unknown", "arguments": {}}</tool_call>\n'),
        (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        (HERMES, "<tool_call></tool_call>"),
        (HERMES, '<tool_call>{"name": "add"'),
        (HERMES, "a < b, <tool_ca"),
        (HERMES, '{"name": "add", "arguments": {}}'),
        (MISTRAL, "[1, 2] is the interval"),
        (MISTRAL, "add them, look"),
        (MISTRAL, "[TOOL_CALLS]unknown{}"),
        (LLAMA, '{"name": "Bob", "age": 3}'),
        (LLAMA, '{"answer": [1, {"a": "}"}]} it is'),
        (LLAMA, " \n "),
    ],
)
def test_what_is_no_call_stays_text(form: CallForm, text: str) -> None:
    assert read(form, [text]) == read(form, list(text)) == Read(text, [])


@pytest.mark.parametrize("cut", range(30, 62))
def test_a_call_that_is_cut_off_keeps_what_was_written(cut: int) -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": [1, "b"]}}</tool_call>'
    whole = '{"a": [1, "b"]}'
    num_written = cut - text.index(whole)
    expected = Read("", [("add", whole[:num_written])]) if num_written > 0 else Read(text[:cut], [])
    assert read(HERMES, [text[:cut]]) == expected


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text('ab {}[]"\\<>/é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(st.sampled_from(["a", "name", "arguments"]), values, max_size=2)
words = st.text('ab <>{}[]",:\n/', max_size=12)


def written(form: CallForm, name: str, arguments: Any) -> str:
    key = "parameters" if form is LLAMA else "arguments"
    call = json.dumps({"name": name, key: arguments}, ensure_ascii=False)
    return {
        "hermes": f"<tool_call>\n{call}\n</tool_call>",
        "mistral": f"[TOOL_CALLS][{call}]",
        "llama": f"<|python_tag|>{call}",
    }[form.name]


def cut_up(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=8))})
    return [text[start:end] for start, end in pairwise(cuts)]


@given(
    st.sampled_from(FORMS),
    st.lists(
        words
        | st.sampled_from(
            ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", '{"name": "add", ', "lo{", "add[ARGS]"]
        )
        | st.tuples(st.sampled_from([*NAMES, "unknown"]), objects),
        max_size=5,
    ),
    st.booleans(),
    st.data(),
)
def test_how_a_text_is_cut_changes_nothing(
    form: CallForm, parts: list[Any], parallel: bool, data: st.DataObject
) -> None:
    text = "".join(part if isinstance(part, str) else written(form, *part) for part in parts)
    whole = read(form, [text], parallel=parallel)
    assert read(form, cut_up(text, data), parallel=parallel) == whole
    assert len(whole.calls) <= (len(text) if parallel else 1)


@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.sampled_from(NAMES), objects), min_size=1, max_size=3),
    st.data(),
)
def test_calls_are_given_back_as_they_were_written(
    form: CallForm, calls: list[tuple[str, Any]], data: st.DataObject
) -> None:
    text = "Let me see.\n" + "\n".join(written(form, *call) for call in calls)
    content, found = read(form, cut_up(text, data))
    assert content == "Let me see."
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
    assert read(form, [text], parallel=False).calls == found[:1]


@given(st.text('ab <>{}[]",:\n/', max_size=40).filter(lambda text: "tool_call" not in text), st.data())
def test_text_without_calls_is_left_as_it_is(text: str, data: st.DataObject) -> None:
    for form in FORMS:
        assert read(form, cut_up(text, data)) == Read(text, [])


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (None, HERMES),
        ("{{ messages }}", HERMES),
        ("... <tool_call> ...", HERMES),
        ("... [TOOL_CALLS] ...", MISTRAL),
        ("... <|python_tag|> ...", LLAMA),
        ("... ipython ... '\"parameters\": ' ...", LLAMA),
    ],
)
def test_the_template_names_the_form(template: str | None, form: CallForm) -> None:
    assert form_of(template) is form


# --- calls in chats -----------------------------------------------------------------------------

CALLS = (
    'Let me add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)


async def test_calls_stream_with_name_and_id_first_and_arguments_in_pieces() -> None:
    async with chat_with({"sums": CALLS}) as chat:
        events = await events_of(chat, asks("sums", tools=[ADD, LOOK]))
        answer = await answer_of(chat, asks("sums", tools=[ADD, LOOK]))
        assert await num_running(chat) == 0
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [(delta.index, delta.name) for delta in deltas if delta.name] == [(0, "add"), (1, "look")]
    assert len([delta for delta in deltas if delta.index == 0]) > 2
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("add", '{"a": 2}'),
        ("look", "{}"),
    ]
    assert (answer.content, answer.end.finish) == ("Let me add.", "tool_calls")
    assert answer.end.report.strategy == "speculative"


async def test_only_the_first_call_is_kept_and_writing_stops_there() -> None:
    async with chat_with({"sums": CALLS}, seconds_per_pass=0.001) as chat:
        answer = await answer_of(chat, asks("sums", tools=[ADD, LOOK], parallel_tool_calls=False))
        assert await num_running(chat) == 0
        whole = chat.accelerator.target.tokenizer.encode(CALLS)
    assert [call.name for call in answer.tool_calls] == ["add"]
    assert answer.end.finish == "tool_calls"
    assert 0 < answer.end.num_tokens < len(whole)


async def test_without_a_choice_of_tools_text_is_text() -> None:
    async with chat_with({"sums": CALLS}) as chat:
        answer = await answer_of(chat, asks("sums", tools=[ADD, LOOK], tool_choice="none"))
    assert (answer.content, answer.tool_calls, answer.end.finish) == (CALLS, (), "stop")


async def test_a_tool_that_was_not_offered_is_not_called() -> None:
    async with chat_with({"sums": CALLS}) as chat:
        answer = await answer_of(chat, asks("sums", tools=[LOOK]))
    assert [call.name for call in answer.tool_calls] == ["look"]
    assert answer.content is not None
    assert '{"name": "add"' in answer.content


async def test_a_call_that_the_limit_cuts_off_ends_by_length() -> None:
    async with chat_with({"sums": CALLS}) as chat:
        request = asks("sums", tools=[ADD, LOOK], sampling=ChatSampling(max_tokens=26))
        answer = await answer_of(chat, request)
    assert answer.end.finish == "length"
    assert [call.name for call in answer.tool_calls] == ["add"]
    assert '{"a": 2}'.startswith(answer.tool_calls[0].arguments)


async def test_results_lead_to_the_next_turn() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "sums"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "result 4"},
    ]
    async with chat_with({"sums": CALLS, "result 4": "It is 4."}) as chat:
        answer = await answer_of(chat, ChatRequest(messages=messages, tools=[ADD]))
    assert (answer.content, answer.end.finish) == ("It is 4.", "stop")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [ADD], "tool_choice": "subtract"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]},
            "tools[0].function.parameters",
        ),
        ({"chat_arguments": {"messages": []}}, "chat_template_kwargs.messages"),
    ],
)
async def test_tools_of_another_form_are_refused_by_place(more: dict[str, Any], param: str) -> None:
    async with chat_with({"sums": CALLS}) as chat:
        with pytest.raises(RequestError) as error:
            await chat.prepare(asks("sums", **more))
    assert error.value.param == param
