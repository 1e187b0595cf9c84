"""The OpenAI Agents SDK's tools that run ahead: the agent says the same as with plain tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("agents")
pytestmark = pytest.mark.agents

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, RunContextWrapper, Runner, function_tool
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

from reason_spec.errors import SettingsError
from reason_spec.integrations.openai_agents_tools import FollowConversation, functions_of, tools_of
from reason_spec.tools_ahead.sessions import SpeculativeTools, ToolSession
from tests.integrations.conftest import PICTURE_URL
from tests.server.processes import ServeProcess
from tests.tools_ahead.conftest import shop_model
from tests.tools_ahead.some_conversations import events, messages_of, order, user

__all__ = ["shop_model"]
SERVED: list[str] = []
PAST = [events(number) for number in range(20)]


@function_tool
def get_user(user_id: str) -> str:
    """Returns a user."""
    SERVED.append(user_id)
    return json.dumps(user(int(user_id.rpartition("_")[2])))


@function_tool
def get_order(order_id: str) -> str:
    """Returns an order."""
    SERVED.append(order_id)
    return json.dumps(order(order_id))


TOOLS: list[FunctionTool] = [get_user, get_order]


class Blind(OpenAIChatCompletionsModel):
    """A model that gets no pictures."""

    async def get_response(self, **more: Any) -> Any:
        def texts_of(item: Any) -> Any:
            content = item.get("content")
            if not isinstance(content, list):
                return item
            return {**item, "content": [part for part in content if part["type"] != "input_image"]}

        more["input"] = [texts_of(item) for item in more["input"]]
        return await super().get_response(**more)


def said_by_agent(server: ServeProcess, session: ToolSession | None, picture: bool = False) -> str:
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused")
    tools = TOOLS if session is None else tools_of(session, TOOLS)
    agent = Agent(
        "helper",
        instructions=messages_of(70)[0]["content"],
        model=Blind("says", client) if picture else OpenAIChatCompletionsModel("says", client),
        tools=list(tools),
    )
    hooks = None if session is None else FollowConversation(session)
    question: Any = messages_of(70)[1]["content"]
    if picture:
        shown = {"type": "input_image", "image_url": PICTURE_URL, "detail": "auto"}
        question = [{"role": "user", "content": [{"type": "input_text", "text": question}, shown]}]
    run = Runner.run(agent, question, hooks=hooks)
    return str(asyncio.run(run).final_output)


def called(tool: FunctionTool, arguments: str) -> Any:
    context = ToolContext(None, tool_name=tool.name, tool_call_id="1", tool_arguments=arguments)
    return asyncio.run(tool.on_invoke_tool(context, arguments))


@pytest.mark.parametrize("picture", [False, True])
def test_an_agent_says_the_same_and_its_tools_have_run_ahead(
    picture: bool, shop_server: ServeProcess, shop_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = said_by_agent(shop_server, None)
    assert plain == messages_of(70)[-1]["content"]
    SERVED.clear()
    with SpeculativeTools(
        functions_of(TOOLS), read_only=["get_user", "get_order"], past=PAST, model=shop_model
    ) as tools:
        with tools.session() as session:
            follow = session.follow

            def follow_and_wait(messages: Any) -> None:
                # The script writes fast: what it does not wait for may start after its call.
                follow(messages)
                session.settle()

            monkeypatch.setattr(session, "follow", follow_and_wait)
            assert said_by_agent(shop_server, session, picture) == plain
        report = session.report
    assert report.num_read_only == 1 + len(user(70)["orders"])
    assert report.num_used == report.num_read_only
    assert sorted(SERVED) == sorted(["nora_70", *user(70)["orders"]]), "each was read once"


def test_what_fails_ahead_is_raised_and_what_fails_for_the_model_is_the_frameworks_text() -> None:
    @function_tool
    def get_price(order_id: str) -> str:
        """Returns a price."""
        raise OSError("the shop is closed")

    with pytest.raises(OSError, match="closed"):
        asyncio.run(functions_of([get_price])["get_price"](order_id="A1"))
    with SpeculativeTools(functions_of([get_price]), read_only=["get_price"]) as tools:
        session = tools.session()
        (through,) = tools_of(session, [get_price])
        assert "the shop is closed" in called(through, '{"order_id": "A1"}')
        assert called(through, "{") == called(get_price, "{"), "what is no JSON is left to the framework"


def test_a_tool_with_the_runs_context_is_called_with_it_and_counts_as_a_change() -> None:
    seen = []

    @function_tool
    def sign(context: RunContextWrapper[Any], text: str) -> str:
        """Signs a text."""
        seen.append(context)
        return f"{text}!"

    with SpeculativeTools(functions_of(TOOLS), read_only=["get_order"]) as tools:
        session = tools.session()
        (through,) = tools_of(session, [sign])
        assert called(through, '{"text": "yes"}') == "yes!"
        assert isinstance(seen[0], ToolContext)
        assert session.report.num_read_only == 0


def test_items_of_hosted_tools_fail_no_run_and_drop_what_ran_ahead(shop_model: Any) -> None:
    drawn: Any = {"type": "image_generation_call", "id": "1", "status": "completed", "result": "?"}
    with (
        SpeculativeTools(
            functions_of(TOOLS), read_only=["get_user", "get_order"], past=PAST, model=shop_model
        ) as tools,
        tools.session() as session,
    ):
        session.follow(messages_of(70)[:4])
        session.settle()
        started = session.report.num_started
        hooks, agent = FollowConversation(session), Agent[Any]("helper")
        asyncio.run(hooks.on_llm_start(RunContextWrapper(None), agent, None, [drawn]))
        assert sum(session.report.dropped.values()) == started > 0


def test_a_tool_that_needs_an_approval_never_runs_ahead() -> None:
    @function_tool(needs_approval=True)
    def get_secret(name: str) -> str:
        """Returns a secret."""
        return name

    assert set(functions_of([*TOOLS, get_secret])) == {"get_user", "get_order"}
    with pytest.raises(SettingsError, match="get_secret"):
        SpeculativeTools(functions_of([get_secret]), read_only=["get_secret"])
