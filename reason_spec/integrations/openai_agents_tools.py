"""OpenAI Agents SDK: tools that run ahead of the model (docs/how-to/tools-ahead.md)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from reason_spec.integrations.base import missing
from reason_spec.tools_ahead.sessions import ToolSession

try:
    from agents import Agent, FunctionTool, RunContextWrapper, RunHooks, TResponseInputItem, UserError
    from agents.models.chatcmpl_converter import Converter
    from agents.tool import set_function_tool_failure_error_function
    from agents.tool_context import ToolContext
except ModuleNotFoundError as error:
    raise missing(error, "openai-agents", "openai-agents", module="agents") from error


def functions_of(tools: Sequence[FunctionTool]) -> dict[str, Callable[..., Any]]:
    """Return tools as coroutines by name, for `SpeculativeTools`.

    They run without the context of a run: leave out tools that take it. Tools with an approval or a check of
    their input are left out here: these belong to calls of the model.
    """

    def function_of(tool: FunctionTool) -> Callable[..., Any]:
        # An error is raised, not returned as a text for the model: what fails ahead is dropped.
        raising = set_function_tool_failure_error_function(copy.copy(tool), None)

        async def call(**arguments: Any) -> Any:
            text = json.dumps(arguments)
            context = ToolContext(None, tool_name=tool.name, tool_call_id="ahead", tool_arguments=text)
            return await raising.on_invoke_tool(context, text)

        return call

    return {
        tool.name: function_of(tool)
        for tool in tools
        if not tool.needs_approval and not tool.tool_input_guardrails
    }


def tools_of(session: ToolSession, tools: Sequence[FunctionTool]) -> list[FunctionTool]:
    """Return the same tools for an agent; their calls go through the session.

    Tools that the session does not know are called as usual, and count as calls that may change something.
    """

    def wrapped(tool: FunctionTool) -> FunctionTool:
        async def call(context: ToolContext[Any], text: str) -> Any:
            own = partial(tool.on_invoke_tool, context, text)
            arguments = _arguments_in(text)
            if arguments is None:
                with session.writing():
                    return await own()
            return await session.acall(tool.name, arguments, own)

        through = copy.copy(tool)
        through.on_invoke_tool = call
        return through

    return [wrapped(tool) for tool in tools]


class FollowConversation(RunHooks):
    """Hooks of a run that show the conversation to a session whenever the model is asked."""

    def __init__(self, session: ToolSession) -> None:
        self._session = session

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        """Take the messages of the model's next answer."""
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._session.try_follow(lambda: [*system, *Converter.items_to_messages(input_items)], UserError)


def _arguments_in(text: str) -> dict[str, Any] | None:
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None
