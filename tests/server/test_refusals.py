"""What cannot be done is refused by its name, in OpenAI's form, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from reason_spec.server.protocol import ChatBody
from tests.server.serving import Serving, scripted, serve

CHAT = {"model": "says", "messages": [{"role": "user", "content": "Hello?"}]}
TEXT = {"model": "says", "prompt": "Hello?"}


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serve(scripted(tmp_path_factory.mktemp("says"), {"Hello?": "Hello to you."})) as serving:
        yield serving


def refused(serving: Serving, path: str, body: object, status: int = 400) -> dict[str, Any]:
    response = serving.http.post(path, json=body)
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def chat(serving: Serving, **more: Any) -> dict[str, Any]:
    return refused(serving, "/v1/chat/completions", {**CHAT, **more})


@pytest.mark.parametrize(
    ("more", "param", "says_so"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", "include_usage"),
        ({"functions": [{"name": "f"}]}, "functions", "'tools'"),
        ({"function_call": "auto"}, "function_call", "'tools'"),
        ({"guided_json": {}}, "guided_json", "structured_outputs"),
        ({"presence_penalty": 0.5}, "presence_penalty", "give 0"),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "give 1"),
        ({"min_p": 0.1}, "min_p", "top_p"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs", "give 0"),
        ({"modalities": ["text", "audio"]}, "modalities", "text"),
        ({"chat_template": "{{ x }}"}, "chat_template", "operator"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template", "operator"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "string"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "'user'"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "no content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "no content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content", "no content"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "messages.0.contents", "did you mean 'content'?"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
            "'text'",
        ),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "greater than or equal to -1"),
        ({"thinking_token_budget": 2.5}, "thinking_token_budget", "integer"),
        ({"max_thinking_steps": -1}, "max_thinking_steps", "greater than or equal to 0"),
        ({"n": 100}, "n", "the most is 8"),
        ({"stop": [str(number) for number in range(17)]}, "stop", "16"),
        ({"stop": ""}, "stop", "1 to 256"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "100"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"tool_choice": "sometimes"}, "tool_choice", "'auto'"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "one of",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message", "assistant"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    says: Serving, more: dict[str, Any], param: str, says_so: str
) -> None:
    error = chat(says, **more)
    assert error["param"] == param
    assert says_so in error["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 3}, "logprobs"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a"] * 9}, "n"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"messages": []}, "messages"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
    ],
)
def test_completions_refuse_by_name_as_well(says: Serving, more: dict[str, Any], param: str) -> None:
    assert refused(says, "/v1/completions", {**TEXT, **more})["param"] == param


@pytest.mark.parametrize(
    "neutral",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0},
        {"top_logprobs": 0, "n": 1, "stop": None, "logit_bias": None, "tools": None},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"functions": None, "function_call": "none", "modalities": ["text"], "verbosity": "medium"},
        {"priority": 3, "request_id": "mine", "top_k": -1, "skip_special_tokens": True},
        {"seed": -1, "stream_options": None, "parallel_tool_calls": True, "reasoning_effort": "low"},
    ],
)
def test_what_asks_for_nothing_is_let_pass(says: Serving, neutral: dict[str, Any]) -> None:
    response = says.http.post("/v1/chat/completions", json={**CHAT, **neutral})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b'{"model": NaN}', b"\xff\xfe", b"[" * 100_000, b"1" * 5000],
)
def test_a_body_that_is_no_object_is_a_mistake_of_the_client(says: Serving, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = says.http.post("/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_body_that_is_not_sent_as_json_is_a_mistake_of_the_client(says: Serving, path: str) -> None:
    for headers in (None, {"content-type": "text/plain"}):
        response = says.http.post(path, content=b'{"model": "says"}', headers=headers)
        assert response.status_code == 400, response.text


def test_half_a_surrogate_pair_is_a_mistake_of_the_client(says: Serving) -> None:
    for text in ('{"x\\ud800": 1}', json.dumps(CHAT).replace("Hello?", "\\ud800")):
        response = says.http.post(
            "/v1/chat/completions", content=text, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400


def test_other_paths_and_methods_are_refused_in_the_same_form(says: Serving) -> None:
    assert says.http.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    response = says.http.get("/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["message"]


def test_clients_that_are_not_trusted_neither_choose_nor_learn(tmp_path: Path) -> None:
    with serve(scripted(tmp_path, {"Hello?": "Hello to you."}), trusted=False) as says:
        body = {**CHAT, "reason_spec": {"off": True}}
        assert refused(says, "/v1/chat/completions", body, 403)["param"] == "reason_spec"
        answer = says.http.post("/v1/chat/completions", json=CHAT).json()
        assert "reason_spec" not in answer
        assert "reason_spec" not in answer["choices"][0]
        assert answer["usage"]["prompt_tokens_details"] is None
        with says.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            assert "reason_spec" not in response.read().decode()


def test_the_operator_bounds_prompts_and_answers(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"server__max_prompt_tokens": 6, "server__max_output_tokens": 2}
    with serve(scripted(tmp_path, {"Hello?": "Hello to you."}, **bounds)) as says:
        assert chat(says, max_completion_tokens=3)["param"] == "max_tokens"
        response = says.http.post("/v1/chat/completions", json=CHAT)
        assert response.json()["usage"]["completion_tokens"] == 2
        long = [{"role": "user", "content": "Hello? And more of it."}]
        assert "the most is 6" in chat(says, messages=long)["message"]


@pytest.mark.parametrize("number", [1, 2000])
def test_a_list_is_checked_up_to_its_first_mistake(number: int) -> None:
    messages = [{"role": "user", "content": "Hi", "nane": 1}] * number
    with pytest.raises(ValidationError) as refused:
        ChatBody.model_validate({"model": "m", "messages": messages})
    assert len(refused.value.errors()) == 1
