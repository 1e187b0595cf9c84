"""AutoGen, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/autogen_agent.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

# AutoGen knows OpenAI's models by name; of any other it has to be told what it can do.
ABILITIES = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


async def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


async def run(question: str, tools: list) -> None:
    client = OpenAIChatCompletionClient(
        model=MODEL,
        base_url=BASE_URL,
        api_key="unused",
        model_info=ABILITIES,
        include_name_in_message=False,
        timeout=3600,
    )
    for stream in (False, True):
        agent = AssistantAgent(
            "helper",
            client,
            tools=tools,
            reflect_on_tool_use=bool(tools),
            model_client_stream=stream,
            system_message=None,
        )
        events = [event async for event in agent.run_stream(task=question)]
        pieces = [event for event in events if isinstance(event, ModelClientStreamingChunkEvent)]
        shown = f"streamed in {len(pieces)} pieces:" if stream else "answer:"
        print(shown, events[-1].messages[-1].content)
    await client.close()


if __name__ == "__main__":
    asyncio.run(run(TASK, [temperature]) if "--tools" in sys.argv else run(QUESTION, []))
