"""Tool calls, their normal form, and a conversation as a sequence of events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from reason_spec.errors import SettingsError
from reason_spec.suffix.traces import TraceCall, TraceMessage

Speaker: TypeAlias = Literal["system", "user", "assistant"]


class Call:
    """A tool call. Two calls are the same if their ``key`` is.

    The key is the name with the arguments in normal form: sorted, and integral numbers as integers. Texts are
    compared as they are. ``values`` are the arguments in their order.
    """

    __slots__ = ("key", "name", "values")

    def __init__(self, name: str, values: Mapping[str, str]) -> None:
        """Make a call of arguments in normal JSON, see `normal_json`."""
        self.name = name
        self.values = dict(values)
        # A name that is none in Python may hold the signs between arguments.
        named = ((key if key.isidentifier() else json.dumps(key), values[key]) for key in sorted(values))
        self.key = f"{name}({', '.join(f'{key}={value}' for key, value in named)})"

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any]) -> Call:
        return cls(name, {key: normal_json(value) for key, value in arguments.items()})

    @property
    def arguments(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self.values.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Call({self.key})"


@dataclass(frozen=True, slots=True)
class Said:
    """A text of the system, the user or the model."""

    speaker: Speaker
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The model has called a tool."""

    call: Call


@dataclass(frozen=True, slots=True)
class Returned:
    """A tool has answered."""

    call: Call
    text: str


_RULE: Final = re.compile(r"([\w.:/-]+)(?:\(([\w-]+)=([^()]*)\))?")
Event: TypeAlias = Said | Called | Returned


def normal_json(value: Any) -> str:
    """Return JSON with sorted keys, in which 1.0 is 1."""
    return json.dumps(_normal(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _normal(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {str(key): _normal(part) for key, part in value.items()}
        case list() | tuple():
            return [_normal(part) for part in value]
        case _:
            return value


class ReadOnlyTools:
    """Calls that change nothing, by rules: ``NAME``, or ``NAME(ARGUMENT=VALUE)`` for some calls of a tool."""

    def __init__(self, rules: Iterable[str]) -> None:
        """Read the rules.

        Raises:
            SettingsError: a rule has another form.
        """
        self._rules: dict[str, list[tuple[str, str]]] = {}
        for rule in rules:
            found = _RULE.fullmatch(rule.strip())
            if found is None:
                raise SettingsError(
                    f"{rule!r} names no tool; write NAME, or NAME(ARGUMENT=VALUE), as editor(command=view)"
                )
            self._rules.setdefault(found[1], []).append((found[2] or "", found[3] or ""))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools that have a rule."""
        return tuple(self._rules)

    def __call__(self, call: Call) -> bool:
        for argument, value in self._rules.get(call.name, ()):
            if not argument or call.values.get(argument) in (normal_json(value), value):
                return True
        return False


def annotated_tools(tools: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of the tools whose annotations allow calls that the client did not make."""
    found = set()
    for tool in tools:
        hints = tool.get("annotations") or {}
        if hints.get("readOnlyHint") is True and hints.get("idempotentHint") is not False:
            found.add(str(tool.get("name")))
    return found


def call_of(call: TraceCall) -> Call | None:
    """Return a call of a trace; None if its arguments are no JSON object."""
    return Call.of(call.name, call.arguments) if isinstance(call.arguments, dict) else None


def read_messages(messages: Iterable[Mapping[str, Any]]) -> list[TraceMessage]:
    """Return messages in OpenAI's form, without the parts of contents that are no text, such as pictures.

    Raises:
        pydantic.ValidationError: a message has another form, or is no mapping.
    """
    return [TraceMessage.model_validate(_text_only(message)) for message in messages]


def _text_only(message: Any) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    texts = [part for part in content if not isinstance(part, dict) or isinstance(part.get("text"), str)]
    return {**message, "content": texts}


def events_of(messages: Iterable[TraceMessage]) -> Iterator[Event]:
    """Yield the events of a conversation.

    Results belong to the calls before them, by their ids where both have them, else in their order.
    """
    pending: list[tuple[Any, Call | None]] = []
    for message in messages:
        if message.role == "tool" or message.is_observation:
            named = (place for place, (id_, _) in enumerate(pending) if id_ and id_ == message.call_id)
            if pending and (call := pending.pop(next(named, 0))[1]) is not None:
                yield Returned(call, message.text)
            continue
        speaker: Speaker = "system" if message.role == "developer" else message.role
        if message.text:
            yield Said(speaker, message.text)
        pending = [(call.id, call_of(call)) for call in message.calls or message.written_calls]
        yield from (Called(call) for _, call in pending if call is not None)


def tool_events(events: Iterable[Event]) -> list[Event]:
    """Return calls and results alone, which is what a proxy sees of a conversation."""
    return [event for event in events if not isinstance(event, Said)]
