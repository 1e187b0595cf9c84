"""A model in gpt-oss's form that thinks, calls tools and answers from their results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatRequest
from reason_spec.chat.service import Chat
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import load_settings
from reason_spec.types import Sampling
from reason_spec.verifiers.exact import ExactVerifier
from tests.engines.thinking_templates import GPT_OSS, TemplateTokenizer

PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}},
]
OSLO = '{"place": "Oslo"}'
HEADER = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
FINAL = "<|channel|>final<|message|>"
THINKING = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
THOUGHT = "The user wants the weather.\n\nI have a tool for that."
ASKED: dict[str, Any] = {"role": "user", "content": "Oslo?"}


class Agent:
    """A script that thinks and calls, and then answers from the result; it notes its prompts.

    Args:
        answer: written in the place of the call.
        final: its answer where the channel ``final`` is chosen before it writes.
    """

    def __init__(self, answer: str, final: str) -> None:
        self._answer = answer
        self._final = final
        self.texts: list[str] = []

    def __call__(self, text: str, sampling: Sampling) -> str:
        self.texts.append(text)
        answer = f"{FINAL}It is 18 degrees." if "to=assistant" in text else self._answer
        end = '"18 degrees"<|end|>' if "to=assistant" in text else "Oslo?<|end|>"
        thought, closed, begun = text.rpartition(f"{end}<|start|>assistant")[2].partition(NEXT)
        if closed:
            if begun.startswith(FINAL) and not answer.startswith(begun):
                return self._final[len(begun.removeprefix(FINAL)) :]
            return answer[len(begun) :]
        return f"{THINKING}{THOUGHT}{NEXT}{answer}"[len(thought) :]


@asynccontextmanager
async def agent(
    answer: str = f"{HEADER}{OSLO}", *, final: str = "Warm.", drafted: str | None = None
) -> AsyncIterator[tuple[Chat, Agent]]:
    """Give a chat with the script of its target; the draft has the same answer unless it has its own."""
    script = Agent(answer, final)
    target, draft = (
        ScriptedEngine(name, one, tokenizer=TemplateTokenizer(GPT_OSS))
        for name, one in (("target", script), ("draft", Agent(drafted or answer, final)))
    )
    settings = load_settings(flags={"strategy.planner": False})
    accelerator = Accelerator(settings, target, draft, ExactVerifier())
    async with accelerator:
        yield Chat(accelerator), script


def asks(*more: dict[str, Any], **options: Any) -> ChatRequest:
    return ChatRequest(messages=[ASKED, *more], **{"tools": TOOLS, **options})
