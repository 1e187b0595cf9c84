"""Tool calls in JSON, parsed during writing: all forms but those of Qwen3-Coder and gpt-oss."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from reason_spec.chat.base import ToolCallDelta
from reason_spec.chat.call_forms import CallForm, CallParser

_BEGUN: Final = re.compile(
    r'\{\s*(?:"(?:type|id)"\s*:\s*"[^"\\]*"\s*,\s*)*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*'
)
_JSON_CHARACTERS: Final = frozenset('{}[]:,"+-. \t\r\n0123456789truefalsenullNaNInfinityE')
_ARGUMENTS_TAG: Final = "[ARGS]"


class ToolCallParser(CallParser):
    """Separates calls in JSON from text; see `CallParser`.

    Args:
        names: the functions that may be called.
    """

    def __init__(self, form: CallForm, names: Iterable[str], *, parallel: bool = True) -> None:
        super().__init__(parallel=parallel)
        self._form = form
        self._names = frozenset(names)
        self._at_start = True
        # Becomes text again if no call comes of it.
        self._raw: list[str] = []
        self._called_here = False
        self._in_list = False
        self._object: list[str] = []
        self._depth = 0
        self._arguments_depth = 0
        self._in_string = False
        self._escaped = False
        self._call_open = False
        self._arguments_open = False

    def _end(self, *, is_cut: bool) -> None:
        if self._take == self._in_text:
            self._say(self._spaces + self._word if self._word or not self.num_calls else "")
        elif not self._call_open:
            is_tag = any(tag.startswith(self._word) for tag in self._form.tags)
            if not (self._called_here and is_tag and self._take == self._in_region):
                self._give_back()

    def _in_text(self, character: str) -> None:
        if character.isspace():
            if self._word:
                self._say(self._spaces + self._word)
                self._spaces = self._word = ""
            self._spaces += character
            return
        if self._at_start and self._begins_bare(character):
            self._enter_region("")
            self._in_region(character)
            return
        self._at_start = False
        self._word += character
        if self._word == self._form.opener:
            self._enter_region(self._word)
        elif not self._form.opener.startswith(self._word):
            self._say(self._spaces)
            self._spaces = ""
            rest = next(rest for rest in _ends(self._word) if self._form.opener.startswith(rest))
            self._say(self._word[: len(self._word) - len(rest)])
            self._word = rest

    def _begins_bare(self, character: str) -> bool:
        if not self._form.bare:
            return False
        return character in "{[" or (self._form.named and any(name[0] == character for name in self._names))

    def _enter_region(self, raw: str) -> None:
        self._at_start = False
        self._raw, self._word = [raw], ""
        self._called_here = self._in_list = False
        self._take = self._in_region

    def _give_back(self) -> None:
        """Emit the held characters as text."""
        self._say(self._spaces + "".join(self._raw))
        self._leave_region()

    def _leave_region(self) -> None:
        self._forget()
        self._take = self._in_text

    def _forget(self) -> None:
        self._spaces = self._word = ""
        self._raw, self._object = [], []

    def _in_region(self, character: str) -> None:
        self._raw.append(character)
        if not self._word:
            if character.isspace() or character in ",;":
                return
            if character == "{":
                self._begin_object(character)
                return
            if character == "]" and self._in_list:
                self._in_list = False
                return
            if character in "}]" and self._called_here:
                # One too many.
                return
        self._word += character
        if self._word == self._form.opener:
            self._word = ""
        elif self._word == self._form.closer:
            if self._called_here:
                self._leave_region()
                self._leave_out()
            else:
                self._give_back()
        elif not any(tag.startswith(self._word) for tag in self._form.tags):
            self._read_word(character)

    def _read_word(self, character: str) -> None:
        if self._word[0] == "[" and not self._in_list:
            rest, self._word = self._word[1:], ""
            self._in_list = True
            del self._raw[len(self._raw) - len(rest) :]
            for one in rest:
                self._take(one)
            return
        named = [name + tail for name in self._names for tail in ("", _ARGUMENTS_TAG)]
        if self._form.named and character == "{" and self._word[:-1] in named:
            name = self._word[:-1].removesuffix(_ARGUMENTS_TAG)
            self._word = ""
            self._begin_object("")
            # The arguments are the whole object.
            self._begin_call(name)
            self._in_object(character, is_new=False)
        elif not (self._form.named and any(one.startswith(self._word) for one in named)):
            self._give_back()

    def _begin_object(self, opening: str) -> None:
        self._object, self._depth = list(opening), len(opening)
        self._in_string = self._escaped = False
        self._take = self._in_object

    def _in_object(self, character: str, *, is_new: bool = True) -> None:
        if not self._in_string and character not in _JSON_CHARACTERS:
            self._break_off(character)
            return
        if is_new and not self._call_open:
            self._raw.append(character)
        if character == "{" and self._depth == 1 and not (self._call_open or self._in_string):
            self._try_to_begin("".join(self._object))
        if not self._call_open:
            self._object.append(character)
        self._follow(character)
        if self._arguments_open:
            self._emit(ToolCallDelta(self.num_calls - 1, character))
            self._arguments_open = self._depth > self._arguments_depth
        if self._depth == 0:
            self._end_object()

    def _follow(self, character: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _try_to_begin(self, before: str) -> None:
        match = _BEGUN.fullmatch(before)
        if match is None:
            return
        name = _loaded(match[1])
        if name in self._names:
            self._begin_call(name)

    def _begin_call(self, name: str) -> None:
        self._call_open = self._arguments_open = True
        self._arguments_depth = self._depth
        self._begin(name, "")

    def _end_object(self) -> None:
        if self._call_open:
            self._end_call()
            return
        value = _loaded("".join(self._object))
        name = _name_in(value)
        arguments = _arguments_in(value)
        if name not in self._names or arguments is None:
            self._give_back()
            return
        self._begin(name, arguments)
        self._end_call()

    def _end_call(self, num_behind: int = 0) -> None:
        """End a call; the last ``num_behind`` characters that were read are no part of it."""
        self._leave_out(num_behind)
        self._call_open = self._arguments_open = False
        self._called_here = True
        self._forget()
        self._take = self._in_region
        self.done = not self._parallel

    def _break_off(self, character: str) -> None:
        """Leave an object at text that is not JSON."""
        if self._call_open:
            self._end_call(num_behind=1)
            if not self.done:
                self._in_region(character)
        else:
            self._give_back()
            self._in_text(character)


def _ends(word: str) -> Iterable[str]:
    """Yield all true ends of a word, the longest first; the last is empty."""
    return (word[start:] for start in range(1, len(word) + 1))


def _loaded(text: str) -> Any:
    """Return the value of a JSON text; None where it is not JSON."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _name_in(value: Any) -> str | None:
    call = _inner(value)
    name = call.get("name")
    return name if isinstance(name, str) else None


def _arguments_in(value: Any) -> str | None:
    """Return the arguments of a call as JSON text; None where they are no object."""
    call = _inner(value)
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        return arguments if isinstance(_loaded(arguments), dict) else None
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    # A function without parameters.
    return "{}" if arguments is None else None


def _inner(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    return value if isinstance(value, dict) else {}
