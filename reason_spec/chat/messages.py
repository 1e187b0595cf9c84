"""Conversations as clients send them, turned into messages that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from reason_spec.engines.chat_template import Message
from reason_spec.errors import RequestError

_ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}


def normalised(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return messages of OpenAI's form as chat templates take them.

    Text parts are joined by line breaks, arguments of calls become objects where they are JSON, and
    reasoning in either spelling becomes ``reasoning_content``. A content that is null is empty.

    Raises:
        RequestError: there is none, or one has another form; ``param`` names the place.
    """
    if not messages:
        raise RequestError("there are no messages: the last one is what is answered", param="messages")
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))


def one_call_a_turn(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages where a turn with several calls is one turn for each call, followed by its results.

    Text and thinking stay in the first. A result without the id of one call goes to the first call without a
    result, else to the last call.
    """
    rest = iter(messages)
    message = next(rest, None)
    while message is not None:
        following = next(rest, None)
        if len(calls := message.get("tool_calls", ())) < 2:
            yield message
        else:
            results: list[Message] = []
            while following is not None and following["role"] == "tool":
                results.append(following)
                following = next(rest, None)
            for place, (call, own) in enumerate(zip(calls, _results_of(calls, results), strict=True)):
                turn = Message(role="assistant", content="") if place else message.copy()
                turn["tool_calls"] = [call]
                yield turn
                yield from own
        message = following


def _results_of(calls: Sequence[Mapping[str, Any]], results: Sequence[Message]) -> list[list[Message]]:
    """Return the results of each call."""
    ids = [call.get("id") for call in calls]
    asked = [result.get("tool_call_id") for result in results]
    known = [ids.index(id_) if id_ is not None and ids.count(id_) == 1 else None for id_ in asked]
    free = iter([place for place in range(len(calls)) if place not in known])
    found: list[list[Message]] = [[] for _ in calls]
    for result, place in zip(results, known, strict=True):
        found[next(free, len(calls) - 1) if place is None else place].append(result)
    return found


def check_text(text: str, place: str) -> str:
    """Return text that can be encoded.

    Raises:
        RequestError: it holds half of a surrogate pair, which is no character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{place} holds {text[error.start]!r}, which is no character", param=place
        ) from None
    return text


def _message(place: str, message: Mapping[str, Any]) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{place} is not an object", param=place)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(
            f"{place}.role is {role!r}: it is one of {', '.join(_ROLES)}", param=f"{place}.role"
        )
    made = Message(role=_ROLES[role], content=_content(f"{place}.content", message.get("content")))
    names: tuple[Literal["name", "tool_call_id"], ...] = ("name", "tool_call_id")
    for name in names:
        if message.get(name) is not None:
            made[name] = _text(f"{place}.{name}", message[name])
    if role == "assistant":
        if reasoning := _reasoning(place, message):
            made["reasoning_content"] = reasoning
        if calls := list(_calls(place, message)):
            made["tool_calls"] = calls
            if reasoning and not made["content"]:
                # gpt-oss's template reads it under this name, and refuses it beside a content.
                made["thinking"] = reasoning
    return made


def _content(place: str, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return check_text(content, place)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RequestError(f"{place} is neither text nor a list of text parts", param=place)
    return "\n".join(_part(place, index, part) for index, part in enumerate(content))


def _part(place: str, index: int, part: object) -> str:
    if isinstance(part, str):
        return check_text(part, place)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise RequestError(
            f"{place}[{index}] is of type {kind!r}: the model reads text parts only", param=place
        )
    return _text(place, part.get(_TEXT_PARTS[kind]))


def _text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{place} is {type(value).__name__}, not text", param=place)
    return check_text(value, place)


def _reasoning(place: str, message: Mapping[str, Any]) -> str:
    for name in ("reasoning", "reasoning_content"):
        # Some clients send an object of their own under these names.
        if isinstance(value := message.get(name), str) and value:
            return check_text(value, f"{place}.{name}")
    return ""


def _calls(place: str, message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    listed = message.get("tool_calls") or ()
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise RequestError(f"{place}.tool_calls is not a list", param=f"{place}.tool_calls")
    if message.get("function_call"):
        listed = [*listed, {"function": message["function_call"]}]
    for index, call in enumerate(listed):
        yield _call(f"{place}.tool_calls[{index}]", call)


def _call(place: str, call: object) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise RequestError(f"{place} has no function", param=place)
    name = _text(f"{place}.function.name", function.get("name"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        named = f"{place}.function.arguments"
        arguments = _parsed(check_text(arguments, named), named)
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments or {}}}
    if isinstance(call.get("id"), str):
        made["id"] = check_text(call["id"], f"{place}.id")
    return made


def _parsed(arguments: str, place: str) -> dict[str, Any] | str:
    """Return the object of a JSON text, or what is none as it is.

    Templates write arguments as JSON themselves: of a text they would make a quoted one.

    Raises:
        RequestError: an escape in it is no character, or it is nested too deep to be written again.
    """
    try:
        value = json.loads(arguments)
        written = json.dumps(value, ensure_ascii=False, indent=2)
    except ValueError:
        return arguments
    except RecursionError:
        raise RequestError(f"{place} is nested too deep", param=place) from None
    check_text(written, place)
    return value if isinstance(value, dict) else arguments
