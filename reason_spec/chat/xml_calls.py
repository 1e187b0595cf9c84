"""Calls of tools in the form of Qwen3-Coder, parsed while the model writes them.

::

    <tool_call>
    <function=move>
    <parameter=place>
    Paris
    </parameter>
    </function>
    </tool_call>

A value is written between two line breaks that are not part of it. Its type is that of the function's schema.
Texts are handed on piece by piece; other values when they are complete, as texts if they cannot be read. The
tag ``<tool_call>`` may be missing, because these models sometimes leave it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from reason_spec.chat.base import ToolCallDelta
from reason_spec.chat.call_forms import HARMONY, QWEN3_CODER, CallForm, CallParser
from reason_spec.chat.channel_calls import ChannelParser
from reason_spec.chat.tool_calls import ToolCallParser

_OPENER: Final = "<tool_call>"
_CLOSER: Final = "</tool_call>"
_FUNCTION: Final = "<function="
_FUNCTION_END: Final = "</function>"
_PARAMETER: Final = "<parameter="
_PARAMETER_END: Final = "</parameter>"

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each parameter of a function."""


def schemas_of(tools: Iterable[Mapping[str, Any]]) -> dict[str, Schemas]:
    """Return the parameters of each function, from tools in OpenAI's form."""
    found: dict[str, Schemas] = {}
    for tool in tools:
        function = tool["function"]
        properties = (function.get("parameters") or {}).get("properties")
        known = properties.items() if isinstance(properties, dict) else ()
        found[function["name"]] = {name: one for name, one in known if isinstance(one, dict)}
    return found


def parser_for(form: CallForm, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True) -> CallParser:
    """Return a parser for calls of these tools."""
    functions = schemas_of(tools)
    if form == HARMONY:
        return ChannelParser(functions, parallel=parallel)
    if form == QWEN3_CODER:
        return XmlCallParser(functions, parallel=parallel)
    return ToolCallParser(form, functions, parallel=parallel)


