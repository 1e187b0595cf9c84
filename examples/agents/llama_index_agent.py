"""LlamaIndex, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/llama_index_agent.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import asyncio
import os
import sys

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

# The two flags are off unless set, which sends text completions and hides tools; the context would be 3900.
llm = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key="unused",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32_768,
    timeout=3600,
)


def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


def ask() -> None:
    messages = [ChatMessage(role="user", content=QUESTION)]
    print("answer:", llm.chat(messages).message.content)
    pieces = [piece.delta or "" for piece in llm.stream_chat(messages)]
    print(f"streamed in {len(pieces)} pieces:", "".join(pieces))


async def use_a_tool() -> None:
    answer = await FunctionAgent(tools=[temperature], llm=llm, streaming=False).run(TASK)
    print("answer:", answer)
    running = FunctionAgent(tools=[temperature], llm=llm).run(TASK)
    pieces = [event.delta async for event in running.stream_events() if isinstance(event, AgentStream)]
    print(f"streamed in {len(pieces)} pieces:", await running)


if __name__ == "__main__":
    asyncio.run(use_a_tool()) if "--tools" in sys.argv else ask()
