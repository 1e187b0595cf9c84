"""Chunks of a stream, common to chats and completions: head, end and failures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from reason_spec.chat.base import ChatEnd
from reason_spec.server.base import ApiError, StreamEvent
from reason_spec.server.protocol import Body
from reason_spec.server.replies import ReplyStyle, metrics_of, speculation_of, usage_of
from reason_spec.server.streaming import DONE, data_event


class Chunks(ABC):
    """The chunks of one streamed response.

    Args:
        num_prompts: prompts of the body, which have ``num_choices`` answers each.
    """

    kind: ClassVar[str]
    """The ``object`` of a chunk."""

    def __init__(self, style: ReplyStyle, body: Body, num_prompts: int = 1) -> None:
        self._style = style
        self._includes_usage = body.includes_usage
        self._choices_of_a_prompt = body.num_choices
        self._is_lone = num_prompts * body.num_choices == 1
        self._ends: dict[int, ChatEnd] = {}

    def event(self, index: int, event: StreamEvent) -> Iterable[bytes]:
        if isinstance(event, ChatEnd):
            self._ends[index] = event
            yield self._last(index, event)
        else:
            for choice in self._choices(index, event):
                yield self._chunk([choice])

    def end(self) -> Iterable[bytes]:
        if self._includes_usage:
            ends = [self._ends[index] for index in sorted(self._ends)]
            more: dict[str, Any] = {"usage": usage_of(ends, self._style, self._choices_of_a_prompt)}
            if self._style.with_report and self._is_lone:
                more |= self._report(ends[0])
            yield self._chunk([], more)
        yield DONE

    def failure(self, error: ApiError) -> Iterable[bytes]:
        yield data_event(error.body())

    @abstractmethod
    def _choices(self, index: int, event: StreamEvent) -> Iterable[dict[str, Any]]:
        """Return the choices that an event adds to answer ``index``, each for its own chunk."""

    @abstractmethod
    def _last_choice(self, index: int, end: ChatEnd) -> dict[str, Any]:
        """Return the choice with the finish reason."""

    def _last(self, index: int, end: ChatEnd) -> bytes:
        choice = {**self._last_choice(index, end), "stop_reason": end.stop}
        more: dict[str, Any] = {}
        if self._style.with_report:
            choice["reason_spec"] = speculation_of(end.report)
            if self._is_lone and not self._includes_usage:
                more = self._report(end)
        return self._chunk([choice], more)

    def _report(self, end: ChatEnd) -> dict[str, Any]:
        return {"reason_spec": speculation_of(end.report), "metrics": metrics_of(end.report, self._style)}

    def _chunk(self, choices: list[dict[str, Any]], more: Mapping[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": self._style.id,
            "object": self.kind,
            "created": self._style.created,
            "model": self._style.model,
            "choices": choices,
            "system_fingerprint": self._style.fingerprint,
        }
        if self._includes_usage:
            body["usage"] = None
        return data_event({**body, **(more or {})})
