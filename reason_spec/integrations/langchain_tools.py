"""LangChain and LangGraph: tools that run ahead of the model (docs/how-to/tools-ahead.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Return tools as functions by name, for `SpeculativeTools`."""

    def function_of(tool: BaseTool) -> Callable[..., Any]:
        return lambda **arguments: tool.invoke(arguments)

    return {tool.name: function_of(tool) for tool in tools}


def tools_of(session: ToolSession, tools: Sequence[BaseTool]) -> list[BaseTool]:
    """Return the same tools for an agent; their calls go through the session."""

    def wrapped(tool: BaseTool) -> BaseTool:
        def call(**arguments: Any) -> Any:
            return session.call(tool.name, arguments)

        async def acall(**arguments: Any) -> Any:
            return await session.acall(tool.name, arguments)

        return StructuredTool.from_function(
            call, acall, name=tool.name, description=tool.description, args_schema=tool.args_schema
        )

    return [wrapped(tool) for tool in tools]


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
