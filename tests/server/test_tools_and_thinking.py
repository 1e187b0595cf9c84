"""Calls, thinking and bound output over HTTP, from a target that says what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from tests.server.serving import Serving, scripted, serve

WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'
ANSWERS = {
    "Oslo?": f"Let me see.\n{CALL}",
    "Both?": f"{CALL}\n{CALL.replace('Oslo', 'Rome')}",
    "Think!": "First this.\n\nThen that.</think>It is 12.",
    "JSON?": '{"age": 12}',
    "Hi!": "Easy.</think>Hello to you.",
    "18 degrees": "It is warm.",
}


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serve(scripted(tmp_path_factory.mktemp("says"), ANSWERS)) as serving:
        yield serving


@pytest.fixture(scope="module")
def thinks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    settings = scripted(
        tmp_path_factory.mktemp("thinks"), ANSWERS, thinking=True, server__reasoning_field="both"
    )
    with serve(settings) as serving:
        yield serving


def ask(serving: Serving, content: str, **more: Any) -> Any:
    """Return an answer with its fields that the client does not know."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": content}]
    return serving.client().chat.completions.create(model="says", messages=messages, **more)


def test_what_litellm_puts_into_a_message_changes_nothing(says: Serving) -> None:
    message = {"role": "user", "content": "Oslo?"}
    given = {**message, "provider_specific_fields": {"citations": None}}
    answers = [
        says.http.post("/v1/chat/completions", json={"model": "says", "messages": [one]}).json()
        for one in (message, given)
    ]
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
    assert answers[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]


def test_a_call_has_a_name_an_id_and_arguments(says: Serving) -> None:
    answer = ask(says, "Oslo?", tools=[WEATHER])
    (call,) = answer.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"place": "Oslo"}
    assert call.id
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content.strip() == "Let me see."


def test_streamed_calls_say_once_what_they_are(says: Serving) -> None:
    stream = list(ask(says, "Both?", tools=[WEATHER], stream=True))
    pieces = [call for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    for index, place in enumerate(("Oslo", "Rome")):
        own = [piece for piece in pieces if piece.index == index]
        assert (own[0].type, own[0].function.name) == ("function", "weather")
        assert own[0].id
        assert all((piece.id, piece.type, piece.function.name) == (None, None, None) for piece in own[1:])
        assert json.loads("".join(piece.function.arguments for piece in own)) == {"place": place}
    assert stream[-1].choices[0].finish_reason == "tool_calls"


def test_a_loop_with_a_tool_comes_to_its_end(says: Serving) -> None:
    client = says.client()
    messages: list[Any] = [{"role": "user", "content": "Oslo?"}]
    first = client.chat.completions.create(model="says", messages=messages, tools=[WEATHER])
    (call,) = first.choices[0].message.tool_calls or []
    messages.append(first.choices[0].message.model_dump())
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"})
    last = client.chat.completions.create(model="says", messages=messages, tools=[WEATHER])
    assert last.choices[0].message.content == "It is warm."
    assert last.choices[0].message.tool_calls is None


def test_a_tool_that_is_not_there_cannot_be_chosen(says: Serving) -> None:
    named = {"type": "function", "function": {"name": "wether"}}
    with pytest.raises(openai.BadRequestError, match="wether"):
        ask(says, "Oslo?", tools=[WEATHER], tool_choice=named)


def test_thinking_stands_beside_the_answer_under_both_names(thinks: Serving) -> None:
    answer = ask(thinks, "Think!")
    message = answer.choices[0].message
    assert message.content == "It is 12."
    assert message.reasoning == message.reasoning_content == "First this.\n\nThen that."
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    left_out = ask(thinks, "Think!", extra_body={"include_reasoning": False})
    assert not hasattr(left_out.choices[0].message, "reasoning")


def test_thinking_streams_before_the_answer(thinks: Serving) -> None:
    deltas = [choice.delta for chunk in ask(thinks, "Think!", stream=True) for choice in chunk.choices]
    thought = [getattr(delta, "reasoning", None) for delta in deltas]
    said = [delta.content for delta in deltas]
    assert "".join(filter(None, thought)) == "First this.\n\nThen that."
    assert "".join(filter(None, said)) == "It is 12."
    last_thought = max(index for index, text in enumerate(thought) if text)
    assert last_thought < min(index for index, text in enumerate(said) if text)


def test_thinking_of_earlier_turns_is_taken_in_both_spellings(thinks: Serving) -> None:
    client = thinks.client()
    for name in ("reasoning", "reasoning_content"):
        messages: list[Any] = [
            {"role": "user", "content": "Think!"},
            {"role": "assistant", "content": "It is 12.", name: "First this."},
            {"role": "user", "content": "Hi!"},
        ]
        answer = client.chat.completions.create(model="says", messages=messages)
        assert answer.choices[0].message.content == "Hello to you."


def test_thinking_is_switched_off_by_the_template(thinks: Serving) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    message = ask(thinks, "Think!", extra_body=off).choices[0].message
    assert (message.content, getattr(message, "reasoning", None)) == ("It is 12.", None)


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    "bound",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
        {"extra_body": {"structured_outputs": {"regex": r'\{"age": \d+\}'}}},
        {"extra_body": {"structured_outputs": {"choice": ['{"age": 12}', "no"]}}},
    ],
    ids=["object", "schema", "json", "regex", "choice"],
)
def test_a_bound_answer_is_what_was_asked_for(says: Serving, bound: dict[str, Any]) -> None:
    answer = ask(says, "JSON?", **bound)
    assert json.loads(answer.choices[0].message.content) == {"age": 12}
    streamed = ask(says, "JSON?", stream=True, **bound)
    text = "".join(choice.delta.content or "" for chunk in streamed for choice in chunk.choices)
    assert json.loads(text) == {"age": 12}


