"""Pydantic AI's agents over the models in process."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

pytest.importorskip("pydantic_ai")
pytestmark = pytest.mark.agents

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from reason_spec.errors import RequestError
from reason_spec.integrations.base import InProcess
from reason_spec.integrations.pydantic_ai import ReasonSpecModel
from tests.integrations.conftest import PICTURE
from tests.integrations.test_in_process import APPLES, SOLUTION, WARM, WEATHER


class Amount(BaseModel, extra="forbid"):
    """How many there are."""

    amount: Literal["few", "many"]


def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


def test_an_agent_with_a_tool_completes_its_loop(models: InProcess) -> None:
    result = Agent(ReasonSpecModel(models), tools=[temperature]).run_sync(WEATHER)
    assert result.output == WARM
    assert result.usage.output_tokens > 0
    details = result.response.provider_details
    assert details["reason_spec"]["loss_class"] == "exact"


def test_an_agent_streams_what_the_model_says(models: InProcess) -> None:
    async def run() -> list[str]:
        agent = Agent(ReasonSpecModel(models), tools=[temperature])
        async with agent.run_stream(WEATHER) as stream:
            return [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]

    pieces = asyncio.run(run())
    assert len(pieces) > 1
    assert "".join(pieces) == WARM


def test_output_is_bound_to_its_class(pair: InProcess) -> None:
    agent = Agent(ReasonSpecModel(pair, max_tokens=128), output_type=NativeOutput(Amount))
    assert isinstance(agent.run_sync("How many apples?").output, Amount)


def test_a_call_may_have_settings_of_its_own(models: InProcess) -> None:
    agent = Agent(ReasonSpecModel(models, max_tokens=64))
    assert agent.run_sync(APPLES).output == SOLUTION
    result = agent.run_sync(
        APPLES, model_settings={"max_tokens": 3, "extra_body": {"strategy": "prompt_lookup"}}
    )
    assert result.output == "Ana has "
    assert result.response.provider_details["reason_spec"]["strategy"] == "prompt_lookup"
    with pytest.raises(RequestError, match="unknown option 'presence_penalty'"):
        agent.run_sync(APPLES, model_settings={"presence_penalty": 1.0})


def test_a_picture_is_refused_by_its_place(models: InProcess) -> None:
    agent = Agent(ReasonSpecModel(models))
    assert agent.run_sync(["Please.", APPLES]).output == SOLUTION
    with pytest.raises(RequestError, match="is of type 'binary': the model reads text parts only") as refused:
        agent.run_sync([APPLES, BinaryContent(PICTURE, media_type="image/png")])
    assert refused.value.param == "messages[0].content"


def test_earlier_turns_are_sent_with_thinking_and_calls(models: InProcess) -> None:
    said = ModelResponse(
        [ThinkingPart("Hm."), TextPart("I look."), ToolCallPart("temperature", {"city": "Rome"}, "c1")]
    )
    turns = ReasonSpecModel(models)._conversation(
        [ModelRequest([UserPromptPart("?")]), said], ModelRequestParameters()
    )
    function = {"name": "temperature", "arguments": '{"city":"Rome"}'}
    assert turns[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning": "Hm.",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
