"""DSPy, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/dspy_program.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import asyncio
import os
import sys

# Before it is imported: it would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

# Without cache=False an equal call is answered from the disk, not by the model.
lm = dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key="unused", cache=False, timeout=3600)
dspy.configure(lm=lm)


def temperature(city: str) -> str:
    """Says how warm it is in a city."""
    return f"{city}: 21 degrees, measured at noon"


def ask() -> None:
    print("answer:", lm(QUESTION)[0])


async def run_a_program() -> None:
    program = dspy.ReAct("question -> answer", tools=[temperature], max_iters=1)
    print("answer:", program(question=TASK).answer)
    listener = dspy.streaming.StreamListener(signature_field_name="answer")
    streamed = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=[listener])
    pieces = []
    async for item in streamed(question=TASK):
        if isinstance(item, dspy.streaming.StreamResponse):
            pieces.append(item.chunk)
        else:
            print(f"streamed in {len(pieces)} pieces:", "".join(pieces).strip())
            print("prediction:", item.answer)


if __name__ == "__main__":
    asyncio.run(run_a_program()) if "--tools" in sys.argv else ask()
