"""What all wrappers share: the models on a thread of their own, and requests from a framework's arguments."""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import Any, Self

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatEvent, ChatRequest, ChatSampling, Policy
from reason_spec.chat.sampling import read_logit_bias
from reason_spec.chat.service import Chat
from reason_spec.errors import MissingDependencyError, RequestError, did_you_mean
from reason_spec.settings import Settings
from reason_spec.sync import LoopThread, closed_error
from reason_spec.types import Constraint

_SAMPLING = frozenset(field.name for field in fields(ChatSampling))
_POLICY = frozenset(field.name for field in fields(Policy))
_REQUEST = frozenset(
    {
        "chat_arguments",
        "continue_final",
        "on_drafted_call",
        "parallel_tool_calls",
        "reasoning_effort",
        "tenant",
    }
)
OPTIONS = _SAMPLING | _POLICY | _REQUEST
"""Options of wrappers and of single calls: fields of ChatSampling, Policy and ChatRequest."""


class InProcess:
    """The accelerator for frameworks: its models start with the first call, on a thread of their own.

    Several wrappers may share one, from any thread and any event loop. Close it, or use it as a context
    manager. The end of the program closes it too.

    ::

        with InProcess(strategy__depth=4) as models:
            agent = CodeAgent(tools=[], model=ReasonSpecModel(models))
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        accelerator: Accelerator | None = None,
        strategies: Sequence[str] = (),
        on_end: Callable[[ChatEnd], None] | None = None,
        **flags: Any,
    ) -> None:
        """Args:
        settings, strategies, flags: as in `Accelerator.from_settings`.
        accelerator: one that is not started yet, in the place of settings.
        on_end: called with the end of every answer, in the models' thread. It holds the report about
            speculation, for frameworks that cannot return it.

        Raises:
            SettingsError: a name is unknown or a value is out of range.
        """
        if accelerator is not None and (settings is not None or flags):
            raise TypeError("give either an accelerator or settings, not both")
        if accelerator is None:
            accelerator = Accelerator.from_settings(settings, strategies=strategies, **flags)
        self.accelerator = accelerator
        self._chat = Chat(accelerator)
        self._on_end = on_end
        self._starting = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def model_name(self) -> str:
        """The name of the target, as frameworks show it."""
        return self.accelerator.settings.target.model

    def start(self) -> None:
        """Load the models, unless they are loaded. Calls do it themselves.

        Raises:
            EngineError: one of them could not start, or they were closed.
        """
        self._running()

    def _running(self) -> LoopThread:
        with self._starting:
            if self._closed:
                raise closed_error()
            if self._thread is None:
                thread = LoopThread()
                thread.start()
                try:
                    thread.run(self.accelerator.start())
                except BaseException:
                    thread.stop()
                    raise
                self._thread = thread
                atexit.register(self.close)
            return self._thread

    def close(self) -> None:
        """Cancel unfinished work and free the models; may be called twice."""
        with self._starting:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None:
            return
        atexit.unregister(self.close)
        try:
            thread.run(self._end(thread))
        finally:
            thread.stop()

    async def _end(self, thread: LoopThread) -> None:
        await thread.cancel_others()
        await self.accelerator.close()

    def chat(self, request: ChatRequest) -> ChatAnswer:
        """Return a whole answer.

        Raises:
            RequestError: the request cannot be answered.
            EngineError: a model failed.
        """
        return self._running().run(self._answer(request))

    async def achat(self, request: ChatRequest) -> ChatAnswer:
        """Like `chat`, from any event loop; cancelling it frees the models."""
        thread = await asyncio.to_thread(self._running)
        return await thread.run_async(self._answer(request))

    def stream(self, request: ChatRequest) -> Generator[ChatEvent]:
        """Yield the events of an answer; closing the generator abandons it. Raises what `chat` raises."""
        yield from self._running().iterate(lambda: self._events(request))

    async def astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        """Like `stream`, from any event loop."""
        thread = await asyncio.to_thread(self._running)
        async with aclosing(thread.iterate_async(lambda: self._events(request))) as events:
            async for event in events:
                yield event

    async def _answer(self, request: ChatRequest) -> ChatAnswer:
        answer = await self._chat.answer(await self._chat.prepare(request))
        if self._on_end is not None:
            self._on_end(answer.end)
        return answer

    async def _events(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        async with aclosing(self._chat.stream(await self._chat.prepare(request))) as events:
            async for event in events:
                if isinstance(event, ChatEnd) and self._on_end is not None:
                    self._on_end(event)
                yield event


def chat_request(messages: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> ChatRequest:
    """Return the request for a conversation in OpenAI's form.

    Args:
        options: by the names in OPTIONS, and ``tools``, ``tool_choice`` (a ToolChoice, a function's name, or
            an object that names one) and ``response_format`` (of type text, json_object or json_schema) in
            OpenAI's form. None counts as not given.

    Raises:
        RequestError: an option has an unknown name, or a form is none of these.
    """
    given = {name: value for name, value in options.items() if value is not None}
    tools = tuple(given.pop("tools", ()))
    tool_choice = _tool_choice(given.pop("tool_choice", "auto"))
    constraint = _constraint(given.pop("response_format", None))
    check_options(given)
    if isinstance(stop := given.get("stop"), str):
        given["stop"] = (stop,)
    for name in ("stop", "stop_token_ids"):
        if name in given:
            given[name] = tuple(given[name])
    if "logit_bias" in given:
        given["logit_bias"] = read_logit_bias(given["logit_bias"])
    return ChatRequest(
        messages=tuple(messages),
        tools=tools,
        tool_choice=tool_choice,
        constraint=constraint,
        sampling=ChatSampling(**{name: value for name, value in given.items() if name in _SAMPLING}),
        policy=Policy(**{name: value for name, value in given.items() if name in _POLICY}),
        **{name: value for name, value in given.items() if name in _REQUEST},
    )


def check_options(names: Iterable[str]) -> None:
    """Check that names are of OPTIONS.

    Raises:
        RequestError: there is one.
    """
    for name in names:
        if name not in OPTIONS:
            guess = did_you_mean(name, OPTIONS) or "."
            raise RequestError(
                f"unknown option {name!r}{guess} Known: {', '.join(sorted(OPTIONS))}", param=name
            )


def _tool_choice(choice: str | Mapping[str, Any]) -> str:
    if isinstance(choice, str):
        return choice
    try:
        name = choice["function"]["name"]
    except (KeyError, TypeError):
        name = None
    if not isinstance(name, str):
        raise RequestError(f"tool_choice is {choice!r}; name a function", param="tool_choice")
    return name


def _constraint(response_format: Mapping[str, Any] | None) -> Constraint | None:
    if response_format is None or response_format.get("type") == "text":
        return None
    if response_format.get("type") == "json_object":
        return Constraint(json_schema='{"type": "object"}')
    try:
        return Constraint(json_schema=json.dumps(response_format["json_schema"]["schema"]))
    except (KeyError, TypeError):
        raise RequestError(
            f"response_format is {dict(response_format)!r}; its type is text, json_object or json_schema",
            param="response_format",
        ) from None


def call_body(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call in OpenAI's form; ``arguments`` is JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant_turn(
    content: str | None, reasoning: str | None, calls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a message of the model in OpenAI's form; ``calls`` are those of `call_body`."""
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        turn["reasoning"] = reasoning
    if calls:
        turn["tool_calls"] = list(calls)
    return turn


def tool_body(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form; ``parameters`` is a JSON schema."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response format of a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def missing(error: ModuleNotFoundError, package: str, extra: str, *, module: str = "") -> Exception:
    """Return the error for a failed import, with the install line if the framework itself is missing.

    ``module`` is the framework's, where its name is neither the package's nor the extra's.
    """
    if (error.name or "").partition(".")[0].replace("_", "-") not in (package, extra, module):
        return error
    return MissingDependencyError(package, f"the wrapper for {package}", extra)
