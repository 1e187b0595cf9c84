"""LiteLLM's calls over the models in process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.agents

from reason_spec.integrations.base import InProcess
from reason_spec.integrations.litellm import register
from tests.integrations.test_in_process import APPLES, SOLUTION, TOOL, WARM, WEATHER

MODEL = "reason-spec/embedded"


@pytest.fixture(autouse=True)
def _registered(models: InProcess) -> None:
    register(models)


def asked(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}]


def test_a_loop_with_a_tool_completes() -> None:
    messages = asked(WEATHER)
    reply = litellm.completion(MODEL, messages=messages, tools=[TOOL])
    (call,) = reply.choices[0].message.tool_calls
    assert reply.choices[0].finish_reason == "tool_calls"
    result = "Paris: 21 degrees, measured at noon"
    messages += [
        reply.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]
    assert litellm.completion(MODEL, messages=messages, tools=[TOOL]).choices[0].message.content == WARM


def test_text_and_usage_are_the_same_streamed_and_not() -> None:
    async def later() -> tuple[Any, list[Any]]:
        whole = await litellm.acompletion(MODEL, messages=asked(APPLES))
        stream = await litellm.acompletion(MODEL, messages=asked(APPLES), stream=True)
        return whole, [chunk async for chunk in stream]

    whole = litellm.completion(MODEL, messages=asked(APPLES))
    options = {"include_usage": True}
    chunks = list(litellm.completion(MODEL, messages=asked(APPLES), stream=True, stream_options=options))
    other, more = asyncio.run(later())
    assert whole.choices[0].message.content == other.choices[0].message.content == SOLUTION
    for found in (chunks, more):
        built = litellm.stream_chunk_builder(found)
        assert built.choices[0].message.content == SOLUTION
        assert built.choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert whole.reason_spec["strategy"] == "lookahead"


def test_streamed_calls_come_together() -> None:
    chunks = list(litellm.completion(MODEL, messages=asked(WEATHER), tools=[TOOL], stream=True))
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("temperature", '{"city": "Paris"}')


def test_a_call_may_have_options_of_its_own() -> None:
    reply = litellm.completion(
        MODEL, messages=asked(APPLES), stop=["12"], max_tokens=9, extra_body={"strategy": "prompt_lookup"}
    )
    assert reply.choices[0].message.content == "Ana has "
    assert reply.reason_spec["strategy"] == "prompt_lookup"


def test_thinking_stands_beside_the_text_streamed_and_not(models: InProcess, thinker: InProcess) -> None:
    register(thinker)
    try:
        whole = litellm.completion(MODEL, messages=asked("?"))
        chunks = list(litellm.completion(MODEL, messages=asked("?"), stream=True))
    finally:
        register(models)
    for reply in (whole, litellm.stream_chunk_builder(chunks)):
        assert reply.choices[0].message.content == "Yes."
        assert reply.choices[0].message.reasoning_content.strip() == "Hm."


def test_a_refused_request_is_a_bad_one_for_litellm() -> None:
    with pytest.raises(litellm.BadRequestError, match="unknown strategy"):
        litellm.completion(MODEL, messages=asked(APPLES), extra_body={"strategy": "none such"})
