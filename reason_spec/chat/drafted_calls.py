"""Calls of tools that the draft, or the suffix cache, has written before the target."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from reason_spec.chat.base import CallListener, ToolCallDelta
from reason_spec.chat.preparing import OfferedTools
from reason_spec.chat.xml_calls import parser_for
from reason_spec.events import Event

logger = logging.getLogger(__name__)


class WholeCall(NamedTuple):
    """A call with its arguments."""

    name: str
    arguments: dict[str, Any]


class DraftedCalls:
    """Listens to the events of one answer, and passes each whole call in a drafted step on once.

    A call that is cut between two steps is not found.
    """

    def __init__(self, tools: OfferedTools, listener: CallListener) -> None:
        self._tools = tools
        self._listener = listener
        self._passed_on: list[WholeCall] = []

    def __call__(self, event: Event) -> None:
        if event.kind != "written" or event.lane not in ("draft", "cache"):
            return
        for call in calls_in(event.text, self._tools):
            if call in self._passed_on:
                continue
            self._passed_on.append(call)
            try:
                self._listener(*call)
            except Exception:
                # The answer continues without its listener.
                logger.exception("a drafted call of %s was not taken", call.name)


def calls_in(text: str, tools: OfferedTools) -> Iterator[WholeCall]:
    """Yield the whole calls in a text."""
    parser = parser_for(tools.form, tools.tools, parallel=True)
    written: dict[int, list[ToolCallDelta]] = {}
    for found in (*parser.feed(text), *parser.close(is_cut=True)):
        if isinstance(found, ToolCallDelta):
            written.setdefault(found.index, []).append(found)
    for first, *rest in written.values():
        try:
            arguments = json.loads("".join(piece.arguments for piece in (first, *rest)))
        except (ValueError, RecursionError):
            # It is cut off, or nests too deep.
            continue
        if first.name is not None and isinstance(arguments, dict):
            yield WholeCall(first.name, arguments)
