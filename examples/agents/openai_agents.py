"""The OpenAI Agents SDK, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/openai_agents.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

# Traces would be sent to OpenAI.
set_tracing_disabled(True)
# Without this class the SDK speaks the Responses API.
model = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=BASE_URL, api_key="unused", timeout=3600))


@function_tool
def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


async def run(question: str, tools: list) -> None:
    agent = Agent("helper", model=model, tools=tools)
    print("answer:", (await Runner.run(agent, question)).final_output)
    result = Runner.run_streamed(agent, question)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    print(f"streamed in {len(pieces)} pieces:", "".join(pieces))


if __name__ == "__main__":
    asyncio.run(run(TASK, [temperature]) if "--tools" in sys.argv else run(QUESTION, []))
