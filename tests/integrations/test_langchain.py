"""LangChain's models and LangGraph's graphs over the models in process."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

pytest.importorskip("langgraph")
pytestmark = pytest.mark.agents

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel

from reason_spec.errors import RequestError
from reason_spec.integrations.base import InProcess
from reason_spec.integrations.langchain import ChatReasonSpec
from tests.integrations.test_in_process import APPLES, SOLUTION, WARM, WEATHER


class Amount(BaseModel, extra="forbid"):
    """How many there are."""

    amount: Literal["few", "many"]


@tool
def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


@pytest.fixture
def agent(models: InProcess) -> Any:
    model = ChatReasonSpec(models=models, options={"strategy": "lookahead"})
    speaker = model.bind_tools([temperature])
    graph = StateGraph(MessagesState)
    graph.add_node("speak", lambda state: {"messages": [speaker.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([temperature]))
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", tools_condition)
    graph.add_edge("tools", "speak")
    return graph.compile()


def test_a_graph_with_a_tool_completes_its_loop(agent: Any) -> None:
    said = agent.invoke({"messages": [("user", WEATHER)]})["messages"]
    assert [message.type for message in said] == ["human", "ai", "tool", "ai"]
    assert said[-1].content == WARM


def test_a_graph_streams_what_the_model_says(agent: Any) -> None:
    stream = agent.stream({"messages": [("user", WEATHER)]}, stream_mode="messages")
    assert "".join(chunk.text for chunk, _ in stream if chunk.type == "AIMessageChunk") == WARM


def test_text_usage_and_report_are_the_same_streamed_and_not(models: InProcess) -> None:
    model = ChatReasonSpec(models=models)

    async def later() -> tuple[AIMessage, BaseMessage]:
        chunks = [chunk async for chunk in model.astream(APPLES)]
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        return await model.ainvoke(APPLES), whole

    whole: AIMessage = model.invoke(APPLES)
    streamed: Any = None
    for chunk in model.stream(APPLES):
        streamed = chunk if streamed is None else streamed + chunk
    for message in (whole, streamed, *asyncio.run(later())):
        assert message.content == SOLUTION
        assert message.usage_metadata == whole.usage_metadata
        assert message.response_metadata["finish_reason"] == "stop"
        assert message.response_metadata["reason_spec"]["strategy"] == "lookahead"
    assert whole.usage_metadata["output_tokens"] > 0


def test_streamed_calls_come_together(models: InProcess) -> None:
    whole: Any = None
    for chunk in ChatReasonSpec(models=models).bind_tools([temperature], tool_choice="any").stream(WEATHER):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("temperature", {"city": "Paris"})


def test_structured_output_is_of_its_class(pair: InProcess) -> None:
    model = ChatReasonSpec(models=pair, options={"max_tokens": 128})
    assert isinstance(model.with_structured_output(Amount).invoke("How many apples?"), Amount)
    both = model.with_structured_output(Amount, include_raw=True).invoke("How many apples?")
    assert both["raw"].response_metadata["reason_spec"]["reason"] is not None
    assert isinstance(both["parsed"], Amount)


def test_the_model_gets_its_thinking_again(models: InProcess) -> None:
    message = AIMessage("17", additional_kwargs={"reasoning_content": "12 + 5"})
    request = ChatReasonSpec(models=models)._request([HumanMessage("?"), message], None, {})
    assert request.messages[1] == {"role": "assistant", "content": "17", "reasoning_content": "12 + 5"}


def test_thinking_stands_beside_the_text_streamed_and_not(thinker: InProcess) -> None:
    model = ChatReasonSpec(models=thinker)
    streamed: Any = None
    for chunk in model.stream("?"):
        streamed = chunk if streamed is None else streamed + chunk
    for message in (model.invoke("?"), streamed):
        assert message.content == "Yes."
        assert message.additional_kwargs["reasoning_content"].strip() == "Hm."
        assert message.usage_metadata["output_token_details"]["reasoning"] > 0


def test_options_are_of_every_call_and_of_one(models: InProcess) -> None:
    model = ChatReasonSpec(models=models, options={"strategy": "autoregressive"})
    assert model.invoke(APPLES).response_metadata["reason_spec"]["strategy"] == "autoregressive"
    assert (
        model.invoke(APPLES, strategy="prompt_lookup").response_metadata["reason_spec"]["strategy"]
        == "prompt_lookup"
    )
    assert model.invoke(APPLES, stop=["12"]).content == "Ana has "
    with pytest.raises(RequestError, match="did you mean 'strategy'"):
        ChatReasonSpec(models=models, options={"stratgy": "prompt_lookup"})
