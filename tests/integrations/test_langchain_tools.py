"""LangGraph's tools that run ahead: the graph's results are those of plain tools."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

pytest.importorskip("langgraph")
pytestmark = pytest.mark.agents

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool, ToolException, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import ValidationError

from reason_spec.integrations.langchain_tools import FollowConversation, functions_of, tools_of
from reason_spec.tools_ahead.held import AheadLimits
from reason_spec.tools_ahead.sessions import SpeculativeTools, ToolSession
from tests.integrations.conftest import PICTURE_URL
from tests.tools_ahead.conftest import shop_model
from tests.tools_ahead.some_conversations import events, messages_of, order, user

__all__ = ["shop_model"]
SERVED: list[str] = []


@tool
def get_user(user_id: str) -> str:
    """Returns a user."""
    SERVED.append(user_id)
    return json.dumps(user(int(user_id.rpartition("_")[2])))


@tool
def get_order(order_id: str) -> str:
    """Returns an order."""
    SERVED.append(order_id)
    return json.dumps(order(order_id))


def replies(number: int) -> list[AIMessage]:
    """What the model says in the shop's conversation."""
    said = []
    for place, message in enumerate(messages_of(number)):
        if message["role"] == "assistant":
            calls = [
                {
                    "name": one["function"]["name"],
                    "args": json.loads(one["function"]["arguments"]),
                    "id": f"c{place}",
                }
                for one in message.get("tool_calls", ())
            ]
            said.append(AIMessage(message["content"] or "", tool_calls=calls))
    return said


