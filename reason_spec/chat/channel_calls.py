"""Calls of tools in channels, as gpt-oss writes them (OpenAI's harmony format), parsed during writing.

::

    <|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary
    to=functions.look <|constrain|>json<|message|>{"place": "Oslo"}<|call|>

An answer is one or more messages: a header, then a text. A message to a function is a call. One in the
channel ``analysis`` is thinking, any other is content; two of a kind are separated by an empty line.
``<|call|>`` and ``<|return|>`` end the text of such a model.
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
_HEADS: Final = (_START, _CHANNEL, _MESSAGE, "to=")
"""A header begins with one of them."""
_GAP: Final = "\n\n"


class ChannelParser(CallParser):
    """Separates calls, thinking and content in messages; see `CallParser`.

    A text without a header is content. So are messages to a recipient that is no known function, with their
    header.

    Args:
        names: the functions that may be called.
    """

    def __init__(self, names: Iterable[str], *, parallel: bool = True) -> None:
        super().__init__(parallel=parallel)
        self._names = frozenset(names)
        self._take = self._in_header
        self._header = ""
        self._kind: Literal["content", "reasoning", "call"] = "content"
        self._is_blank = True
        """Whether the text of the message has been white space so far."""
        self._num_texts = {"content": 0, "reasoning": 1}
        """Messages by kind. A model of this form has thought before its answer."""

    def _end(self) -> None:
        if self._take == self._in_text:
            # What may be the beginning of a token is none.
            self._write(self._word)
            self._end_message()
        elif not self._header.lstrip().startswith(_HEADS):
            self._write(self._header)

    def _in_header(self, character: str) -> None:
        self._header += character
        begun = self._header.lstrip()
        if begun.endswith(_MESSAGE):
            self._begin_message(self._header)
        elif not any(head.startswith(begun) or begun.startswith(head) for head in _HEADS):
            text, self._header = self._header, ""
            self._kind, self._is_blank = "content", True
            self._take = self._in_text
            for one in text:
                self._in_text(one)

    def _begin_message(self, header: str) -> None:
        self._header, self._is_blank = "", True
        self._take = self._in_text
        found = _RECIPIENT.search(header)
        name = self._function_of(found[1]) if found else None
        if name is not None:
            self._kind = "call"
            self._begin(name, "")
        elif found is not None:
            self._kind = "content"
            self._write(header)
        else:
            self._kind = "reasoning" if f"{_CHANNEL}analysis" in header else "content"

    def _function_of(self, recipient: str) -> str | None:
        """Return the known function that a recipient names."""
        name = recipient.removeprefix(_FUNCTION)
        # The type of the arguments follows, where the token before it is not shown.
        known = (one for one in (name, name.removesuffix("json")) if one in self._names)
        return next(known, None) if name != recipient else None

    def _in_text(self, character: str) -> None:
        self._word += character
        while self._word and not any(tag.startswith(self._word) for tag in _ENDS):
            self._write(self._word[0])
            self._word = self._word[1:]
        if self._word in _ENDS:
            self._end_message()
            self._header = self._word if self._word in (_START, _CHANNEL) else ""
            self._word = ""
            self._take = self._in_header

    def _end_message(self) -> None:
        if self._kind != "call":
            return
        if self._is_blank:
            self._emit(ToolCallDelta(self.num_calls - 1, "{}"))
        self.done = not self._parallel

    def _write(self, text: str) -> None:
        if self._is_blank:
            text = text.lstrip()
            if not text:
                return
            self._is_blank = False
            if self._kind != "call":
                text = _GAP + text if self._num_texts[self._kind] else text
                self._num_texts[self._kind] += 1
        if self._kind == "call":
            self._emit(ToolCallDelta(self.num_calls - 1, text))
        else:
            self._emit(text if self._kind == "content" else TextDelta("reasoning", text))
