"""The syntaxes in which models write tool calls, and the base of their parsers.

- ``hermes``: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` for each call (Hermes, Qwen);
- ``mistral``: ``[TOOL_CALLS]`` and a list of such objects, or ``name{...}``. The tag is a special token that
  the text does not show, so both may also begin the answer;
- ``llama``: the object alone, with ``parameters``, at the beginning of the answer or after
  ``<|python_tag|>``;
- ``qwen3_coder``: ``<function=...>`` with tags for its parameters;
- ``harmony``: a message to ``functions.NAME`` in a channel (gpt-oss).
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from reason_spec.chat.base import TextDelta, ToolCallDelta
from reason_spec.engines.tokenizer import CHANNEL_TOKENS

FormName: TypeAlias = Literal["hermes", "mistral", "llama", "qwen3_coder", "harmony"]
Found: TypeAlias = str | TextDelta | ToolCallDelta
"""Text of the answer, or a piece of a call. A ``TextDelta`` is of a thinking within the answer, or an empty
line between two messages."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form of one family of models.

    ``bare`` calls may begin the answer without ``opener``; ``named`` ones are a name followed by its
    arguments. ``closer`` ends the calls after an ``opener``; empty: nothing does.
    """

    name: FormName
    opener: str
    closer: str = ""
    bare: bool = False
    named: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for tag in (self.opener, self.closer) if tag)


HERMES: Final = CallForm("hermes", "<tool_call>", "</tool_call>")
MISTRAL: Final = CallForm("mistral", "[TOOL_CALLS]", bare=True, named=True)
QWEN3_CODER: Final = CallForm("qwen3_coder", "<tool_call>", "</tool_call>")
LLAMA: Final = CallForm("llama", "<|python_tag|>", bare=True)
HARMONY: Final = CallForm("harmony", CHANNEL_TOKENS[1])


def form_of(template: str | None) -> CallForm:
    """Return the form in which a model with this chat template writes calls."""
    if template is None:
        return HERMES
    if HARMONY.opener in template and "functions." in template:
        return HARMONY
    if "<function=" in template and "<parameter=" in template:
        return QWEN3_CODER
    # Templates that convert between forms mention Hermes' tag too: their own form is another.
    for form in (MISTRAL, LLAMA):
        if form.opener in template and HERMES.opener not in template:
            return form
    if '"parameters": ' in template and "ipython" in template and HERMES.opener not in template:
        return LLAMA
    return HERMES


class CallParser(ABC):
    """Separates calls from text.

    It reads character by character, so the result does not depend on how the text was cut into pieces. A call
    is handed on as soon as its name is known and its arguments begin; from then on it stays a call. Anything
    else is text. Only white space around calls is lost, and arguments are passed on as they are written.

    Args:
        parallel: False keeps only the first call; ``done`` is set when it is complete.
    """

    def __init__(self, *, parallel: bool) -> None:
        self._parallel = parallel
        self._take: Callable[[str], None] = self._in_text
        self._found: list[Found] = []
        self._spaces = ""
        """White space that belongs to the text, unless a call follows."""
        self._word = ""
        """Text that may be the beginning of a tag."""
        self._place = 0
        """The place in the text of what is read next, with what is held back."""
        self.num_read = 0
        """Characters of the text that were fed."""
        self.content_places: list[int] = []
        """The place in the text of each character of the content."""
        self.num_calls = 0
        self.done = False

    def feed(self, text: str, num_before: int = 0) -> list[Found]:
        """Take more text; return the text outside of calls and the pieces of calls that are certain.

        Args:
            num_before: characters of the text before it that are not shown: white space at the beginning.
        """
        self.num_read += num_before
        self._place += num_before
        for character in text:
            if self.done:
                break
            self.num_read += 1
            self._take(character)
        return self._hand_over()

    def close(self, *, is_cut: bool = False) -> list[Found]:
        """Return the rest at the end of the text; an incomplete call stays incomplete.

        Args:
            is_cut: the model had not ended the text.
        """
        if not self.done:
            self._end(is_cut=is_cut)
        return self._hand_over()

    @abstractmethod
    def _in_text(self, character: str) -> None:
        """Read a character outside of calls."""

    @abstractmethod
    def _end(self, *, is_cut: bool) -> None:
        """Emit the rest at the end of the text; see `close`."""

    def _begin(self, name: str, arguments: str) -> None:
        self._emit(ToolCallDelta(self.num_calls, arguments, new_call_id(), name))
        self.num_calls += 1

    def _say(self, text: str) -> None:
        """Emit the next text that is content."""
        self.content_places += range(self._place, self._place + len(text))
        self._place += len(text)
        self._emit(text)

    def _leave_out(self, num_kept: int = 0) -> None:
        """Leave out what was read since the last content, except for the last ``num_kept`` characters."""
        self._place = self.num_read - num_kept

    def _emit(self, found: Found) -> None:
        last = self._found[-1] if self._found else None
        if isinstance(found, str):
            if isinstance(last, str):
                self._found[-1] = last + found
            elif found:
                self._found.append(found)
        elif isinstance(found, TextDelta) and isinstance(last, TextDelta) and last.channel == found.channel:
            self._found[-1] = replace(last, text=last.text + found.text)
        elif (
            isinstance(found, ToolCallDelta)
            and isinstance(last, ToolCallDelta)
            and last.index == found.index
            and found.id is None
        ):
            self._found[-1] = replace(last, arguments=last.arguments + found.arguments)
        else:
            self._found.append(found)

    def _hand_over(self) -> list[Found]:
        found, self._found = self._found, []
        return found


def new_call_id() -> str:
    """Return an id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"
