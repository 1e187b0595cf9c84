"""Tools in prompts, and answers that have to be calls.

A chat template renders tools, calls and results if it can. The others become text in Hermes' form: tools are
described in a system message, calls are put in ``<tool_call>``, results in
``<tool_response>`` in the user's turn. Where a template renders one call of a turn alone, each call becomes a
turn of its own.

An answer that has to be a call (``tool_choice`` ``required`` or a name) is restricted by a grammar to calls
in Hermes' form, if the engine takes constraints. Otherwise the model is trusted to call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reason_spec.chat.messages import check_text, one_call_a_turn
from reason_spec.engines.base import Tokenizer
from reason_spec.engines.chat_template import ChatOptions, Message
from reason_spec.engines.grammars import bounded_schema
from reason_spec.errors import EngineError, RequestError
from reason_spec.suffix.rendering import PROBE, shows_calls, shows_results, shows_several_calls
from reason_spec.suffix.traces import TraceCall, TraceMessage
from reason_spec.types import Constraint

_DESCRIPTION: Final = """\
You may call functions to help with the user's request. These are their signatures, in JSON:
<tools>
{tools}
</tools>
To call a function, write a JSON object with its name and its arguments inside of tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
</tool_call>
What it returns is then shown to you inside of <tool_response></tool_response>."""
_RESULT: Final = "<tool_response>\n{content}\n</tool_response>"
_PROBE_TOOL: Final = {
    "type": "function",
    "function": {"name": PROBE, "description": "", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class TemplateAbilities:
    """The parts of a conversation that a chat template renders.

    ``several_calls``: all calls of a turn that has more than one.
    """

    system: bool
    tools: bool
    calls: bool
    results: bool
    several_calls: bool

    def __and__(self, other: TemplateAbilities) -> TemplateAbilities:
        return TemplateAbilities(
            self.system and other.system,
            self.tools and other.tools,
            self.calls and other.calls,
            self.results and other.results,
            self.several_calls and other.several_calls,
        )


def abilities_of(tokenizer: Tokenizer) -> TemplateAbilities:
    """Return the parts that a model's chat template renders, found by rendering probes."""
    asked = [Message(role="user", content="?")]
    return TemplateAbilities(
        system=_shows(tokenizer, [Message(role="system", content=PROBE), *asked]),
        tools=_shows(tokenizer, asked, ChatOptions(tools=[_PROBE_TOOL])),
        calls=shows_calls(tokenizer),
        results=shows_results(tokenizer),
        several_calls=shows_several_calls(tokenizer),
    )


def _shows(tokenizer: Tokenizer, messages: Sequence[Message], options: ChatOptions | None = None) -> bool:
    try:
        tokens = tokenizer.encode_chat(messages, options or ChatOptions())
    except EngineError:
        return False
    return PROBE in tokenizer.decode_prompt(tokens)


def offered_tools(tools: Sequence[Mapping[str, Any]], choice: str) -> tuple[dict[str, Any], ...]:
    """Return the tools that the model may call: none under ``none``, one where it is named.

    Raises:
        RequestError: one has another form, or the choice is none of them.
    """
    read = tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    names = names_of(read)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"two tools have the name {twice!r}", param="tools")
    if choice == "none":
        return ()
    if choice != "auto" and not read:
        raise RequestError(f"tool_choice is {choice!r}, and there are no tools", param="tool_choice")
    if choice in ("auto", "required"):
        return read
    if choice not in names:
        raise RequestError(
            f"tool_choice is {choice!r}: it is none, auto, required, or one of {', '.join(names)}",
            param="tool_choice",
        )
    return tuple(tool for tool in read if tool["function"]["name"] == choice)


