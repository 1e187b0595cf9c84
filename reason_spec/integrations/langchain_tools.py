"""LangChain and LangGraph: tools that run ahead of the model (docs/how-to/tools-ahead.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from reason_spec.integrations.base import missing
from reason_spec.tools_ahead.sessions import ToolSession

try:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import BaseMessage, convert_to_openai_messages
    from langchain_core.tools import BaseTool, StructuredTool
except ModuleNotFoundError as error:
    raise missing(error, "langchain-core", "langchain") from error


def functions_of(tools: Sequence[BaseTool]) -> dict[str, Callable[..., Any]]:
    """Return tools as functions by name, for `SpeculativeTools`; of a tool with a coroutine alone that."""

    def function_of(tool: BaseTool) -> Callable[..., Any]:
        # An error is raised, not returned as a text for the model: what fails ahead is dropped.
        tool = tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})

        async def ainvoke(**arguments: Any) -> Any:
            return await _ainvoke(tool, arguments)

        if getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None:
            return ainvoke
        return lambda **arguments: _invoke(tool, arguments)

    return {tool.name: function_of(tool) for tool in tools}


def tools_of(session: ToolSession, tools: Sequence[BaseTool]) -> list[BaseTool]:
    """Return the same tools for an agent; their calls go through the session."""

    def wrapped(tool: BaseTool) -> BaseTool:
        # Errors are raised here, and handled by the wrapper as the tool would.
        inner = tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})

        def call(**arguments: Any) -> Any:
            asked = _as_written(tool, arguments)
            return session.call(tool.name, asked, partial(_invoke, inner, arguments))

        async def acall(**arguments: Any) -> Any:
            asked = _as_written(tool, arguments)
            return await session.acall(tool.name, asked, partial(_ainvoke, inner, arguments))

        return _AheadTool.from_function(
            call,
            acall,
            name=tool.name,
            description=tool.description,
            args_schema=tool.args_schema,
            return_direct=tool.return_direct,
            response_format=tool.response_format,
            handle_tool_error=tool.handle_tool_error,
            handle_validation_error=tool.handle_validation_error,
        )

    return [wrapped(tool) for tool in tools]


_WRITTEN: ContextVar[Any] = ContextVar("arguments as the model wrote them", default=None)


class _AheadTool(StructuredTool):
    """A tool that keeps what the model wrote beside the validated arguments, with defaults and types."""

    def run(self, tool_input: Any, *args: Any, **options: Any) -> Any:
        token = _WRITTEN.set(tool_input)
        try:
            return super().run(tool_input, *args, **options)
        finally:
            _WRITTEN.reset(token)

    async def arun(self, tool_input: Any, *args: Any, **options: Any) -> Any:
        token = _WRITTEN.set(tool_input)
        try:
            return await super().arun(tool_input, *args, **options)
        finally:
            _WRITTEN.reset(token)


def _as_written(tool: BaseTool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the running call as the model wrote them: predicted calls are written so.

    What the framework puts in, such as its state, is left out.
    """
    written = _WRITTEN.get()
    if not isinstance(written, Mapping):
        return arguments
    return {name: value for name, value in written.items() if name in tool.args}


def _invoke(tool: BaseTool, arguments: dict[str, Any]) -> Any:
    return _returned(tool, tool.invoke(_asked(tool, arguments)))


async def _ainvoke(tool: BaseTool, arguments: dict[str, Any]) -> Any:
    return _returned(tool, await tool.ainvoke(_asked(tool, arguments)))


def _asked(tool: BaseTool, arguments: dict[str, Any]) -> Any:
    if tool.response_format == "content":
        return arguments
    # Only the answer to a whole call has the artifact.
    return {"type": "tool_call", "id": "ahead", "name": tool.name, "args": arguments}


def _returned(tool: BaseTool, answer: Any) -> Any:
    """Return what the function of a tool returns, from the tool's answer."""
    return answer if tool.response_format == "content" else (answer.content, answer.artifact)


class FollowConversation(BaseCallbackHandler):
    """A callback that shows the conversation to a session whenever the model is asked.

    It must be given where the model is called, or to the whole graph.
    """

    # Before the model is asked, not beside it: the order of messages matters.
    run_inline = True

    def __init__(self, session: ToolSession) -> None:
        self._session = session

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **_: Any
    ) -> None:
        """Take the messages of the model's next answer."""
        for conversation in messages:
            self._session.try_follow(partial(convert_to_openai_messages, conversation))
