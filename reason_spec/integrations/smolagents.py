"""smolagents in process: a `Model` for CodeAgent and ToolCallingAgent."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatRequest, TextDelta, ToolCallDelta
from reason_spec.integrations.base import InProcess, chat_request, check_options, missing

try:
    from smolagents.models import (
        ChatMessage,
        ChatMessageStreamDelta,
        ChatMessageToolCall,
        ChatMessageToolCallFunction,
        ChatMessageToolCallStreamDelta,
        MessageRole,
        Model,
        TokenUsage,
    )
    from smolagents.tools import Tool
except ModuleNotFoundError as error:
    raise missing(error, "smolagents", "smolagents") from error


class ReasonSpecModel(Model):
    """A model for the agents of smolagents.

    A message's ``raw`` is the ChatAnswer, with the thinking and the report about speculation. In a stream
    smolagents has no place for these: see ``on_end`` of InProcess.

    ::

        with InProcess() as models:
            agent = CodeAgent(tools=[], model=ReasonSpecModel(models, strategy="lookahead"))
    """

    def __init__(
        self, models: InProcess | None = None, *, tool_choice: str | None = "required", **options: Any
    ) -> None:
        """Args:
        models: shared with other wrappers; None: those of the default settings.
        tool_choice: of calls with tools; the agents of smolagents expect ``required``.
        options: of every call, by the names in `integrations.base.OPTIONS`; those of a call go first.

        Raises:
            RequestError: an option has an unknown name.
        """
        check_options(options)
        self.models = models or InProcess()
        super().__init__(flatten_messages_as_text=False, model_id=self.models.model_name)
        self.tool_choice = tool_choice
        self.options = options

    @property
    def supports_stop_parameter(self) -> bool:
        """Whether stops work: the engine handles them for every model."""
        return True

    def generate(
        self,
        messages: Sequence[ChatMessage | dict[str, Any]],
        stop_sequences: list[str] | None = None,
        response_format: Mapping[str, Any] | None = None,
        tools_to_call_from: list[Tool] | None = None,
        **kwargs: Any,
    ) -> ChatMessage:
        """Return the next message."""
        request = self._request(messages, stop_sequences, response_format, tools_to_call_from, kwargs)
        return _message(self.models.chat(request))

    def generate_stream(
        self,
        messages: Sequence[ChatMessage | dict[str, Any]],
        stop_sequences: list[str] | None = None,
        response_format: Mapping[str, Any] | None = None,
        tools_to_call_from: list[Tool] | None = None,
        **kwargs: Any,
    ) -> Generator[ChatMessageStreamDelta]:
        """Yield the next message in pieces, without the thinking."""
        request = self._request(messages, stop_sequences, response_format, tools_to_call_from, kwargs)
        with closing(self.models.stream(request)) as events:
            for event in events:
                match event:
                    case TextDelta("content", text) if text:
                        yield ChatMessageStreamDelta(content=text)
                    case ToolCallDelta():
                        yield ChatMessageStreamDelta(tool_calls=[_call_delta(event)])
                    case ChatEnd():
                        yield ChatMessageStreamDelta(content="", token_usage=_usage(event))

    def _request(
        self,
        messages: Sequence[ChatMessage | dict[str, Any]],
        stops: list[str] | None,
        response_format: Mapping[str, Any] | None,
        tools: list[Tool] | None,
        options: Mapping[str, Any],
    ) -> ChatRequest:
        # It joins turns of one role and maps the roles of tools to user and assistant.
        prepared = self._prepare_completion_kwargs(
            messages=list(messages), stop_sequences=stops, tools_to_call_from=tools, tool_choice=None
        )
        given = {"tool_choice": self.tool_choice, **self.options, **options}
        if not tools:
            given["tool_choice"] = None
        given |= {"tools": prepared.get("tools"), "response_format": response_format}
        given["stop"] = prepared.get("stop") or given.get("stop")
        turns = [{**message, "role": str(message["role"].value)} for message in prepared["messages"]]
        return chat_request(turns, given)


def _message(answer: ChatAnswer) -> ChatMessage:
    calls = [
        ChatMessageToolCall(ChatMessageToolCallFunction(call.arguments, call.name), call.id, "function")
        for call in answer.tool_calls
    ]
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        content=answer.content,
        tool_calls=calls or None,
        raw=answer,
        token_usage=_usage(answer.end),
    )


def _call_delta(delta: ToolCallDelta) -> ChatMessageToolCallStreamDelta:
    function = ChatMessageToolCallFunction(arguments=delta.arguments, name=delta.name or "")
    return ChatMessageToolCallStreamDelta(delta.index, delta.id, "function", function)


def _usage(end: ChatEnd) -> TokenUsage:
    return TokenUsage(input_tokens=end.num_prompt_tokens, output_tokens=end.num_tokens)
