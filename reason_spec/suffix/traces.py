"""Reads files of past conversations: JSON lines with messages in OpenAI's format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from reason_spec.errors import DataError
from reason_spec.jsonl import BadLine, FieldError, JsonItem, check_unicode, parse_items, read_values
from reason_spec.suffix.base import Source

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

SOURCE_OF: Final[Mapping[Role, Source]] = {
    "system": "prompt",
    "user": "prompt",
    "assistant": "output",
    "tool": "tool",
}
MESSAGE_FIELDS: Final = ("messages", "traj")
"""Fields of a line that may hold the messages; agent benchmarks use ``traj``."""

_WANTED: Final = "one conversation a line, an object with its messages or the list of them"
_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(frozen=True, slots=True)
class TraceCall:
    """A tool call; ``arguments`` is a mapping if they are a JSON object, else their text."""

    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """One message, with its tool calls and the reasoning before it, if the file has any."""

    role: Role
    text: str
    reasoning: str = ""
    calls: tuple[TraceCall, ...] = ()

    @property
    def source(self) -> Source:
        return SOURCE_OF[self.role]

    @property
    def text_with_calls(self) -> str:
        """The text followed by the calls, in the form that most models write."""
        calls = [
            f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
            for call in self.calls
        ]
        return "\n".join([self.text, *calls] if self.text else calls)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A past conversation and its line in the file."""

    line: int
    messages: tuple[TraceMessage, ...]

    @property
    def num_answers(self) -> int:
        return sum(message.role == "assistant" for message in self.messages)


class Traces(NamedTuple):
    """The conversations of a file in its order, and the lines that were left out."""

    conversations: tuple[Conversation, ...]
    bad_lines: tuple[BadLine, ...]


def read_traces(path: Path, *, skip_bad: bool = False) -> Traces:
    """Read a file of past conversations, also gzip.

    A line is an object with ``messages`` (or ``traj``), or a list of messages. A message has a
    ``role`` and a ``content``, text or a list of text parts; an assistant's may have ``tool_calls``,
    nested as OpenAI's or flat with ``name`` and ``arguments``, and ``reasoning``.

    Args:
        skip_bad: collect unusable lines in ``bad_lines`` instead of raising.

    Raises:
        DataError: the file cannot be read, holds no conversation, or has an unusable line; the message
            names file, line and field.
    """
    bad_lines: list[BadLine] = []
    parsed = parse_items(_values(path), path, _read_conversation, bad_lines, skip_bad=skip_bad)
    conversations = tuple(parsed)
    if not conversations:
        first = f"; line {bad_lines[0].line}: {bad_lines[0].reason}" if bad_lines else ""
        raise DataError(f"{path}: holds no conversation{first}. It needs {_WANTED}.")
    return Traces(conversations, tuple(bad_lines))


def _values(path: Path) -> list[JsonItem | BadLine]:
    items = list(read_values(path, _WANTED))
    values = [item.value for item in items if isinstance(item, JsonItem)]
    if len(values) == len(items) and values and all(map(_is_message, values)):
        # The file is one conversation: one message a line, or an array of messages.
        return [JsonItem(1, values)]
    return items


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and "role" in value and not any(name in value for name in MESSAGE_FIELDS)


def _read_conversation(item: JsonItem) -> Conversation:
    name, listed = _listed_messages(item.value)
    messages = tuple(_read_message(f"{name}[{index}]", message) for index, message in enumerate(listed))
    return Conversation(item.line, messages)


def _listed_messages(value: object) -> tuple[str, list[object]]:
    name, listed = "", value
    if isinstance(value, dict):
        name = next((name for name in MESSAGE_FIELDS if name in value), "")
        if not name:
            raise FieldError(
                MESSAGE_FIELDS[0], f"is missing; there are {', '.join(map(repr, value)) or 'none'}"
            )
        listed = value[name]
    if not isinstance(listed, list):
        raise FieldError(name or "line", "is not a list of messages", listed)
    if not listed:
        raise FieldError(name or "line", "is an empty list of messages")
    return name, listed


def _read_message(place: str, value: object) -> TraceMessage:
    if not isinstance(value, dict):
        raise FieldError(place, "is not an object with role and content", value)
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldError(f"{place}.role", f"is none of {', '.join(_ROLES)}", role)
    reasoning = value.get("reasoning_content") or value.get("reasoning") or ""
    if not isinstance(reasoning, str):
        raise FieldError(f"{place}.reasoning", "is not text", reasoning)
    check_unicode(f"{place}.reasoning", reasoning)
    text = _read_content(f"{place}.content", value.get("content"))
    return TraceMessage(_ROLES[role], text, reasoning, _read_calls(place, value))


def _read_content(place: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        check_unicode(place, value)
        return value
    if not isinstance(value, list):
        raise FieldError(place, "is neither text nor a list of parts", value)
    texts: list[str] = []
    for index, part in enumerate(value):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise FieldError(f"{place}[{index}]", "is not a text part; only texts are learnt", kind)
        check_unicode(f"{place}[{index}]", text)
        texts.append(text)
    return "".join(texts)


def _read_calls(place: str, message: Mapping[str, Any]) -> tuple[TraceCall, ...]:
    listed = message.get("tool_calls") or []
    if not isinstance(listed, list):
        raise FieldError(f"{place}.tool_calls", "is not a list", listed)
    if message.get("function_call"):
        listed = [*listed, message["function_call"]]
    return tuple(_read_call(f"{place}.tool_calls[{index}]", call) for index, call in enumerate(listed))


def _read_call(place: str, value: object) -> TraceCall:
    call = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise FieldError(place, "has no function name", value)
    check_unicode(f"{place}.name", call["name"])
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, (dict, str)):
        raise FieldError(f"{place}.arguments", "is neither an object nor text", arguments)
    check_unicode(f"{place}.arguments", json.dumps(arguments, ensure_ascii=False))
    return TraceCall(call["name"], arguments)


def _parsed(arguments: str) -> dict[str, Any] | str:
    # Chat templates encode arguments as JSON themselves and would quote a text.
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def openai_messages(messages: Sequence[TraceMessage], *, calls: bool, tools: bool) -> list[dict[str, Any]]:
    """Return messages in the format of chat templates.

    Args:
        calls: put tool calls into their own field; else append them to the text.
        tools: give tool results the role ``tool``; else ``user``.
    """
    made: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message.role == "tool" and not tools else message.role
        one: dict[str, Any] = {"role": role, "content": message.text if calls else message.text_with_calls}
        if message.reasoning:
            one["reasoning_content"] = message.reasoning
        if calls and message.calls:
            one["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
        made.append(one)
    return made
