"""Calls of tools in channels, as gpt-oss writes them (OpenAI's harmony format), parsed during writing.

::

    <|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary
    to=functions.look <|constrain|>json<|message|>{"place": "Oslo"}<|call|>

An answer is one or more messages: a header, then a text. A message to a function is a call. One in the
channel ``analysis`` is thinking, any other is content; two of a kind are separated by an empty line.
``<|call|>`` and ``<|return|>`` end the text of such a model.

What begins like a header is content if it is longer than 200 characters, meets the end of a message before
``<|message|>``, or has a line break before other text than ``<|message|>``. At the end of the text an
unfinished header is left out if it begins with ``<|start|>assistant``, or if the text was cut; else it is
content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from reason_spec.chat.base import TextDelta, ToolCallDelta
from reason_spec.chat.call_forms import CallParser
from reason_spec.engines.tokenizer import CHANNEL_TOKENS

_START, _CHANNEL, _MESSAGE, _END = CHANNEL_TOKENS
_ENDS: Final = (_END, _START, _CHANNEL, "<|call|>", "<|return|>")
"""Tokens that end the text of a message; the last two and what follows them are mostly not shown."""
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_FUNCTION: Final = "functions."
_HEADS: Final = (_START, _CHANNEL, _MESSAGE)
"""A header begins with one of them."""
_NEXT: Final = f"{_START}assistant"
"""A message after the first one begins with it."""
_TO: Final = "to="
_ADDRESSED: Final = re.compile(rf"{_TO}[^\s<]*\s*(?:<.*)?", re.DOTALL)
"""A header, or the beginning of one, after ``<|start|>assistant``, which comes before an answer."""
_LONGEST_HEADER: Final = 200
_GAP: Final = "\n\n"


class ChannelParser(CallParser):
    """Separates calls, thinking and content in messages; see `CallParser`.

    A text without a header is content. So are messages to a recipient that is no known function, with their
    header. The empty line between two messages of content is a ``TextDelta``, because it is no text of the
    model.

    Args:
        names: the functions that may be called.
    """

    def __init__(self, names: Iterable[str], *, parallel: bool = True) -> None:
        super().__init__(parallel=parallel)
        self._names = frozenset(names)
        self._take = self._in_header
        self._header = ""
        self._is_first = True
        """Whether the header is that of the first message, whose ``<|start|>assistant`` is not shown."""
        self._kind: Literal["content", "reasoning", "call"] = "content"
        self._is_blank = True
        """Whether the text of the message has been white space so far."""
        self._called = ""
        """The function of a call whose arguments have not begun."""
        self._with_text: set[str] = set()
        """The kinds of the messages so far that hold text."""
        self.follows_thinking = False
        """Whether there is text of a thinking before the answer."""

    def _end(self, *, is_cut: bool) -> None:
        if self._take == self._in_header:
            begun = self._header.lstrip()
            is_header = begun.startswith(_HEADS) or (self._is_first and begun.startswith(_TO))
            if begun.startswith(_NEXT) or (is_cut and is_header):
                return
            self._give_up()
        # An unfinished tag is text.
        self._write(self._word)
        self._end_message(is_cut=is_cut)

    def _in_header(self, character: str) -> None:
        self._header += character
        begun = self._header.lstrip()
        if begun.endswith(_MESSAGE):
            self._begin_message(self._header)
            return
        end = next((tag for tag in _ENDS if begun.endswith(tag)), None)
        is_part = end is None or begun == _START or (end == _CHANNEL and begun.count(_CHANNEL) == 1)
        if end is not None and not is_part:
            header = self._header.removesuffix(end)
            self._begin_text("content")
            self._write(header)
            self._end_text(end)
        elif not self._may_be_header(begun):
            self._give_up()

    def _may_be_header(self, begun: str) -> bool:
        if len(begun) > _LONGEST_HEADER:
            return False
        _, line_break, rest = begun.partition("\n")
        if line_break and not _MESSAGE.startswith(rest.lstrip()):
            return False
        if any(head.startswith(begun) or begun.startswith(head) for head in _HEADS):
            return True
        return self._is_first and (_TO.startswith(begun) or _ADDRESSED.fullmatch(begun) is not None)

    def _give_up(self) -> None:
        """Take what was held as a header as content."""
        header = self._header
        self._begin_text("content")
        # A tag may begin after the last complete one.
        tags, bracket, rest = header.rpartition("|>")
        self._write(tags + bracket)
        for one in rest:
            self._in_text(one)

    def _begin_text(self, kind: Literal["content", "reasoning", "call"]) -> None:
        self._header, self._is_blank, self._is_first = "", True, False
        self._kind = kind
        self._take = self._in_text

    def _begin_message(self, header: str) -> None:
        found = _RECIPIENT.search(header)
        name = self._function_of(found[1]) if found else None
        if found is not None and name is None:
            self._begin_text("content")
            self._write(header)
            return
        self._place += len(header)
        if name is not None:
            self._begin_text("call")
            self._called = name
        else:
            self._begin_text("reasoning" if f"{_CHANNEL}analysis" in header else "content")

    def _function_of(self, recipient: str) -> str | None:
        """Return the known function that a recipient names."""
        name = recipient.removeprefix(_FUNCTION)
        return name if name != recipient and name in self._names else None

    def _in_text(self, character: str) -> None:
        self._word += character
        while self._word and not any(tag.startswith(self._word) for tag in _ENDS):
            self._write(self._word[0])
            self._word = self._word[1:]
        if self._word in _ENDS:
            self._end_text(self._word)

    def _end_text(self, tag: str) -> None:
        self._end_message()
        self._header = tag if tag in (_START, _CHANNEL) else ""
        self._place += len(tag) - len(self._header)
        self._word = ""
        self._take = self._in_header

    def _end_message(self, *, is_cut: bool = False) -> None:
        if self._kind != "call":
            return
        if self._is_blank and is_cut:
            # More than the header was to come.
            return
        if self._is_blank:
            self._begin(self._called, "{}")
        self.done = not self._parallel

    def _write(self, text: str) -> None:
        """Hand on the next text of the message, without white space at its beginning."""
        self._place += len(text)
        if self._is_blank:
            text = text.lstrip()
        if not text:
            return
        is_first, self._is_blank = self._is_blank, False
        if self._kind == "call":
            if is_first:
                self._begin(self._called, text)
            else:
                self._emit(ToolCallDelta(self.num_calls - 1, text))
            return
        is_later = self._kind in self._with_text or (self._kind == "reasoning" and self.follows_thinking)
        if is_first and is_later:
            self._emit(TextDelta(self._kind, _GAP))
        self._with_text.add(self._kind)
        if self._kind == "content":
            self.content_places += range(self._place - len(text), self._place)
            self._emit(text)
        else:
            self._emit(TextDelta("reasoning", text))
