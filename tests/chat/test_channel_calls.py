"""Calls in channels: however the text is cut the same calls come of it, and their results are answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatRequest, ChatSampling, TextDelta, ToolCallDelta
from reason_spec.chat.call_forms import HARMONY, form_of
from reason_spec.chat.drafted_calls import calls_in
from reason_spec.chat.preparing import OfferedTools
from reason_spec.chat.service import Chat
from reason_spec.chat.xml_calls import parser_for
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import load_settings
from reason_spec.types import Constraint, Sampling
from reason_spec.verifiers.exact import ExactVerifier
from tests.chat.scripted import answer_of, events_of
from tests.engines.thinking_templates import GPT_OSS, TemplateTokenizer

PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}},
]
OSLO = '{"place": "Oslo"}'
HEADER = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
Read = tuple[str, str, list[tuple[str, str]]]


def read(pieces: Sequence[str], *, parallel: bool = True) -> Read:
    """Return the content, the thinking and the calls of a text in pieces."""
    parser = parser_for(HARMONY, TOOLS, parallel=parallel)
    content = reasoning = ""
    calls: list[tuple[str, str]] = []
    for one in [one for piece in pieces for one in parser.feed(piece)] + parser.close():
        match one:
            case str():
                content += one
            case TextDelta():
                assert one.channel == "reasoning"
                reasoning += one.text
            case ToolCallDelta(index, arguments, name=name):
                if index == len(calls):
                    assert name is not None
                    calls.append((name, ""))
                calls[index] = (calls[index][0], calls[index][1] + arguments)
    assert len(calls) == parser.num_calls
    return content, reasoning, calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEADER}{OSLO}", ("", "", [("weather", OSLO)])),
        (f"{HEADER}{OSLO}<|call|>", ("", "", [("weather", OSLO)])),
        (f" to=functions.weather<|channel|>commentary json<|message|>{OSLO}", ("", "", [("weather", OSLO)])),
        # The token before the type is not shown.
        (f"<|channel|>commentary to=functions.weatherjson<|message|>{OSLO}", ("", "", [("weather", OSLO)])),
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
        (f"{FINAL}1 <|2 < 3", ("1 <|2 < 3", "", [])),
        ("It is warm.", ("It is warm.", "", [])),
        ("today", ("today", "", [])),
        (f"{FINAL}Yes.{NEXT}<|channel|>comm", ("Yes.", "", [])),
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
def test_the_cuts_of_a_text_change_nothing(scraps: list[str], cuts: list[int]) -> None:
    text = "".join(scraps)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    assert read([text[a:b] for a, b in pairwise(places)]) == read([text])


def test_the_form_is_known_by_the_template() -> None:
    assert form_of(GPT_OSS) is HARMONY
    assert form_of("<|channel|>").name == "hermes"


THOUGHT = "The user wants the weather.\n\nI have a tool for that."
THINKING = "<|channel|>analysis<|message|>"


class Agent:
    """A model in gpt-oss's form: it thinks and calls, and then answers from the result; notes its prompts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, sampling: Sampling) -> str:
        self.texts.append(text)
        answer = f"{FINAL}It is 18 degrees." if "to=assistant" in text else f"{HEADER}{OSLO}"
        end = '"18 degrees"<|end|>' if "to=assistant" in text else "Oslo?<|end|>"
        thought, closed, begun = text.rpartition(f"{end}<|start|>assistant")[2].partition(NEXT)
        if closed:
            if begun.startswith(FINAL):
                # The channel is chosen already.
                return "Warm."[len(begun.removeprefix(FINAL)) :]
            return answer[len(begun) :]
        return f"{THINKING}{THOUGHT}{NEXT}{answer}"[len(thought) :]


@asynccontextmanager
async def agent() -> AsyncIterator[tuple[Chat, Agent]]:
    script = Agent()
    target, draft = (
        ScriptedEngine(name, one, tokenizer=TemplateTokenizer(GPT_OSS))
        for name, one in (("target", script), ("draft", Agent()))
    )
    settings = load_settings(flags={"strategy.planner": False})
    accelerator = Accelerator(settings, target, draft, ExactVerifier())
    async with accelerator:
        yield Chat(accelerator), script


ASKED: dict[str, Any] = {"role": "user", "content": "Oslo?"}


def asks(*more: dict[str, Any], **options: Any) -> ChatRequest:
    return ChatRequest(messages=[ASKED, *more], **{"tools": TOOLS, **options})


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


async def test_without_tools_the_answer_is_in_the_final_channel() -> None:
    async with agent() as (chat, _):
        answer = await answer_of(chat, asks(tools=()))
    assert (answer.reasoning, answer.content) == (THOUGHT, "Warm.")


async def test_a_bound_answer_is_in_the_final_channel() -> None:
    pytest.importorskip("llguidance")
    async with agent() as (chat, _):
        prepared = await chat.prepare(asks(constraint=Constraint(json_schema='{"type": "object"}')))
        assert prepared.tools is not None
        assert prepared.thinking is not None
        assert (prepared.tools.form.name, prepared.thinking.heading.endswith(FINAL)) == ("hermes", True)
