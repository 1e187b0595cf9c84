"""Messages of the Model Context Protocol (JSON-RPC 2.0, one message a line), as the proxy reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from reason_spec.tools_ahead.calls import Call

Message: TypeAlias = dict[str, Any]
Identity: TypeAlias = str | int


def result_text(result: Mapping[str, Any]) -> str:
    """Return the structured content of a tool's result as JSON, else its texts."""
    structured = result.get("structuredContent")
    if structured is not None:
        # Servers wrap a result that is no object.
        value = structured["result"] if set(structured) == {"result"} else structured
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "\n".join(part.get("text", "") for part in result.get("content") or ())


def call_in(message: Message) -> Call | None:
    """Return the call of a request; None for one with more than a name and arguments, such as a task, or with
    arguments that are nested too deep to be compared."""
    params = params_of(message)
    arguments = params.get("arguments") or {}
    if set(params) - {"name", "arguments", "_meta"} or not isinstance(arguments, dict):
        return None
    try:
        return Call.of(str(params.get("name")), arguments)
    except RecursionError:
        return None


def identity_of(value: object) -> Identity | None:
    """Return the identity of a request; None if it is of another type than the protocol's."""
    return value if isinstance(value, (str, int)) else None


def params_of(message: Message) -> Message:
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def parsed(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def line_of(message: Message) -> bytes:
    # In ASCII: half a surrogate pair, which JSON may hold, has no bytes in UTF-8.
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
