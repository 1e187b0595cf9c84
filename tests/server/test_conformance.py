"""Every response and chunk is of the types of OpenAI's own client, read strictly, with its nulls in place."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.serving import Serving, scripted, serve
from tests.server.test_responses import WEATHER as RESPONSES_WEATHER
from tests.server.test_tools_and_thinking import ANSWERS, SCHEMA, WEATHER

QUESTIONS = ["Oslo?", "Both?", "Think!", "JSON?"]
CHAT_HOWS: list[dict[str, Any]] = [
    {},
    {"tools": [WEATHER]},
    {"n": 2, "temperature": 0.7, "seed": 1},
    {"logprobs": True},
    {"max_tokens": 2},
    {"stop": ["e"]},
    {"response_format": {"type": "json_object"}},
]
RESPONSES_HOWS: list[dict[str, Any]] = [
    {},
    {"tools": [RESPONSES_WEATHER], "tool_choice": "auto"},
    {"max_output_tokens": 2, "temperature": 0.5, "top_p": 0.9, "metadata": {"a": "b"}},
    {"text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}},
    {"reasoning": {"effort": "low"}, "instructions": "Be brief."},
]


def combined(hows: list[dict[str, Any]], binding: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every question in every way; what binds the answer only with one that fits."""
    pairs = itertools.product(QUESTIONS, hows)
    return [(question, how) for question, how in pairs if question == "JSON?" or binding not in how]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "thinking"])
def says(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serve(scripted(tmp_path_factory.mktemp("says"), ANSWERS, thinking=request.param)) as serving:
        yield serving


def events_of(text: str) -> list[Any]:
    """Return what a stream says; it has to end as OpenAI's do."""
    assert text.endswith("\n\n")
    events = [block.removeprefix("data: ") for block in text.strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def post(serving: Serving, path: str, body: dict[str, Any]) -> str:
    response = serving.http.post(path, json={"model": "says", **body})
    assert response.status_code == 200, response.text
    return response.text


# To build the one of all events takes seconds.
adapter_of = functools.cache(TypeAdapter)


def strictly(kind: Any, value: Any) -> None:
    adapter_of(kind).validate_json(json.dumps(value), strict=True)


@pytest.mark.parametrize(("question", "how"), combined(CHAT_HOWS, "response_format"), ids=str)
def test_chats_are_of_the_clients_types(says: Serving, question: str, how: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": question}], **how}
    answer = json.loads(post(says, "/v1/chat/completions", body))
    strictly(ChatCompletion, answer)
    for choice in answer["choices"]:
        assert choice.keys() >= {"index", "message", "logprobs", "finish_reason"}
        assert choice["message"].keys() >= {"role", "content", "refusal"}
    for usage in (False, True):
        streamed = {**body, "stream": True, "stream_options": {"include_usage": usage}}
        chunks = events_of(post(says, "/v1/chat/completions", streamed))
        for chunk in chunks:
            strictly(ChatCompletionChunk, chunk)
            assert ("usage" in chunk) == usage
        ends = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
        assert sorted(choice["index"] for choice in ends) == list(range(how.get("n", 1)))


@pytest.mark.parametrize("how", [{}, {"n": 2}, {"logprobs": 0}, {"max_tokens": 2}, {"stop": "e"}], ids=str)
def test_texts_are_of_the_clients_types(says: Serving, how: dict[str, Any]) -> None:
    body = {"prompt": ["user: JSON?\n", "user: Oslo?\n"], **how}
    answer = json.loads(post(says, "/v1/completions", body))
    strictly(Completion, answer)
    assert all(
        choice.keys() >= {"index", "text", "logprobs", "finish_reason"} for choice in answer["choices"]
    )
    for chunk in events_of(post(says, "/v1/completions", {**body, "stream": True})):
        for choice in chunk["choices"]:
            # OpenAI's own chunks have a null here, which its types do not.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        strictly(Completion, chunk)


@pytest.mark.parametrize(("question", "how"), combined(RESPONSES_HOWS, "text"), ids=str)
def test_responses_are_of_the_clients_types(says: Serving, question: str, how: dict[str, Any]) -> None:
    body = {"input": question, **how}
    strictly(Response, json.loads(post(says, "/v1/responses", body)))
    for block in post(says, "/v1/responses", {**body, "stream": True}).strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        strictly(ResponseStreamEvent, event)


def test_models_are_of_the_clients_types(says: Serving) -> None:
    listed = says.http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["says"]
    for model in listed["data"]:
        strictly(Model, model)
    assert listed["data"][0]["max_model_len"] > 0
    assert says.client().models.retrieve("says").id == "says"
    assert [model.id for model in says.client().models.list()] == ["says"]
    assert says.http.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
