"""CrewAI, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/crewai_crew.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import os
import sys

# Before it is imported: it would report to its makers.
os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

llm = LLM(f"hosted_vllm/{MODEL}", base_url=BASE_URL, api_key="unused", timeout=3600)
streaming = LLM(f"hosted_vllm/{MODEL}", base_url=BASE_URL, api_key="unused", timeout=3600, stream=True)


@tool
def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


def ask() -> None:
    print("answer:", llm.call(QUESTION))
    print("streamed:", streaming.call(QUESTION))


def use_a_tool(chosen: LLM) -> None:
    agent = Agent(
        role="helper", goal="answer", backstory="You look things up.", llm=chosen, tools=[temperature]
    )
    task = Task(description=TASK, expected_output="a temperature", agent=agent)
    print("answer:", Crew(agents=[agent], tasks=[task]).kickoff())


if __name__ == "__main__":
    if "--tools" in sys.argv:
        use_a_tool(llm)
        use_a_tool(streaming)
    else:
        ask()