def names_of(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def _tool(place: str, tool: object) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise RequestError(f'{place} is not {{"type": "function", "function": ...}}', param=place)
    if tool.get("type", "function") != "function":
        raise RequestError(f"{place} is of type {tool['type']!r}: only functions are known", param=place)
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RequestError(f"{place} has no function name", param=f"{place}.function.name")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(
            f"the parameters of {name} are no JSON schema", param=f"{place}.function.parameters"
        )
    try:
        check_text(json.dumps(dict(function), ensure_ascii=False), place)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{place} is no JSON: {error}", param=place) from None
    schema = dict(parameters or {"type": "object", "properties": {}})
    return {"type": "function", "function": {**function, "parameters": schema}}


def render_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], abilities: TemplateAbilities
) -> tuple[Message, ...]:
    """Return a conversation with everything that the chat template does not show as text."""
    made: list[Message] = []
    joins = False
    is_split = abilities.calls and not abilities.several_calls
    for message in one_call_a_turn(messages) if is_split else messages:
        is_result = message["role"] == "tool" and not abilities.results
        one = _as_result(message) if is_result else message
        if one.get("tool_calls") and not abilities.calls:
            one = _with_written_calls(one)
        # Many templates want the turns to alternate.
        if made and one["role"] == "user" == made[-1]["role"] and (is_result or joins):
            one = Message(role="user", content=f"{made.pop()['content']}\n{one['content']}")
        made.append(one)
        joins = is_result
    if tools and not abilities.tools:
        made = _with_description(made, tools, abilities.system)
    return tuple(made)


def _as_result(message: Message) -> Message:
    return Message(role="user", content=_RESULT.format(content=message["content"]))


def _with_written_calls(message: Message) -> Message:
    functions = [call["function"] for call in message["tool_calls"]]
    calls = tuple(TraceCall(name=function["name"], arguments=function["arguments"]) for function in functions)
    text = TraceMessage(role="assistant", text=message["content"], calls=calls).text_with_calls
    made = Message(role="assistant", content=text)
    if "reasoning_content" in message:
        made["reasoning_content"] = message["reasoning_content"]
    return made


def _with_description(
    messages: list[Message], tools: Sequence[Mapping[str, Any]], takes_system: bool
) -> list[Message]:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    description = _DESCRIPTION.format(tools=listed)
    role = "system" if takes_system else "user"
    first = messages[0]
    if first["role"] == role:
        before = (
            [f"{first['content']}\n\n{description}"]
            if takes_system
            else [f"{description}\n\n{first['content']}"]
        )
        return [Message(role=role, content=before[0]), *messages[1:]]
    return [Message(role=role, content=description), *messages]


_SPACE: Final = "SPACE?"


def calls_grammar(
    tools: Sequence[Mapping[str, Any]], *, parallel: bool, answer_schema: str | None = None
) -> Constraint:
    """Return the constraint to calls in Hermes' form: to one call, or with ``parallel`` to one or more.

    The parameters of each function are a schema of their own, so that its references resolve.

    Args:
        answer_schema: a JSON schema, as text, of an answer that is allowed in the place of calls.

    Raises:
        ConstraintError: a schema is none, or too large.
    """
    rules = ["SPACE: /[ \\t\\n]{1,8}/"]
    start = f"{_SPACE} call ({_SPACE} call)*" if parallel else f"{_SPACE} call"
    if answer_schema is not None:
        start = f"calls | answer\ncalls: {start}"
        rules.append(f"answer: %json {bounded_schema(answer_schema)}")
    calls = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        schema = {"type": "object", **function["parameters"]}
        rules.append(f"arguments{index}: %json {bounded_schema(json.dumps(schema))}")
        name = json.dumps(json.dumps(function["name"], ensure_ascii=False), ensure_ascii=False)
        parts = [
            '"{"',
            r'"\"name\""',
            '":"',
            name,
            '","',
            r'"\"arguments\""',
            '":"',
            f"arguments{index}",
            '"}"',
        ]
        body = f" {_SPACE} ".join(['"<tool_call>"', *parts, '"</tool_call>"'])
        rules.append(f"call{index}: {body}")
        calls.append(f"call{index}")
    return Constraint(grammar="\n".join([f"start: {start}", f"call: {' | '.join(calls)}", *rules]) + "\n")
