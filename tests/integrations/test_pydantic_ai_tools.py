"""Pydantic AI's tools that run ahead: the agent says the same."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytestmark = pytest.mark.agents

from pydantic import validate_call
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from reason_spec.integrations.pydantic_ai_tools import AheadToolset
from reason_spec.tools_ahead.sessions import SpeculativeTools
from tests.integrations.conftest import PICTURE
from tests.tools_ahead.conftest import shop_model
from tests.tools_ahead.some_conversations import events, messages_of, order, user

__all__ = ["shop_model"]


@pytest.mark.parametrize("shown", [[], [BinaryContent(PICTURE, media_type="image/png")]])
def test_an_agent_says_the_same_and_its_tools_have_run_ahead(shown: list[Any], shop_model: Any) -> None:
    served: list[str] = []

    def get_user(user_id: str) -> dict[str, Any]:
        served.append(user_id)
        return user(int(user_id.rpartition("_")[2]))

    def get_order(order_id: str) -> dict[str, Any]:
        served.append(order_id)
        return order(order_id)

    said = [message for message in messages_of(70) if message["role"] == "assistant"]

    async def speak(messages: list[Any], info: AgentInfo) -> ModelResponse:
        # The script writes at once: what it does not wait for may start after its call.
        await asyncio.to_thread(session.settle)
        message = said[sum(isinstance(one, ModelResponse) for one in messages)]
        functions = [one["function"] for one in message.get("tool_calls", ())]
        calls = [ToolCallPart(one["name"], json.loads(one["arguments"])) for one in functions]
        return ModelResponse(parts=calls or [TextPart(message["content"])])

    past = [events(number) for number in range(20)]
    functions = {"get_user": get_user, "get_order": get_order}
    with SpeculativeTools(functions, read_only=list(functions), past=past, model=shop_model) as tools:
        with tools.session() as session:
            toolset = AheadToolset(FunctionToolset(list(functions.values())), session)
            agent = Agent(FunctionModel(speak), toolsets=[toolset])
            question = [messages_of(70)[1]["content"], *shown]
            assert agent.run_sync(question).output == said[-1]["content"]
        report = session.report
    assert report.num_read_only == 1 + len(user(70)["orders"])
    assert report.num_used == len(user(70)["orders"]) + 1
    assert sorted(served) == sorted(["nora_70", *user(70)["orders"]]), "each was read once"


def test_a_call_is_the_expected_one_whatever_defaults_and_types_its_arguments_get(shop_model: Any) -> None:
    served: list[Any] = []

    def find_trips(day: date, limit: int = 10) -> str:
        served.append(day)
        return f"{limit} trips on {day}"

    async def speak(messages: list[Any], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart(messages[-1].parts[0].content)])
        session.expect("find_trips", {"day": "2026-05-01"})
        await asyncio.to_thread(tools.predicting.submit(lambda: None).result)
        return ModelResponse(parts=[ToolCallPart("find_trips", {"day": "2026-05-01"})])

    functions = {"find_trips": validate_call(find_trips)}
    with SpeculativeTools(functions, read_only=["find_trips"], model=shop_model) as tools:
        with tools.session() as session:
            agent = Agent(
                FunctionModel(speak), toolsets=[AheadToolset(FunctionToolset([find_trips]), session)]
            )
            assert agent.run_sync("Trips on the first of May?").output == "10 trips on 2026-05-01"
        assert session.report.num_used == 1
    assert served == [date(2026, 5, 1)]