def test_a_schema_that_is_none_is_refused(says: Serving) -> None:
    bound = {"type": "json_schema", "json_schema": {"name": "person", "schema": {"type": "animal"}}}
    with pytest.raises(openai.BadRequestError, match="schema"):
        ask(says, "JSON?", response_format=bound)


def test_the_sdk_reads_a_schema_of_its_own(says: Serving) -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        age: int

    messages: list[Any] = [{"role": "user", "content": "JSON?"}]
    answer = says.client().chat.completions.parse(model="says", messages=messages, response_format=Person)
    assert answer.choices[0].message.parsed == Person(age=12)


def test_a_budget_ends_the_thinking_and_usage_counts_it_apart(thinks: Serving) -> None:
    whole = ask(thinks, "Think!")
    for budget, steps, reasoning in (
        (whole.usage.completion_tokens_details.reasoning_tokens - 1, None, "First this.\n\n"),
        (3, None, "First this."),
        (0, None, ""),
        (None, 1, "First this.\n\n"),
        (-1, None, "First this.\n\nThen that."),
    ):
        limits = {"thinking_token_budget": budget, "max_thinking_steps": steps}
        answer = ask(thinks, "Think!", extra_body=limits)
        message = answer.choices[0].message
        assert (getattr(message, "reasoning", ""), message.content) == (reasoning, "It is 12.")
        tokens = answer.usage.completion_tokens_details.reasoning_tokens
        assert tokens <= (budget if budget not in (None, -1) else 1000)
        assert answer.usage.completion_tokens > tokens
        assert answer.choices[0].finish_reason == "stop"
        streamed = ask(
            thinks, "Think!", extra_body=limits, stream=True, stream_options={"include_usage": True}
        )
        texts = {"reasoning": "", "content": ""}
        for chunk in streamed:
            for choice in chunk.choices:
                texts["reasoning"] += getattr(choice.delta, "reasoning", "")
                texts["content"] += choice.delta.content or ""
            usage = chunk.usage
        assert texts == {"reasoning": reasoning, "content": "It is 12."}
        assert usage.completion_tokens_details.reasoning_tokens == tokens


def test_the_report_says_what_ended_the_thinking(thinks: Serving) -> None:
    asked = {"model": "says", "messages": [{"role": "user", "content": "Think!"}]}
    found = [
        thinks.http.post("/v1/chat/completions", json={**asked, **limit}).json()["reason_spec"]
        for limit in ({}, {"thinking_token_budget": 3}, {"max_thinking_steps": 1}, {"max_thinking_steps": 9})
    ]
    assert [report["thinking_ended_by"] for report in found] == [None, "tokens", "steps", "model"]


def test_an_effort_is_a_budget_in_chats_and_responses(thinks: Serving) -> None:
    chat = ask(thinks, "Think!", reasoning_effort="none")
    assert not getattr(chat.choices[0].message, "reasoning", None)
    refused = thinks.http.post(
        "/v1/responses", json={"model": "says", "input": "Think!", "reasoning": {"effort": "huge"}}
    ).json()["error"]
    assert refused["param"] == "reasoning_effort"
    body = {"model": "says", "input": "Think!", "thinking_token_budget": 3}
    response = thinks.http.post("/v1/responses", json=body).json()
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    assert response["output"][0]["content"][0]["text"] == "First this."
