"""A plain function ``messages -> text`` over an accelerator, for any other program."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeAlias, TypeVar

from reason_spec.chat.base import ChatAnswer, ChatEvent, ChatRequest, TextDelta
from reason_spec.integrations.base import InProcess, assistant_turn, call_body, chat_request, check_options

Messages: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A question, or a conversation in OpenAI's form."""
_T = TypeVar("_T")


class Answerer:
    """A function of messages that returns the text of the next one.

    ``message`` returns the whole next message in OpenAI's form, calls of tools included. ``answer`` adds
    usage and the report about speculation. ``stream`` yields the text as it becomes final. Methods with an
    ``a`` are asynchronous. All take the options of `integrations.base.chat_request`.

    ::

        with InProcess() as models:
            ask = Answerer(models, max_tokens=400)
            print(ask("Ana has 3 apples ..."))
    """

    def __init__(self, models: InProcess | None = None, **options: Any) -> None:
        """Args:
        models: shared with other wrappers; None: those of the default settings.
        options: of every call, by the names in `integrations.base.OPTIONS`; those of a call go first.

        Raises:
            RequestError: an option has an unknown name.
        """
        check_options(options)
        self.models = models or InProcess()
        self.options = options

    def __call__(self, messages: Messages, **call: Any) -> str:
        """Return the text of the next message, empty where it only calls tools."""
        return self.answer(messages, **call).content or ""

    async def acall(self, messages: Messages, **call: Any) -> str:
        """Like a call, from any event loop."""
        return (await self.aanswer(messages, **call)).content or ""

    def message(self, messages: Messages, **call: Any) -> dict[str, Any]:
        """Return the next message in OpenAI's form, to be appended to the others."""
        return openai_message(self.answer(messages, **call))

    async def amessage(self, messages: Messages, **call: Any) -> dict[str, Any]:
        """Like `message`, from any event loop."""
        return openai_message(await self.aanswer(messages, **call))

    def answer(self, messages: Messages, **call: Any) -> ChatAnswer:
        """Return the whole answer.

        Raises:
            RequestError: the request cannot be answered.
            EngineError: a model failed.
        """
        return self.models.chat(self._request(messages, call))

    async def aanswer(self, messages: Messages, **call: Any) -> ChatAnswer:
        """Like `answer`, from any event loop."""
        return await self.models.achat(self._request(messages, call))

    def stream(self, messages: Messages, **call: Any) -> Generator[str]:
        """Yield the text of the next message; closing the generator abandons it."""
        with closing(self.models.stream(self._request(messages, call))) as events:
            for event in events:
                if text := _content(event):
                    yield text

    async def astream(self, messages: Messages, **call: Any) -> AsyncGenerator[str]:
        """Like `stream`, from any event loop."""
        async with aclosing(self.models.astream(self._request(messages, call))) as events:
            async for event in events:
                if text := _content(event):
                    yield text

    def _request(self, messages: Messages, call: Mapping[str, Any]) -> ChatRequest:
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return chat_request(turns, {**self.options, **call})


def wrap(function: Callable[..., _T], models: InProcess | None = None, **options: Any) -> Callable[..., _T]:
    """Return a function with its first argument filled in: an accelerated model to call.

    Programs around a model are often one function that takes the model call as an argument. It may be
    synchronous or not:

    ::

        def solve(ask, question):
            draft = ask(question)
            return ask(f"{question}\\n\\n{draft}\\n\\nCheck this.")

        fast_solve = wrap(solve)
        fast_solve("Ana has 3 apples ...")

    Args:
        function: its first argument is called with messages or a question, and returns text; a coroutine
            function awaits it.
        models, options: as in Answerer.
    """
    answerer = Answerer(models, **options)
    asks: Callable[..., str] | Callable[..., Awaitable[str]] = answerer
    if iscoroutinefunction(function):
        asks = answerer.acall

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> _T:
        return function(asks, *arguments, **named)

    return wrapped


def _content(event: ChatEvent) -> str:
    return event.text if isinstance(event, TextDelta) and event.channel == "content" else ""


def openai_message(answer: ChatAnswer) -> dict[str, Any]:
    """Return an answer as a message in OpenAI's form."""
    calls = [call_body(call.id, call.name, call.arguments) for call in answer.tool_calls]
    return assistant_turn(answer.content, answer.reasoning, calls)
