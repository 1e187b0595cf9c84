"""A scripted pair behind a chat: thinking, calls, and what the engines still hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatAnswer, ChatEvent, ChatRequest, TextRequest
from reason_spec.chat.service import Chat
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.settings import Settings, load_settings
from reason_spec.verifiers.exact import ExactVerifier

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds numbers",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
LOOK = {"type": "function", "function": {"name": "look"}}
NO_PLANNER = {"strategy.planner": False}


@asynccontextmanager
async def chat_with(
    answers: Mapping[str, str],
    *,
    thinking: bool = False,
    draft: Mapping[str, str] | None = None,
    with_draft: bool = True,
    seconds_per_pass: float = 0.0,
    max_context: int = 1 << 20,
    settings: Settings | None = None,
) -> AsyncIterator[Chat]:
    """Give a chat whose target knows these answers; the draft knows the same unless it has its own."""

    def engine(name: str, known: Mapping[str, str]) -> ScriptedEngine:
        script = WrittenAnswers({match: (text,) for match, text in known.items()}, thinking=thinking)
        tokenizer = ScriptedTokenizer(thinking=thinking)
        return ScriptedEngine(
            name, script, tokenizer=tokenizer, seconds_per_pass=seconds_per_pass, max_context=max_context
        )

    accelerator = Accelerator(
        settings or load_settings(flags=dict(NO_PLANNER)),
        engine("target", answers),
        engine("draft", answers if draft is None else draft) if with_draft else None,
        ExactVerifier(),
        () if with_draft else ("autoregressive",),
    )
    async with accelerator:
        yield Chat(accelerator)


def asks(question: str, **more: Any) -> ChatRequest:
    return ChatRequest(messages=[{"role": "user", "content": question}], **more)


async def answer_of(chat: Chat, request: ChatRequest | TextRequest, **options: Any) -> ChatAnswer:
    return await chat.answer(await chat.prepare(request), **options)


async def events_of(chat: Chat, request: ChatRequest | TextRequest, **options: Any) -> Sequence[ChatEvent]:
    async with aclosing(chat.stream(await chat.prepare(request), **options)) as events:
        return [event async for event in events]


async def num_running(chat: Chat) -> int:
    engines = [engine for engine in (chat.accelerator.target, chat.accelerator.draft) if engine is not None]
    return sum([(await engine.stats()).num_running for engine in engines])
