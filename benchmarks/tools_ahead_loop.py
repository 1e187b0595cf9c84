"""Time a LangGraph agent whose tools run ahead, and the same agent without, against one server.

    python benchmarks/tools_ahead_loop.py [--users N] [--tool-seconds S] [--tokens-per-second R] [--json FILE]

The agent looks up a user and then each of the user's orders, as in a shop, and says what it has found. The
server is `reason-spec serve` with the scripted engine, which writes a thought and a call at the given speed;
tools sleep. So the texts are made up, and the times are those of a real framework, a real server and real
threads. Each user is served by both agents, which take turns; predictions are learned from other users'
conversations, with the model that ships.

Beside the measured speed-up stands ``(w + l) / (w + l - h min(w, l))`` for the mean writing time w of a turn
with a call, the tool's latency l and the share h of calls that ran ahead. It bounds predictors that start a
call when the turn before it ends; calls that are predicted several turns ahead may exceed it.

Needs langgraph and langchain-openai.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_loop import SERVED_MODEL, served
from arms import printer, write_rows
from table_columns import TOOLS_AHEAD_LOOP

from reason_spec.suffix.traces import TraceMessage
from reason_spec.tools_ahead.calls import Event, events_of
from reason_spec.tools_ahead.held import AheadReport
from reason_spec.tools_ahead.sessions import SpeculativeTools

NUM_PAST: Final = 20
_THOUGHT: Final = "The request needs what the shop knows about it, so the next thing to look at is this one."


@dataclass(frozen=True, slots=True)
class User:
    """A user of the shop; ``number`` makes the rest."""

    number: int

    @property
    def identity(self) -> str:
        return f"nora_{self.number}"

    @property
    def orders(self) -> list[str]:
        rng = random.Random(self.number)
        return [f"{rng.choice('ABCDEFG')}{rng.randrange(10_000, 99_999)}" for _ in range(rng.randrange(3, 6))]

    @property
    def question(self) -> str:
        return f"My id is {self.identity}. Which of my orders are sent?"

    def turns(self) -> list[tuple[str, dict[str, Any], str]]:
        """Return the calls that the agent makes, each with its result."""
        first = ("get_user", {"user_id": self.identity}, json.dumps({"name": "Nora", "orders": self.orders}))
        rest = [
            ("get_order", {"order_id": one}, json.dumps({"order": one, "state": "sent"}))
            for one in self.orders
        ]
        return [first, *rest]

    def messages(self) -> list[dict[str, Any]]:
        """Return the whole conversation, as a past one to learn from."""
        found: list[dict[str, Any]] = [{"role": "user", "content": self.question}]
        for name, arguments, result in self.turns():
            function = {"name": name, "arguments": json.dumps(arguments)}
            found.append({"role": "assistant", "content": _THOUGHT, "tool_calls": [{"function": function}]})
            found.append({"role": "tool", "content": result})
        return [*found, {"role": "assistant", "content": self.farewell}]

    @property
    def farewell(self) -> str:
        return f"All {len(self.orders)} orders of {self.identity} are sent."

    def script(self) -> list[dict[str, str]]:
        """Return what the model says to each message."""
        heard = [self.question, *(result for _, _, result in self.turns())]
        calls = [
            f"{_THOUGHT}\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
            for name, arguments, _ in self.turns()
        ]
        return [
            {"match": one, "answer": said} for one, said in zip(heard, [*calls, self.farewell], strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Row:
    """One agent: seconds of a conversation, and what its tools did."""

    agent: str
    n_users: int
    n_calls: int
    seconds: float
    speedup: float
    bound: float | None
    share_run_ahead: float | None
    precision: float | None


def events_from(user: User) -> list[Event]:
    return list(events_of(map(TraceMessage.model_validate, user.messages())))


def tools_for(users: Sequence[User], seconds: float) -> list[Any]:
    from langchain_core.tools import tool

    results = {
        (name, *arguments.values()): result for user in users for name, arguments, result in user.turns()
    }

    def get_user(user_id: str) -> str:
        """Returns a user."""
        time.sleep(seconds)
        return results["get_user", user_id]

    def get_order(order_id: str) -> str:
        """Returns an order."""
        time.sleep(seconds)
        return results["get_order", order_id]

    return [tool(get_user), tool(get_order)]


def agent_of(base_url: str, tools: Sequence[Any]) -> Any:
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    model = ChatOpenAI(model=SERVED_MODEL, base_url=base_url, api_key="none", max_retries=0).bind_tools(tools)  # type: ignore[arg-type, unused-ignore]
    graph = StateGraph(MessagesState)
    graph.add_node("speak", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", tools_condition)
    graph.add_edge("tools", "speak")
    return graph.compile()


def time_agent(agent: Any, user: User, callbacks: Sequence[Any] = ()) -> float:
    """Serve a user; return the seconds.

    Raises:
        RuntimeError: the agent has not said what the script says.
    """
    start = time.perf_counter()
    said = agent.invoke(
        {"messages": [("user", user.question)]}, {"callbacks": list(callbacks), "recursion_limit": 50}
    )
    seconds = time.perf_counter() - start
    if said["messages"][-1].content != user.farewell:
        raise RuntimeError(f"the agent said {said['messages'][-1].content!r}, not {user.farewell!r}")
    return seconds


def measure(base_url: str, users: Sequence[User], tool_seconds: float) -> list[Row]:
    from reason_spec.integrations.langchain_tools import FollowConversation, functions_of, tools_of

    tools = tools_for(users, tool_seconds)
    past = [events_from(User(1000 + number)) for number in range(NUM_PAST)]
    plain, ahead = [], []
    reports: list[AheadReport] = []
    with SpeculativeTools(functions_of(tools), read_only=["get_user", "get_order"], past=past) as speculative:
        for number, user in enumerate(users):
            for is_ahead in (number % 2 == 0, number % 2 == 1):
                if not is_ahead:
                    plain.append(time_agent(agent_of(base_url, tools), user))
                    continue
                with speculative.session(user.identity) as session:
                    agent = agent_of(base_url, tools_of(session, tools))
                    ahead.append(time_agent(agent, user, [FollowConversation(session)]))
                    reports.append(session.close(learn=False))
    calls = sum(len(user.turns()) for user in users)
    used, started = sum(r.num_used for r in reports), sum(r.num_started for r in reports)
    # Of a conversation without anything ahead, what is not the tools' is writing.
    writing = (sum(plain) - calls * tool_seconds) / (calls + len(users))
    share = used / calls
    bound = (writing + tool_seconds) / (writing + tool_seconds - share * min(writing, tool_seconds))
    seconds = statistics.mean(plain), statistics.mean(ahead)
    return [
        Row("plain tools", len(users), calls, seconds[0], 1.0, None, None, None),
        Row(
            "tools run ahead",
            len(users),
            calls,
            seconds[1],
            seconds[0] / seconds[1],
            bound,
            share,
            used / started,
        ),
    ]


print_rows = printer(*TOOLS_AHEAD_LOOP)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--tool-seconds", type=float, default=1.0)
    parser.add_argument("--tokens-per-second", type=float, default=50.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    users = [User(number) for number in range(options.users)]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "shop.yaml"
        answers = [entry for user in users for entry in user.script()]
        script.write_text(json.dumps({"answers": answers, "seconds_per_pass": 1 / options.tokens_per_second}))
        arguments = ["--target", str(script), "--strategy", "autoregressive", "--set", "target.kind=scripted"]
        named = ["--set", f'server.served_models=["{SERVED_MODEL}"]']
        with served(*arguments, *named) as base_url:
            rows = measure(base_url, users, options.tool_seconds)
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
