"""Reads past conversations: messages in OpenAI's format, results of tau-bench, trajectories of SWE-agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from reason_spec.errors import DataError
from reason_spec.jsonl import (
    BadLine,
    FieldError,
    JsonItem,
    check_unicode,
    is_document,
    parse_items,
    read_values,
)
from reason_spec.suffix.base import Source

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]

SOURCE_OF: Final[Mapping[Role, Source]] = {
    "system": "prompt",
    "developer": "prompt",
    "user": "prompt",
    "assistant": "output",
    "tool": "tool",
}
_WANTED: Final = "one conversation a line, an object with its messages or the list of them"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", populate_by_name=True)


class TraceCall(_Part):
    """A tool call, nested as OpenAI's or flat; ``arguments`` is a mapping if they are a JSON object."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    id: Any = Field(default=None, exclude=True)
    """Named by the message with its result."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        return {**function, "id": call.get("id")} if isinstance(function, dict) else function or call

    @field_validator("arguments")
    @classmethod
    def _parsed(cls, arguments: dict[str, Any] | str) -> dict[str, Any] | str:
        # Chat templates encode arguments as JSON themselves and would quote a text.
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            return arguments
        check_unicode("arguments", json.dumps(value, ensure_ascii=False))
        return value if isinstance(value, dict) else arguments


class TraceMessage(_Part):
    """One message, with its tool calls and the reasoning before it, if the file has any."""

    role: Role
    text: str = Field(default="", validation_alias="content")
    reasoning: str = Field(default="", validation_alias=AliasChoices("reasoning_content", "reasoning"))
    calls: tuple[TraceCall, ...] = Field(default=(), validation_alias="tool_calls", strict=False)
    call_id: Any = Field(default=None, validation_alias="tool_call_id", exclude=True)
    """The call whose result this is."""
    action: str = ""
    """SWE-agent: the command that the model wrote into its text."""
    message_type: str = ""
    """SWE-agent: ``observation`` for what a command printed, in whatever role."""

    @field_validator("text", mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return "" if content is None else content
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise ValueError("holds a part that is not text; only texts are learned")
        return "\n".join(texts)

    @field_validator("reasoning", "calls", "action", "message_type", mode="before")
    @classmethod
    def _present(cls, value: Any, info: ValidationInfo) -> Any:
        return cls.model_fields[str(info.field_name)].default if value is None else value

    @property
    def source(self) -> Source:
        return SOURCE_OF[self.role]

    @property
    def is_observation(self) -> bool:
        """Whether a message of the role ``user`` is a tool's result."""
        return self.role == "user" and self.message_type == "observation"

    @property
    def written_calls(self) -> tuple[TraceCall, ...]:
        """The command that the text holds, as a call whose tool is the command's first word."""
        command = self.action.strip()
        return (TraceCall(name=command.split()[0], arguments={"command": command}),) if command else ()

    @property
    def text_with_calls(self) -> str:
        """The text followed by the calls, in the form that most models write."""
        calls = [
            f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
            for call in self.calls
        ]
        return "\n".join([self.text, *calls] if self.text else calls)


class _Line(_Part):
    messages: tuple[TraceMessage, ...] = Field(
        min_length=1, strict=False, validation_alias=AliasChoices("messages", "traj", "history")
    )
    task_id: str | int | None = None
    trial: str | int | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"messages": value} if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Conversation:
    """A past conversation and its line in the file.

    ``task`` and ``trial`` are those of a benchmark, if the file names them.
    """

    line: int
    messages: tuple[TraceMessage, ...]
    task: str | None = None
    trial: str | None = None

    @property
    def num_answers(self) -> int:
        return sum(message.role == "assistant" for message in self.messages)


class Traces(NamedTuple):
    """The conversations of a file in its order, and the lines that were left out."""

    conversations: tuple[Conversation, ...]
    bad_lines: tuple[BadLine, ...]


def read_traces(path: Path, *, skip_bad: bool = False) -> Traces:
    """Read a file of past conversations, also gzip.

    A line is an object with ``messages``, or a list of messages. A message has a ``role`` and a ``content``,
    text or a list of text parts, which are joined by line breaks as in served prompts. An assistant's may
    have ``tool_calls`` and ``reasoning``. Results of tau-bench (``traj``, with ``task_id`` and ``trial``) are
    lines too. A ``.traj`` file of SWE-agent is one conversation, its ``history``; its name is the task.

    Args:
        skip_bad: collect unusable lines in ``bad_lines`` instead of raising.

    Raises:
        DataError: the file cannot be read, holds no conversation, or has an unusable line; the message
            names file, line and field.
    """
    bad_lines: list[BadLine] = []
    items = read_values(path, _WANTED)
    conversations = tuple(parse_items(items, path, _read_conversation, bad_lines, skip_bad=skip_bad))
    if is_document(path):
        conversations = tuple(replace(one, task=path.name.split(".")[0]) for one in conversations)
    if not conversations:
        first = f"; line {bad_lines[0].line}: {bad_lines[0].reason}" if bad_lines else ""
        raise DataError(f"{path}: holds no conversation{first}. It needs {_WANTED}.")
    return Traces(conversations, tuple(bad_lines))


def _read_conversation(item: JsonItem) -> Conversation:
    check_unicode("messages", json.dumps(item.value, ensure_ascii=False))
    try:
        line = _Line.model_validate(item.value)
    except ValidationError as error:
        mistake = error.errors()[0]
        place = ".".join(map(str, mistake["loc"])) or "line"
        raise FieldError(place, f"is unusable ({mistake['msg']})", mistake["input"]) from None
    task, trial = (None if name is None else str(name) for name in (line.task_id, line.trial))
    return Conversation(item.line, line.messages, task, trial)


def openai_messages(messages: Sequence[TraceMessage], *, calls: bool, tools: bool) -> list[dict[str, Any]]:
    """Return messages in the format of chat templates.

    Args:
        calls: put tool calls into their own field; else append them to the text.
        tools: give tool results the role ``tool``; else ``user``.
    """
    made: list[dict[str, Any]] = []
    for message in messages:
        role = {"tool": "tool" if tools else "user", "developer": "system"}.get(message.role, message.role)
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
