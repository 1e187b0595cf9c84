"""smolagents, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/smolagents_agent.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import os
import sys

from smolagents import ChatMessage, OpenAIModel, ToolCallingAgent, tool

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

model = OpenAIModel(MODEL, api_base=BASE_URL, api_key="unused", client_kwargs={"timeout": 3600})


@tool
def temperature(city: str) -> str:
    """Says how warm it is in a city.

    Args:
        city: its name.
    """
    return f"{city}: 21 degrees, measured at noon"


def ask() -> None:
    messages = [ChatMessage(role="user", content=[{"type": "text", "text": QUESTION}])]
    answer = model.generate(messages)
    print("answer:", answer.content)
    print("tokens:", answer.token_usage.output_tokens)
    pieces = [delta.content or "" for delta in model.generate_stream(messages)]
    print(f"streamed in {len(pieces)} pieces:", "".join(pieces))


def use_a_tool() -> None:
    agent = ToolCallingAgent(tools=[temperature], model=model, verbosity_level=0)
    print("answer:", agent.run(TASK))
    agent = ToolCallingAgent(tools=[temperature], model=model, verbosity_level=0, stream_outputs=True)
    print("streamed:", agent.run(TASK))


if __name__ == "__main__":
    use_a_tool() if "--tools" in sys.argv else ask()
