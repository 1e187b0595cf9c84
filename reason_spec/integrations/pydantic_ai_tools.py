"""Pydantic AI: tools that run ahead of the model (docs/how-to/tools-ahead.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from reason_spec.integrations.base import missing
from reason_spec.integrations.pydantic_ai import openai_turns
from reason_spec.tools_ahead.sessions import ToolSession

try:
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
except ModuleNotFoundError as error:
    raise missing(error, "pydantic-ai-slim", "pydantic-ai") from error


@dataclass
class AheadToolset(WrapperToolset[Any]):
    """A toolset whose calls go through a session, which sees the conversation before each turn of the model.

    Tools that the session does not know, such as those that take the run's context, are called as usual, and
    count as calls that may change something.
    """

    session: ToolSession

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools. Pydantic AI asks for them before each of the model's turns."""
        self.session.try_follow(lambda: [turn for one in ctx.messages for turn in openai_turns(one)])
        tools: dict[str, ToolsetTool[Any]] = await super().get_tools(ctx)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Make a call of the model, or return the result of the same call that ran ahead."""
        own = partial(super().call_tool, name, tool_args, ctx, tool)
        return await self.session.acall(name, _as_written(ctx, tool_args), own)


def _as_written(ctx: RunContext[Any], validated: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as the model wrote them: validated ones have defaults and types."""
    for message in reversed(ctx.messages):
        for part in message.parts:
            if isinstance(part, ToolCallPart) and part.tool_call_id == ctx.tool_call_id:
                written: dict[str, Any] = part.args_as_dict()
                return written
    return validated
