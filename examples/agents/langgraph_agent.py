"""LangGraph, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/langgraph_agent.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import os
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key="unused", stream_usage=True, timeout=3600)


@tool
def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


def run(question: str, tools: list) -> None:
    speaker = model.bind_tools(tools) if tools else model
    graph = StateGraph(MessagesState)
    graph.add_node("speak", lambda state: {"messages": [speaker.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", tools_condition)
    graph.add_edge("tools", "speak")
    agent = graph.compile()
    asked = {"messages": [("user", question)]}
    print("answer:", agent.invoke(asked)["messages"][-1].content)
    pieces = [chunk.text for chunk, _ in agent.stream(asked, stream_mode="messages") if chunk.type != "tool"]
    print(f"streamed in {len(pieces)} pieces:", "".join(pieces))


if __name__ == "__main__":
    run(TASK, [temperature]) if "--tools" in sys.argv else run(QUESTION, [])
