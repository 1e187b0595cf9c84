"""``/v1/responses`` as OpenAI's own client has it, from a target that says what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from pydantic import BaseModel

from reason_spec.chat.base import TextDelta, TokenLogprob, ToolCallDelta
from reason_spec.server.base import StreamEvent
from reason_spec.server.protocol_responses import ResponsesBody
from reason_spec.server.replies import ReplyStyle
from reason_spec.server.routes_responses import ResponseEvents
from tests.server.serving import Serving, scripted, serve
from tests.server.test_tools_and_thinking import ANSWERS

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    "strict": False,
}


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serve(scripted(tmp_path_factory.mktemp("says"), ANSWERS)) as serving:
        yield serving


@pytest.fixture(scope="module")
def thinks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serve(scripted(tmp_path_factory.mktemp("thinks"), ANSWERS, thinking=True)) as serving:
        yield serving


def test_text_is_answered(says: Serving) -> None:
    response = says.client().responses.create(model="says", input="JSON?", instructions="Be brief.")
    assert response.output_text == '{"age": 12}'
    assert (response.status, response.instructions) == ("completed", "Be brief.")
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_loop_with_a_tool_comes_to_its_end(says: Serving) -> None:
    client = says.client()
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Oslo?"}]}]
    first = client.responses.create(model="says", input=items, tools=[WEATHER])
    (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert json.loads(call.arguments) == {"place": "Oslo"}
    items += [item.model_dump(exclude_unset=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"})
    last = client.responses.create(model="says", input=items, tools=[WEATHER])
    assert last.output_text == "It is warm."


@pytest.mark.parametrize("question", ["Oslo?", "Both?", "JSON?"])
def test_a_stream_ends_with_what_the_whole_answer_is(says: Serving, question: str) -> None:
    how: dict[str, Any] = {"model": "says", "input": question, "tools": [WEATHER]}
    whole = says.client().responses.create(**how)
    with says.client().responses.stream(**how) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert final.output_text.strip() == whole.output_text.strip()
    calls = [
        [
            (item.name, item.arguments)
            for item in response.output
            if isinstance(item, ResponseFunctionToolCall)
        ]
        for response in (final, whole)
    ]
    assert calls[0] == calls[1]


def test_every_item_of_a_stream_is_opened_and_closed(thinks: Serving) -> None:
    events: list[Any] = list(thinks.client().responses.create(model="says", input="Think!", stream=True))
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    done = [event.item.type for event in events if event.type == "response.output_item.done"]
    assert added == done == ["reasoning", "message"]
    thought = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thought) == "First this.\n\nThen that."
    final = events[-1].response
    assert final.output[0].content[0].text == "First this.\n\nThen that."
    assert final.output_text == "It is 12."
    assert final.usage.output_tokens_details.reasoning_tokens > 0


def test_log_probabilities_without_text_begin_no_item() -> None:
    style = ReplyStyle(id="resp_1", created=0, model="says", fingerprint="", reasoning_field="reasoning")
    events = ResponseEvents(style, ResponsesBody(model="says", input="Oslo?"))
    rated = TextDelta("content", "", (TokenLogprob(1, b"<|channel|>", -0.1),))
    found: list[StreamEvent] = [
        TextDelta("reasoning", "First "),
        rated,
        TextDelta("reasoning", "this."),
        rated,
        ToolCallDelta(0, "{}", "call_1", "weather"),
        rated,
    ]
    sent = [read(one) for event in found for one in events.event(0, event)]
    added = [event["item"]["type"] for event in sent if event["type"] == "response.output_item.added"]
    assert added == ["reasoning", "function_call"]


def read(event: bytes) -> dict[str, Any]:
    """Return the body of a server-sent event."""
    body: dict[str, Any] = json.loads(event.decode().partition("data: ")[2])
    return body


def test_an_answer_that_was_cut_is_incomplete(says: Serving) -> None:
    response = says.client().responses.create(model="says", input="JSON?", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_the_sdk_reads_a_schema_of_its_own(says: Serving) -> None:
    class Person(BaseModel):
        age: int

    response = says.client().responses.parse(model="says", input="JSON?", text_format=Person)
    assert response.output_parsed == Person(age=12)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools.0.container"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"truncation": "auto"}, "truncation"),
        ({"instruction": "x"}, "instruction"),
    ],
)
def test_what_is_not_built_is_refused_by_name(says: Serving, more: dict[str, Any], param: str) -> None:
    body = {"model": "says", "input": "JSON?", **more}
    response = says.http.post("/v1/responses", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_an_unknown_model_is_not_found(says: Serving) -> None:
    with pytest.raises(openai.NotFoundError):
        says.client().responses.create(model="sayz", input="JSON?")


def test_a_whole_response_has_texts_and_calls_in_the_order_of_the_stream(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'
    with serve(scripted(tmp_path, {"Both?": f"Before.\n{call}\nBetween.\n{call}"})) as serving:
        client = serving.client()
        whole = client.responses.create(model="says", input="Both?", tools=[WEATHER])
        with client.responses.stream(model="says", input="Both?", tools=[WEATHER]) as stream:
            streamed = stream.get_final_response()
    kinds = [item.type for item in whole.output]
    assert kinds == ["message", "function_call", "message", "function_call"]
    assert kinds == [item.type for item in streamed.output]
