"""LangChain, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/langchain_chat.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import os
import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

# With a base_url of its own LangChain asks for no usage in streams, unless told to.
model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key="unused", stream_usage=True, timeout=3600)


@tool
def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


def ask() -> None:
    print("answer:", model.invoke(QUESTION).content)
    chunks = list(model.stream(QUESTION))
    print(f"streamed in {len(chunks)} pieces:", "".join(chunk.text for chunk in chunks))
    print("tokens:", sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata))


def use_a_tool() -> None:
    with_tools = model.bind_tools([temperature])
    messages = [HumanMessage(TASK)]
    messages.append(with_tools.invoke(messages))
    messages += [temperature.invoke(call) for call in messages[-1].tool_calls]
    print("answer:", with_tools.invoke(messages).content)
    whole = None
    for chunk in with_tools.stream(messages[:1]):
        whole = chunk if whole is None else whole + chunk
    print("streamed call:", whole.tool_calls[0]["name"], whole.tool_calls[0]["args"])


if __name__ == "__main__":
    use_a_tool() if "--tools" in sys.argv else ask()
