"""Calls in channels: however the text is cut the same calls come of it, and their results are answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.chat.base import ChatSampling, Policy, TextDelta, ToolCallDelta
from reason_spec.chat.call_forms import HARMONY, form_of
from reason_spec.chat.channel_calls import ChannelParser
from reason_spec.chat.drafted_calls import calls_in
from reason_spec.chat.preparing import OfferedTools
from reason_spec.chat.tools import names_of
from reason_spec.chat.xml_calls import parser_for
from reason_spec.types import Constraint
from tests.chat.channel_agent import FINAL, HEADER, NEXT, OSLO, THINKING, THOUGHT, TOOLS, agent, asks
from tests.chat.scripted import answer_of, events_of
from tests.engines.thinking_templates import GPT_OSS, TemplateTokenizer

Read = tuple[str, str, list[tuple[str, str]]]


def read(pieces: Sequence[str], *, parallel: bool = True, is_cut: bool = False) -> Read:
    """Return the content, the thinking and the calls of a text in pieces, after a thinking."""
    parser = ChannelParser(names_of(TOOLS), parallel=parallel)
    parser.follows_thinking = True
    content = written = reasoning = ""
    calls: list[tuple[str, str]] = []
    for one in [one for piece in pieces for one in parser.feed(piece)] + parser.close(is_cut=is_cut):
        match one:
            case str():
                content += one
                written += one
            case TextDelta("content", text):
                content += text
            case TextDelta():
                reasoning += one.text
            case ToolCallDelta(index, arguments, name=name):
                assert arguments
                if index == len(calls):
                    assert name is not None
                    calls.append((name, ""))
                calls[index] = (calls[index][0], calls[index][1] + arguments)
    assert len(calls) == parser.num_calls
    whole = "".join(pieces)
    assert "".join(whole[place] for place in parser.content_places) == written
    return content, reasoning, calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEADER}{OSLO}", ("", "", [("weather", OSLO)])),
        (f"{HEADER}{OSLO}<|call|>", ("", "", [("weather", OSLO)])),
        (f" to=functions.weather<|channel|>commentary json<|message|>{OSLO}", ("", "", [("weather", OSLO)])),
        (
            f"<|channel|>commentary to=functions.weather <|constrain|>json\n<|message|>{OSLO}",
            ("", "", [("weather", OSLO)]),
        ),
        (f" to=functions.weather <|constrain|>json\n <|message|>{OSLO}", ("", "", [("weather", OSLO)])),
        (f"<|channel|>analysis to=functions.weather code<|message|>{OSLO}", ("", "", [("weather", OSLO)])),
        ("<|channel|>commentary to=functions.wait<|message|>", ("", "", [("wait", "{}")])),
        (
            f"<|channel|>commentary<|message|>I look.{NEXT}{HEADER}{OSLO}",
            ("I look.", "", [("weather", OSLO)]),
        ),
        (
            f"{HEADER}{OSLO}{NEXT}<|channel|>commentary to=functions.wait json<|message|>{{}}<|call|>",
            ("", "", [("weather", OSLO), ("wait", "{}")]),
        ),
        (f"<|channel|>analysis<|message|>Hm.{NEXT}{FINAL}Yes.<|return|>", ("Yes.", "\n\nHm.", [])),
        (f"<|channel|>commentary<|message|>First.{NEXT}{FINAL}Second.", ("First.\n\nSecond.", "", [])),
        (f"{FINAL}First.{NEXT}{THINKING}Hm.{NEXT}{FINAL}Second.", ("First.\n\nSecond.", "\n\nHm.", [])),
        (f"{FINAL}1 <|2 < 3", ("1 <|2 < 3", "", [])),
        ("It is warm.", ("It is warm.", "", [])),
        ("today", ("today", "", [])),
        (f"{HEADER}{{", ("", "", [("weather", "{")])),
    ],
)
def test_calls_thinking_and_content_are_separated(text: str, expected: Read) -> None:
    assert read([text]) == read(list(text)) == expected


def test_a_message_to_no_known_function_is_content_with_its_header() -> None:
    text = "<|channel|>commentary to=python code<|message|>print(1)"
    assert read([text]) == (text, "", [])
    unknown = text.replace("python", "functions.unknown")
    assert read([unknown]) == (unknown, "", [])


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("to=5 is the answer", None),
        ("to=5", None),
        ("<|channel|>final It is warm.", None),
        ("<|channel|>final\n\nIt is warm.", None),
        ("<|channel|>final\n<|mess", None),
        ("<|channel|>final\n<", None),
        (f"<|channel|>final\n{FINAL}Very.", "<|channel|>final\n\n\nVery."),
        (f"<|channel|>final {'It is warm. ' * 40}", None),
        (f"<|channel|>final It is warm.{NEXT}{FINAL}Very.", "<|channel|>final It is warm.\n\nVery."),
        (f"<|channel|>fin<|start|>assistant{FINAL}Very.", "<|channel|>fin\n\nVery."),
        (f"<|channel|>fin{FINAL}Very.", "<|channel|>fin\n\nVery."),
        (f"<|channel|>fin<{FINAL}Very.", "<|channel|>fin<\n\nVery."),
        (f"{FINAL}Yes.<|end|>to=functions.weather{FINAL}No.", "Yes.\n\nto=functions.weather\n\nNo."),
        (f"{HEADER}{OSLO}<|call|>\n", ""),
    ],
)
def test_a_header_that_never_ends_is_content(text: str, content: str | None) -> None:
    calls = [("weather", OSLO)] if text.startswith(HEADER) else []
    assert read([text]) == read(list(text)) == (text if content is None else content, "", calls)


@pytest.mark.parametrize("text", ["<|channel|>final\nIt", f"<|channel|>final {'It is warm. ' * 40}It"])
def test_a_header_that_was_given_up_streams_on(text: str) -> None:
    parser = parser_for(HARMONY, TOOLS)
    assert parser.feed(text) == [text]
    assert parser.feed(" is") == [" is"]


@pytest.mark.parametrize("header", ["<|channel|>comm", "<|start|>", "to=functions.wea"])
def test_a_header_is_left_out_where_the_limit_cuts_it(header: str) -> None:
    assert read([header], is_cut=True) == ("", "", [])
    assert read([header]) == (header, "", [])


@pytest.mark.parametrize("begun", ["<|start|>assistant", "<|start|>assistant<|channel|>final"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_the_beginning_of_a_next_message_is_left_out(begun: str, is_cut: bool) -> None:
    assert read([f"{FINAL}Yes.<|end|>{begun}"], is_cut=is_cut) == ("Yes.", "", [])


def test_a_call_without_arguments_is_whole_only_where_the_model_ended_it() -> None:
    header = "<|channel|>commentary to=functions.wait<|message|>"
    assert read([header], is_cut=True) == read([f"{header} \n"], is_cut=True) == ("", "", [])
    assert read([header]) == read([f"{header}<|call|>"], is_cut=True) == ("", "", [("wait", "{}")])
    tools = OfferedTools(tuple(TOOLS), HARMONY, parallel=True, is_forced=False)
    assert list(calls_in(header, tools)) == []
    assert list(calls_in(f"{header}<|call|>", tools)) == [("wait", {})]


def test_without_parallel_calls_the_first_one_is_the_only_one() -> None:
    text = f"{HEADER}{OSLO}{NEXT}{HEADER}{OSLO}"
    assert read([text], parallel=False) == read(list(text), parallel=False) == ("", "", [("weather", OSLO)])


def test_arguments_stream_while_they_are_written() -> None:
    parser = parser_for(HARMONY, TOOLS)
    (begun,) = parser.feed(f'{HEADER}{{"place": "Os')
    (more,) = parser.feed("lo")
    assert isinstance(begun, ToolCallDelta)
    assert isinstance(more, ToolCallDelta)
    assert (begun.name, begun.arguments, more.arguments) == ("weather", '{"place": "Os', "lo")


def test_a_drafted_step_may_hold_a_call() -> None:
    tools = OfferedTools(tuple(TOOLS), HARMONY, parallel=True, is_forced=False)
    assert list(calls_in(f"{HEADER}{OSLO}", tools)) == [("weather", {"place": "Oslo"})]
    assert list(calls_in("So Oslo it is.", tools)) == []


SCRAPS = st.sampled_from(
    [
        "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>", "analysis",
        "final", "commentary", " to=functions.", "weather", "wait", "assistant", "json", "{}", "<|", "\n",
        " ", "é", "So.",
    ]
)  # fmt: skip


@given(scraps=st.lists(SCRAPS, max_size=24), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_whatever_the_text_and_its_cuts_nothing_is_added_to_it(scraps: list[str], cuts: list[int]) -> None:
    text = "".join(scraps)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    content, reasoning, calls = read([text[a:b] for a, b in pairwise(places)])
    assert (content, reasoning, calls) == read([text])
    for found in (content, reasoning, *(arguments for _, arguments in calls if arguments != "{}")):
        rest = iter(text)
        assert all(one in rest for one in found if not one.isspace()), "in this order"


HEADERS = {FINAL: 0, "<|message|>": 0, THINKING: 1, HEADER: 2}
"""Headers, and where `read` puts the text after them."""
WORDS = st.sampled_from(["to=", "json", "assistant", "<|", "|>", "<", "\n", " ", "é", "So.", "{}"])


@given(
    messages=st.lists(st.tuples(st.sampled_from(list(HEADERS)), st.lists(WORDS).map("".join))),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_all_text_outside_of_headers_is_handed_on(messages: list[tuple[str, str]], cuts: list[int]) -> None:
    text = NEXT.join(header + body for header, body in messages)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    content, reasoning, calls = read([text[a:b] for a, b in pairwise(places)])
    texts = ["", "", ""]
    for header, body in messages:
        texts[HEADERS[header]] += body
    assert ["".join(one.split()) for one in (content, reasoning)] == [
        "".join(one.split()) for one in texts[:2]
    ]
    bodies = [body.lstrip() or "{}" for header, body in messages if header == HEADER]
    assert calls == [("weather", body) for body in bodies]


def test_the_form_is_known_by_the_template() -> None:
    assert form_of(GPT_OSS) is HARMONY
    assert form_of("<|channel|>").name == "hermes"


async def test_a_call_is_read_and_its_result_is_answered() -> None:
    async with agent() as (chat, script):
        first = await answer_of(chat, asks())
        (call,) = first.tool_calls
        assert (first.reasoning, first.content, first.end.finish) == (THOUGHT, None, "tool_calls")
        assert (call.name, json.loads(call.arguments)) == ("weather", {"place": "Oslo"})
        function = {"name": call.name, "arguments": call.arguments}
        made = {"id": call.id, "type": "function", "function": function}
        turn = {"role": "assistant", "content": None, "reasoning": first.reasoning, "tool_calls": [made]}
        result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
        last = await answer_of(chat, asks(turn, result))
        assert (last.content, last.tool_calls, last.end.finish) == ("It is 18 degrees.", (), "stop")
    before = f"{THINKING}{THOUGHT}<|end|><|start|>assistant to=functions.weather"
    assert before in script.texts[-1], "the model sees its thinking before the call"


async def test_a_stream_has_the_thinking_and_then_the_call() -> None:
    async with agent() as (chat, _):
        events = await events_of(chat, asks())
    texts = [event.text for event in events if isinstance(event, TextDelta) and event.channel == "reasoning"]
    pieces = [event for event in events if isinstance(event, ToolCallDelta)]
    assert "".join(texts) == THOUGHT
    assert pieces[0].name == "weather"
    assert "".join(piece.arguments for piece in pieces) == OSLO
    assert not [event for event in events if isinstance(event, TextDelta) and event.channel == "content"]


@pytest.mark.parametrize("budget", [0, 12])
async def test_a_call_follows_a_limited_thinking(budget: int) -> None:
    async with agent() as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(thinking_token_budget=budget)))
    assert (answer.reasoning or "", answer.end.report.thinking_ended_by) == (
        THOUGHT.partition("I have")[0] if budget else "",
        "tokens",
    )
    assert [call.name for call in answer.tool_calls] == ["weather"]


@pytest.mark.parametrize("num_more", [0, 2])
async def test_a_call_that_the_limit_cuts_after_its_header_is_none(num_more: int) -> None:
    header = "<|channel|>commentary to=functions.wait<|message|>"
    tokenizer = TemplateTokenizer(GPT_OSS)
    most = len(tokenizer.encode(f"{THINKING}{THOUGHT}{NEXT}{header}")) + num_more
    async with agent(header + " " * 8) as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(max_tokens=most)))
    assert (answer.tool_calls, answer.end.finish) == ((), "length")
    async with agent(header) as (chat, _):
        answer = await answer_of(chat, asks())
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("wait", "{}")]


async def test_without_tools_the_answer_is_in_the_final_channel() -> None:
    async with agent() as (chat, _):
        answer = await answer_of(chat, asks(tools=()))
    assert (answer.reasoning, answer.content) == (THOUGHT, "Warm.")


async def test_a_bound_answer_is_in_the_final_channel() -> None:
    pytest.importorskip("llguidance")
    bound = Constraint(json_schema='{"type": "object"}')
    async with agent(final='{"degrees": 18}') as (chat, script):
        answer = await answer_of(chat, asks(constraint=bound))
    assert (answer.reasoning, answer.content, answer.tool_calls) == (THOUGHT, '{"degrees": 18}', ())
    assert any(text.endswith(f"{THOUGHT}{NEXT}{FINAL}") for text in script.texts)


@pytest.mark.parametrize("stop", ["json", "commentary", "functions", "Oslo", "tool"])
async def test_a_stop_string_in_a_call_or_a_thinking_is_none(stop: str) -> None:
    async with agent() as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(stop=(stop,))))
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("weather", OSLO)]
    assert (answer.end.finish, answer.end.stop) == ("tool_calls", None)


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead"])
@pytest.mark.parametrize("stop", ["final", "18", "is 18", "It"])
async def test_a_stop_string_ends_the_content(stop: str, strategy: str) -> None:
    said = "It is 18 degrees."
    text = f"{THINKING}It is 18 or so.{NEXT}{FINAL}{said}{NEXT}{HEADER}{OSLO}"
    async with agent(text) as (chat, _):
        asked = asks(sampling=ChatSampling(stop=(stop,)), policy=Policy(strategy=strategy))
        answer = await answer_of(chat, asked)
    is_found = stop in said
    assert (answer.content, answer.end.stop) == (said.partition(stop)[0], stop if is_found else None)
    assert [call.name for call in answer.tool_calls] == ([] if is_found else ["weather"])
    assert answer.end.finish == ("stop" if is_found else "tool_calls")


@pytest.mark.parametrize(("budget", "before"), [(0, ""), (None, f"{THOUGHT}\n\n")])
async def test_a_thinking_in_the_answer_is_separated_from_one_before_it(
    budget: int | None, before: str
) -> None:
    async with agent(f"{THINKING}Once more.{NEXT}{FINAL}Warm.") as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(thinking_token_budget=budget)))
    assert (answer.reasoning, answer.content) == (f"{before}Once more.", "Warm.")