def said_by_agent(number: int, session: ToolSession | None, picture: bool = False) -> list[Any]:
    tools: list[Any] = [get_user, get_order]
    tools = tools if session is None else tools_of(session, tools)
    model = GenericFakeChatModel(messages=iter(replies(number)))
    graph = StateGraph(MessagesState)
    graph.add_node("speak", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", tools_condition)
    graph.add_edge("tools", "speak")
    callbacks = [] if session is None else [FollowConversation(session)]
    question = messages_of(number)[1]["content"]
    if picture:
        shown = {"type": "image_url", "image_url": {"url": PICTURE_URL}}
        question = [{"type": "text", "text": question}, shown]
    found = graph.compile().invoke({"messages": [("user", question)]}, {"callbacks": callbacks})
    return [message.content for message in found["messages"]]


@pytest.mark.parametrize("picture", [False, True])
def test_a_graph_says_the_same_and_its_tools_have_run_ahead(
    picture: bool, shop_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = said_by_agent(70, None, picture)
    SERVED.clear()
    functions = functions_of([get_user, get_order])
    past = [events(number) for number in range(20)]
    with SpeculativeTools(
        functions, read_only=["get_user", "get_order"], past=past, model=shop_model
    ) as tools:
        with tools.session() as session:
            follow = session.follow

            def follow_and_wait(messages: Any) -> None:
                # The model writes at once: what it does not wait for may start after its call.
                follow(messages)
                session.settle()

            monkeypatch.setattr(session, "follow", follow_and_wait)
            assert said_by_agent(70, session, picture) == plain
            # The end of a session cancels calls that no thread has begun; all that started are counted here.
            tools.workers.shutdown()
        report = session.report
    assert report.num_read_only == 1 + len(user(70)["orders"])
    assert report.num_used > 0
    assert len(SERVED) == report.num_read_only - report.num_used + report.num_started


@tool
async def get_order_later(order_id: str) -> str:
    """Returns an order."""
    SERVED.append(order_id)
    return json.dumps(order(order_id))


@tool(return_direct=True, response_format="content_and_artifact")
def get_invoice(order_id: str) -> tuple[str, dict[str, Any]]:
    """Returns an invoice."""
    return f"for {order_id}", order(order_id)


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_tool_that_is_a_coroutine_alone_is_called_and_runs_ahead(
    ahead: bool, shop_model: Any
) -> None:
    SERVED.clear()
    functions = functions_of([get_order_later])
    limits = AheadLimits(threshold=0.1)
    with SpeculativeTools(functions, read_only=list(functions), model=shop_model, limits=limits) as tools:
        with tools.session() as session:
            (wrapped,) = tools_of(session, [get_order_later])
            session.follow([{"role": "user", "content": "Where is A10001?"}])
            if ahead:
                session.expect("get_order_later", {"order_id": "A10001"})
                tools.predicting.submit(lambda: None).result()
            assert json.loads(await wrapped.ainvoke({"order_id": "A10001"})) == order("A10001")
        assert session.report.num_used == ahead
    assert SERVED == ["A10001"]


async def test_a_wrapped_tool_returns_its_artifact_and_ends_the_agent_as_before(shop_model: Any) -> None:
    functions = functions_of([get_invoice])
    call = {"type": "tool_call", "id": "1", "name": "get_invoice", "args": {"order_id": "A10001"}}
    with (
        SpeculativeTools(functions, read_only=list(functions), model=shop_model) as tools,
        tools.session() as session,
    ):
        (wrapped,) = tools_of(session, [get_invoice])
        assert wrapped.return_direct
        plain = get_invoice.invoke(call)
        for found in (wrapped.invoke(call), await wrapped.ainvoke(call)):
            assert (found.content, found.artifact) == (plain.content, plain.artifact)
            assert found.artifact == order("A10001")


@pytest.mark.parametrize("part", [7, "seven"])
def test_an_error_that_a_tool_shows_to_the_model_is_no_result_of_a_call_ahead(part: Any) -> None:
    def get_stock(part: int) -> str:
        """Returns the stock of a part."""
        raise ToolException("503, try again")

    stock = StructuredTool.from_function(get_stock, handle_tool_error=True, handle_validation_error=True)
    (ahead,) = functions_of([stock]).values()
    assert isinstance(stock.invoke({"part": part}), str)
    with pytest.raises((ToolException, ValidationError)):
        ahead(part=part)


@tool
def find_trips(day: date, limit: int = 10) -> str:
    """Returns trips."""
    SERVED.append(f"{day:%d.%m.} {limit}")
    return f"{limit} trips on {day:%d.%m.}"


def test_a_call_is_the_expected_one_whatever_defaults_and_types_its_arguments_get(shop_model: Any) -> None:
    SERVED.clear()
    functions = functions_of([find_trips])
    with SpeculativeTools(functions, read_only=list(functions), model=shop_model) as tools:
        with tools.session() as session:
            (wrapped,) = tools_of(session, [find_trips])
            session.follow([{"role": "user", "content": "What is there on the first of May?"}])
            session.expect("find_trips", {"day": "2026-05-01"})
            tools.predicting.submit(lambda: None).result()
            assert wrapped.invoke({"day": "2026-05-01"}) == "10 trips on 01.05."
        assert (session.report.num_used, session.report.num_read_only) == (1, 1)
    assert SERVED == ["01.05. 10"]


@pytest.mark.parametrize("part", [7, "seven"])
def test_a_wrapped_tool_shows_its_errors_to_the_model_as_before(part: Any, shop_model: Any) -> None:
    def get_stock(part: int) -> str:
        """Returns the stock of a part."""
        raise ToolException("503, try again")

    stock = StructuredTool.from_function(get_stock, handle_tool_error=True, handle_validation_error=True)
    call = {"type": "tool_call", "id": "1", "name": "get_stock", "args": {"part": part}}
    functions = functions_of([stock])
    with (
        SpeculativeTools(functions, read_only=list(functions), model=shop_model) as tools,
        tools.session() as session,
    ):
        (wrapped,) = tools_of(session, [stock])
        plain, found = stock.invoke(call), wrapped.invoke(call)
    assert (found.content, found.status) == (plain.content, plain.status) != ("", "success")
