"""smolagents' tools that run ahead: agents that call tools and agents that write code say the same."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

pytest.importorskip("smolagents")
pytestmark = pytest.mark.agents

from PIL import Image
from smolagents import ChatMessage, CodeAgent, MessageRole, OpenAIModel, Tool, ToolCallingAgent

from reason_spec.integrations.smolagents_tools import AgentConversation
from reason_spec.tools_ahead.sessions import SpeculativeTools, ToolSession
from tests.integrations.conftest import PICTURE, shop_script
from tests.server.processes import ServeProcess
from tests.tools_ahead.conftest import shop_model
from tests.tools_ahead.some_conversations import events, messages_of, order, user

__all__ = ["shop_model"]
SERVED: list[str] = []
PAST = [events(number) for number in range(20)]


class GetUser(Tool):
    name = "get_user"
    description = "Returns a user."
    inputs = {"user_id": {"type": "string", "description": "its id"}}
    output_type = "string"

    def forward(self, user_id: str) -> str:
        SERVED.append(user_id)
        return json.dumps(user(int(user_id.rpartition("_")[2])))


class GetOrder(Tool):
    name = "get_order"
    description = "Returns an order."
    inputs = {"order_id": {"type": "string", "description": "its id"}}
    output_type = "string"

    def forward(self, order_id: str) -> str:
        SERVED.append(order_id)
        return json.dumps(order(order_id))


TOOLS: list[Any] = [GetUser(), GetOrder()]


class Coder:
    """A model that writes code which makes the calls of the shop's conversation, one a step, by place."""

    model_id = "coder"

    def __init__(self) -> None:
        calls = [one["tool_calls"][0]["function"] for one in messages_of(70) if "tool_calls" in one]
        made = [f"print({one['name']}(*{[*json.loads(one['arguments']).values()]}))" for one in calls]
        last = f"final_answer({messages_of(70)[-1]['content']!r})"
        self.steps = [f"<code>\n{code}\n</code>" for code in (*made, last)]

    def generate(self, messages: list[Any], **_: Any) -> Any:
        num_made = sum(message.role is MessageRole.TOOL_CALL for message in messages)
        return ChatMessage(role=MessageRole.ASSISTANT, content=self.steps[num_made])


def agent(kind: str, server: ServeProcess, session: ToolSession | None, *, streamed: bool = False) -> Any:
    model: Any = Coder()
    if kind == "calls":
        model = OpenAIModel("says", api_base=f"{server.url}/v1", api_key="unused")
    tools: list[Any] = list(TOOLS)
    if session is not None:
        conversation = AgentConversation(session)
        model, tools = conversation.model_of(model), conversation.tools_of(tools)
    make = ToolCallingAgent if kind == "calls" else CodeAgent
    return make(tools, model, verbosity_level=0, stream_outputs=streamed)


@pytest.mark.parametrize(
    ("kind", "streamed", "picture"),
    [("calls", False, False), ("calls", True, False), ("code", False, False), ("code", False, True)],
)
def test_an_agent_says_the_same_and_its_tools_have_run_ahead(
    kind: str,
    streamed: bool,
    picture: bool,
    shop_server: ServeProcess,
    shop_model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = messages_of(70)[1]["content"]
    images = [Image.open(io.BytesIO(PICTURE))] if picture else None
    plain = agent(kind, shop_server, None, streamed=streamed).run(question, images=images)
    assert plain == messages_of(70)[-1]["content"]
    SERVED.clear()
    functions = {tool.name: tool for tool in TOOLS}
    with SpeculativeTools(functions, read_only=list(functions), past=PAST, model=shop_model) as tools:
        with tools.session() as session:
            follow = session.follow

            def follow_and_wait(messages: Any) -> None:
                # The scripts write at once: what they do not wait for may start after their call.
                follow(messages)
                session.settle()

            monkeypatch.setattr(session, "follow", follow_and_wait)
            followed = agent(kind, shop_server, session, streamed=streamed)
            assert followed.run(question, images=images) == plain
        report = session.report
    num_calls = 1 + len(user(70)["orders"])
    assert report.num_read_only == num_calls
    assert report.dropped == {}
    assert report.num_used == report.num_started >= num_calls - 1
    assert sorted(SERVED) == sorted(["nora_70", *user(70)["orders"]]), "each was read once"


def test_the_session_sees_calls_and_results_one_by_one(
    shop_server: ServeProcess, shop_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[dict[str, Any]]] = []
    functions = {tool.name: tool for tool in TOOLS}
    with SpeculativeTools(functions, read_only=list(functions), model=shop_model) as tools:
        session = tools.session()
        follow = session.follow

        def note(messages: Any) -> None:
            seen.append(list(messages))
            follow(messages)

        monkeypatch.setattr(session, "follow", note)
        followed = agent("calls", shop_server, session)
        followed.run(messages_of(70)[1]["content"])
        assert len(seen) == len(shop_script(70)) - 1
        made = [one["tool_calls"][0]["function"] for one in seen[-1] if one.get("tool_calls")]
        assert [one["name"] for one in made] == ["get_user"] + ["get_order"] * len(user(70)["orders"])
        results = [json.loads(one["content"]) for one in seen[-1] if one["role"] == "tool"]
        assert results == [user(70), *map(order, user(70)["orders"])]
        followed.run(messages_of(70)[1]["content"])
        assert not [one for one in seen[len(shop_script(70)) - 1] if one["role"] == "tool"], "a new run"


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        (("A10001", "more"), {}, "get_order takes 1 arguments; 2 were given"),
        (("A10001",), {"order_id": "A10002"}, "get_order takes order_id by place or by name"),
    ],
)
def test_arguments_that_the_tool_does_not_take_are_refused(
    values: tuple[str, ...], named: dict[str, str], message: str, shop_model: Any
) -> None:
    with (
        SpeculativeTools({"get_order": GetOrder()}, read_only=["get_order"], model=shop_model) as tools,
        tools.session() as session,
    ):
        (wrapped,) = AgentConversation(session).tools_of([GetOrder()])
        with pytest.raises(TypeError, match=message):
            wrapped(*values, **named)