class XmlCallParser(CallParser):
    """Separates calls in tags from text; see `CallParser`.

    Args:
        functions: those that may be called, with the schemas of their parameters.
    """

    def __init__(self, functions: Mapping[str, Schemas], *, parallel: bool = True) -> None:
        super().__init__(parallel=parallel)
        self._functions = functions
        self._called_here = False
        self._schemas: Schemas = {}
        self._num_arguments = 0
        self._types: frozenset[str] = frozenset()

    def _end(self, *, is_cut: bool) -> None:
        if self._take == self._in_text:
            is_tag = self._called_here and _CLOSER.startswith(self._word)
            is_said = not is_tag if self._word else not self.num_calls
            self._say(self._spaces + self._word if is_said else "")

    def _in_text(self, character: str) -> None:
        if not self._word and character.isspace():
            self._spaces += character
            return
        self._word += character
        while self._word and not self._may_begin():
            self._say(self._spaces + self._word[0])
            self._called_here = False
            rest = self._word[1:]
            self._word = rest.lstrip()
            self._spaces = rest[: len(rest) - len(self._word)]

    def _may_begin(self) -> bool:
        """Return whether a call may begin with the word; begin it where it does."""
        word = self._word
        if self._called_here and _CLOSER.startswith(word):
            if word == _CLOSER:
                self._spaces = self._word = ""
                self._called_here = False
                self._leave_out()
            return True
        if word.startswith(_OPENER):
            word = word[len(_OPENER) :].lstrip()
        elif _OPENER.startswith(word):
            return True
        if not word.startswith(_FUNCTION):
            return _FUNCTION.startswith(word)
        name = word[len(_FUNCTION) :]
        if name[-1:] == ">" and name[:-1] in self._functions:
            self._begin_call(name[:-1])
            return True
        return any(known.startswith(name) for known in self._functions)

    def _begin_call(self, name: str) -> None:
        self._spaces = self._word = ""
        self._schemas, self._num_arguments = self._functions[name], 0
        self._begin(name, "{")
        self._take = self._in_call

    def _in_call(self, character: str) -> None:
        if not self._word and character.isspace():
            return
        self._word += character
        word = self._word
        if word == _FUNCTION_END:
            self._end_call("")
        elif word == _CLOSER:
            self._end_call("")
            self._called_here = False
        elif word.startswith(_PARAMETER):
            if character == ">":
                self._begin_value(word[len(_PARAMETER) : -1])
        elif not any(tag.startswith(word) for tag in (_FUNCTION_END, _CLOSER, _PARAMETER)):
            self._end_call(word)

    def _end_call(self, behind: str) -> None:
        self._leave_out(len(behind))
        self._write("}")
        self._word = ""
        self._called_here = True
        self._take = self._in_text
        self.done = not self._parallel
        for character in behind if not self.done else "":
            self._take(character)

    def _begin_value(self, name: str) -> None:
        types = _types_of(self._schemas.get(name, {}))
        self._write((", " if self._num_arguments else "") + json.dumps(name, ensure_ascii=False) + ": ")
        self._num_arguments += 1
        self._word = ""
        if types <= {"string"}:
            self._write('"')
            self._take = self._in_first_of_text
        else:
            self._types = types
            self._take = self._in_value

    def _in_first_of_text(self, character: str) -> None:
        self._take = self._in_text_value
        if character != "\n":
            self._in_text_value(character)

    def _in_text_value(self, character: str) -> None:
        """Emit a text, except for characters that may begin its end tag."""
        self._word += character
        if self._word.endswith(_PARAMETER_END):
            self._write(_escaped(self._word.removesuffix(_PARAMETER_END).removesuffix("\n")) + '"')
            self._end_value()
            return
        num_held = next(
            size
            for size in range(min(len(self._word), len(_PARAMETER_END) + 1), -1, -1)
            if ("\n" + _PARAMETER_END).startswith(self._word[len(self._word) - size :])
            or _PARAMETER_END.startswith(self._word[len(self._word) - size :])
        )
        certain = self._word[: len(self._word) - num_held]
        self._word = self._word[len(certain) :]
        self._write(_escaped(certain))

    def _in_value(self, character: str) -> None:
        self._word += character
        if character == ">" and self._word.endswith(_PARAMETER_END):
            self._write(_as_json(self._word.removesuffix(_PARAMETER_END), self._types))
            self._end_value()

    def _end_value(self) -> None:
        self._word = ""
        self._take = self._in_call

    def _say(self, text: str) -> None:
        self._spaces = ""
        super()._say(text)

    def _write(self, arguments: str) -> None:
        if arguments:
            self._emit(ToolCallDelta(self.num_calls - 1, arguments))


def _types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema names; empty where it names none."""
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for part in (*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())):
        types |= _types_of(part) if isinstance(part, dict) else set()
    types |= {_type_of(value) for value in schema.get("enum") or ()}
    if not types and ("$ref" in schema or "allOf" in schema):
        # A parameter with a reference or a union is seldom plain text.
        types = {"object"}
    return frozenset(one for one in types if isinstance(one, str))


def _as_json(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON: the parsed text if its type allows that, else the text as a string."""
    try:
        value = json.loads(_PYTHONS.get(text.strip(), text), parse_constant=_refuse)
        # 1e400 is read as infinity, which JSON has not.
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return _as_text(text)
    fits = _type_of(value) in types or (_type_of(value) == "integer" and "number" in types)
    if "string" in types and (isinstance(value, str) or not fits):
        return _as_text(text)
    return written


_PYTHONS: Final = {"True": "true", "False": "false", "None": "null"}


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
        case dict():
            return "object"
    return "string"


def _as_text(text: str) -> str:
    return json.dumps(text.removeprefix("\n").removesuffix("\n"), ensure_ascii=False)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")
