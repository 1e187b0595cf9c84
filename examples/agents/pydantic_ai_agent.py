"""Pydantic AI, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/pydantic_ai_agent.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import asyncio
import os
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

client = AsyncOpenAI(base_url=BASE_URL, api_key="unused", timeout=3600)
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))


def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


async def run(question: str, tools: list) -> None:
    agent = Agent(model, tools=tools)
    result = await agent.run(question)
    print("answer:", result.output)
    print("tokens:", result.usage.output_tokens)
    async with agent.run_stream(question) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    print(f"streamed in {len(pieces)} pieces:", "".join(pieces))


if __name__ == "__main__":
    asyncio.run(run(TASK, [temperature]) if "--tools" in sys.argv else run(QUESTION, []))
