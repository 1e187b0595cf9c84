"""smolagents: tools that run ahead of the model (docs/how-to/tools-ahead.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from reason_spec.integrations.base import assistant_turn, call_body, missing
from reason_spec.tools_ahead.calls import normal_json
from reason_spec.tools_ahead.sessions import ToolSession

try:
    from smolagents import ChatMessage, MessageRole, Tool
except ModuleNotFoundError as error:
    raise missing(error, "smolagents", "smolagents") from error

_END_OF_PLAN = "<end_plan>"
"""The stop of requests for a plan, which show the model a shortened conversation."""


class _Made(NamedTuple):
    """A call that was made, with its arguments as JSON, and its result as the model reads it."""

    name: str
    arguments: str
    result: str


class AgentConversation:
    """Connects one agent to a session: its model shows the conversation, its tools make their calls there.

    smolagents passes calls and results on as text, and a `CodeAgent` none of the calls in its code. So the
    calls are noted where they are made.
    """

    def __init__(self, session: ToolSession) -> None:
        self._session = session
        self._steps: list[list[_Made]] = []
        """The calls of each step that the agent's memory holds."""
        self._new: list[_Made] = []

    def tools_of(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the same tools for the agent. A `CodeAgent` has to run its code in this process."""
        return [_AheadTool(tool, partial(self._call, tool)) for tool in tools]

    def model_of(self, model: Any) -> Any:
        """Return the same model for the agent."""
        return _FollowedModel(model, self._follow)

    def _call(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        result = self._session.call(tool.name, arguments, partial(tool, **arguments))
        try:
            text = normal_json(arguments)
        except TypeError:
            # Images and the like give no prediction.
            text = "{}"
        self._new.append(_Made(tool.name, text, str(result).strip()))
        return result

    def _follow(self, messages: Sequence[ChatMessage]) -> None:
        num_steps = sum(message.role is MessageRole.TOOL_CALL for message in messages)
        if num_steps == 0:
            self._steps, self._new = [], []
        elif num_steps > len(self._steps):
            # Of steps before this conversation the calls are not known.
            self._steps += [[] for _ in range(num_steps - 1 - len(self._steps))]
            self._steps.append(self._new)
            self._new = []
        self._session.try_follow(lambda: list(self._turns(messages)))

    def _turns(self, messages: Sequence[ChatMessage]) -> Iterator[dict[str, Any]]:
        steps = iter(self._steps)
        for message in messages:
            if message.role is MessageRole.TOOL_CALL:
                for made in next(steps, []):
                    yield assistant_turn(None, None, [call_body("", made.name, made.arguments)])
                    yield {"role": "tool", "content": made.result}
            elif message.role is not MessageRole.TOOL_RESPONSE:
                yield {"role": message.role.value, "content": message.content}


class _AheadTool(Tool):
    """A tool whose calls are made elsewhere."""

    # Its parameters are those of another tool.
    skip_forward_signature_validation = True

    def __init__(self, tool: Tool, call: Callable[[Mapping[str, Any]], Any]) -> None:
        self.name, self.description, self.inputs = tool.name, tool.description, tool.inputs
        self.output_type, self.output_schema = tool.output_type, tool.output_schema
        self._call = call
        super().__init__()

    def forward(self, *values: Any, **arguments: Any) -> Any:
        """Make a call; code may give arguments by place.

        Raises:
            TypeError: there are more arguments than inputs, or an input is given twice.
        """
        if len(values) > len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} arguments; {len(values)} were given")
        by_place = dict(zip(self.inputs, values, strict=False))
        if twice := by_place.keys() & arguments.keys():
            raise TypeError(f"{self.name} takes {', '.join(sorted(twice))} by place or by name, not both")
        return self._call({**by_place, **arguments})


class _FollowedModel:
    """A model that shows messages before it answers them."""

    def __init__(self, model: Any, follow: Callable[[Sequence[ChatMessage]], None]) -> None:
        self._model = model
        self._follow = follow

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._model, name)
        if name not in ("generate", "generate_stream"):
            return found

        def answer(messages: Sequence[ChatMessage], *options: Any, **named: Any) -> Any:
            if _END_OF_PLAN not in (named.get("stop_sequences") or ()):
                self._follow(messages)
            return found(messages, *options, **named)

        return answer
