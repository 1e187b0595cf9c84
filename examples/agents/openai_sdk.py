"""The OpenAI SDK, by URL.

Start a server with `reason-spec serve`, then run: python examples/agents/openai_sdk.py
With --tools it uses a tool; the served model has to know how (the demonstration pair does not).
"""

from __future__ import annotations

import json
import os
import sys

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "embedded")
QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
TASK = "How warm is it in Paris?"

TOOL = {
    "type": "function",
    "function": {
        "name": "temperature",
        "description": "Says how warm it is in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# The client's own timeout is ten minutes; a long answer may take more.
client = OpenAI(base_url=BASE_URL, api_key="unused", timeout=3600, max_retries=2)


def temperature(city: str) -> str:
    return f"{city}: 21 degrees, measured at noon"


def ask() -> None:
    messages = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    print("answer:", answer.choices[0].message.content)
    print("tokens:", answer.usage.completion_tokens)
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    print(f"streamed in {len(pieces)} pieces:", "".join(pieces))


def use_a_tool() -> None:
    messages: list = [{"role": "user", "content": TASK}]
    while True:
        message = (
            client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
        )
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = temperature(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print("answer:", message.content)
    with client.chat.completions.stream(model=MODEL, messages=messages[:1], tools=[TOOL]) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    print("streamed call:", calls[0].function.name, calls[0].function.arguments)


if __name__ == "__main__":
    use_a_tool() if "--tools" in sys.argv else ask()
