"""LiteLLM, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/litellm_call.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import json
import os
import sys

# Before it is imported: it would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

litellm.suppress_debug_info = True

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

SERVED = {"model": f"hosted_vllm/{MODEL}", "api_base": BASE_URL, "api_key": "unused", "timeout": 3600}
TOOL = {
    "type": "function",
    "function": {
        "name": "temperature",
        "description": "Says how warm it is in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def temperature(city: str) -> str:
    return f"{city}: 21 degrees, measured at noon"


def ask() -> None:
    messages = [{"role": "user", "content": QUESTION}]
    answer = litellm.completion(**SERVED, messages=messages)
    print("answer:", answer.choices[0].message.content)
    print("tokens:", answer.usage.completion_tokens)
    chunks = list(litellm.completion(**SERVED, messages=messages, stream=True))
    print(
        f"streamed in {len(chunks)} pieces:", litellm.stream_chunk_builder(chunks).choices[0].message.content
    )


def use_a_tool() -> None:
    messages: list = [{"role": "user", "content": TASK}]
    for stream in (False, True):
        reply = litellm.completion(**SERVED, messages=messages[:1], tools=[TOOL], stream=stream)
        message = (litellm.stream_chunk_builder(list(reply)) if stream else reply).choices[0].message
        (call,) = message.tool_calls
        result = temperature(**json.loads(call.function.arguments))
        messages[1:] = [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
        print(
            "answer:",
            litellm.completion(**SERVED, messages=messages, tools=[TOOL]).choices[0].message.content,
        )


if __name__ == "__main__":
    use_a_tool() if "--tools" in sys.argv else ask()
