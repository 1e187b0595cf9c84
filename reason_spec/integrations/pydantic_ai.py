"""Pydantic AI in process: a `Model`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatEvent, ChatRequest, TextDelta, ToolCallDelta
from reason_spec.errors import RequestError
from reason_spec.integrations.base import (
    InProcess,
    assistant_turn,
    call_body,
    chat_request,
    check_options,
    missing,
    schema_format,
    tool_body,
)

try:
    from pydantic_ai.messages import (
        FinishReason,
        ModelMessage,
        ModelRequest,
        ModelResponse,
        ModelResponsePart,
        ModelResponseStreamEvent,
        RetryPromptPart,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserContent,
        UserPromptPart,
    )
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.profiles import ModelProfile
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext, ToolDefinition
    from pydantic_ai.usage import RequestUsage
except ModuleNotFoundError as error:
    raise missing(error, "pydantic-ai-slim", "pydantic-ai") from error

_PLACED = frozenset({"tool_choice", "stop_sequences", "extra_body"})
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "tool_call"}
_PROVIDER = "reason-spec"


class ReasonSpecModel(Model):
    """A model for the agents of Pydantic AI.

    Thinking is a ThinkingPart, which the model reads again in later turns. The report about speculation is
    ``provider_details["reason_spec"]`` of a ModelResponse.

    ::

        with InProcess() as models:
            agent = Agent(ReasonSpecModel(models, strategy="lookahead"))

    A call takes options in ``extra_body`` of its ModelSettings, as ``{"strategy": "autoregressive"}``.
    Unknown settings are refused.
    """

    def __init__(
        self,
        models: InProcess | None = None,
        *,
        settings: ModelSettings | None = None,
        profile: ModelProfile | None = None,
        **options: Any,
    ) -> None:
        """Args:
        models: shared with other wrappers; None: those of the default settings.
        settings: Pydantic AI's, for every call.
        profile: overrides single abilities of the model.
        options: of every call, by the names in `integrations.base.OPTIONS`; those of a call go first.

        Raises:
            RequestError: an option has an unknown name.
        """
        check_options(options)
        known: ModelProfile = {
            "supports_tools": True,
            "supports_json_schema_output": True,
            "supports_json_object_output": True,
            "supports_inline_system_prompts": True,
            "supports_thinking": True,
            **(profile or {}),
        }
        super().__init__(settings=settings, profile=known)
        self.models = models or InProcess()
        self.options = options

    @property
    def model_name(self) -> str:
        """The target's name."""
        return self.models.model_name

    @property
    def system(self) -> str:
        """The provider's name in telemetry."""
        return _PROVIDER

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the next message."""
        model_settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        answer = await self.models.achat(self._request(messages, model_settings, parameters))
        return ModelResponse(
            parts=list(_parts(answer)),
            usage=_usage(answer.end),
            model_name=self.model_name,
            provider_name=_PROVIDER,
            provider_details={"reason_spec": asdict(answer.end.report)},
            finish_reason=_FINISH[answer.end.finish],
        )

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Yield the next message in pieces; leaving the context abandons it."""
        model_settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        request = self._request(messages, model_settings, parameters)
        async with aclosing(self.models.astream(request)) as events:
            yield ReasonSpecStream(parameters, events, self.model_name)

    def _request(
        self,
        messages: Sequence[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ChatRequest:
        given: dict[str, Any] = {**(settings or {})}
        own = {name: value for name, value in given.items() if name not in _PLACED}
        options = {**self.options, **own, **(given.get("extra_body") or {})}
        if given.get("stop_sequences"):
            options["stop"] = given["stop_sequences"]
        if parameters.thinking is not None:
            arguments = {"enable_thinking": parameters.thinking is not False}
            options["chat_arguments"] = {**arguments, **options.get("chat_arguments", {})}
        if isinstance(parameters.thinking, str):
            options.setdefault("reasoning_effort", parameters.thinking)
        tools, choice = _tools(given.get("tool_choice"), parameters)
        options |= {"tools": [_tool(tool) for tool in tools], "tool_choice": choice if tools else None}
        if parameters.output_mode == "native" and parameters.output_object is not None:
            options["response_format"] = schema_format(parameters.output_object.json_schema)
        return chat_request(self._conversation(messages, parameters), options)

    def _conversation(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> list[dict[str, Any]]:
        turns = [turn for message in messages for turn in openai_turns(message)]
        instructions = self._get_instruction_parts(messages, parameters) or ()
        if instructions:
            text = "\n\n".join(part.content for part in instructions)
            first = next((place for place, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
            turns.insert(first, {"role": "system", "content": text})
        return turns


@dataclass
class ReasonSpecStream(StreamedResponse):
    """A streamed answer."""

    _events: AsyncGenerator[ChatEvent]
    _model_name: str
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in self._events:
            match event:
                case TextDelta("reasoning", text) if text:
                    for part in self._parts_manager.handle_thinking_delta(
                        vendor_part_id="reasoning", content=text
                    ):
                        yield part
                case TextDelta("content", text) if text:
                    for part in self._parts_manager.handle_text_delta(vendor_part_id="content", content=text):
                        yield part
                case ToolCallDelta(index, arguments, id_, name):
                    part = self._parts_manager.handle_tool_call_delta(
                        vendor_part_id=index, tool_name=name, args=arguments, tool_call_id=id_
                    )
                    if part is not None:
                        yield part
                case ChatEnd():
                    self._usage = _usage(event)
                    self.finish_reason = _FINISH[event.finish]
                    self.provider_details = {"reason_spec": asdict(event.report)}

    async def close_stream(self) -> None:
        """Abandon the rest of the answer; the engines are free afterwards."""
        await self._events.aclose()

    @property
    def model_name(self) -> str:
        """The target's name."""
        return self._model_name

    @property
    def provider_name(self) -> str:
        """The provider's name in telemetry."""
        return _PROVIDER

    @property
    def provider_url(self) -> None:
        """None: the provider runs in process."""
        return

    @property
    def timestamp(self) -> datetime:
        """The time of the answer's begin."""
        return self._timestamp


def openai_turns(message: ModelMessage) -> Iterator[dict[str, Any]]:
    """Yield the messages in OpenAI's form that one of Pydantic AI's stands for.

    What is no text in a user's prompt, such as a picture, is a part with its type alone.

    Raises:
        RequestError: a part of the message is no prompt, text, call or result.
    """
    if isinstance(message, ModelResponse):
        yield _assistant_turn(message)
        return
    assert isinstance(message, ModelRequest)
    for part in message.parts:
        match part:
            case SystemPromptPart():
                yield {"role": "system", "content": part.content}
            case UserPromptPart():
                yield {"role": "user", "content": _user_content(part)}
            case ToolReturnPart():
                yield {
                    "role": "tool",
                    "tool_call_id": part.tool_call_id,
                    "name": part.tool_name,
                    "content": part.model_response_str(),
                }
            case RetryPromptPart(tool_name=None):
                yield {"role": "user", "content": part.model_response()}
            case RetryPromptPart():
                yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
            case _:
                raise RequestError(
                    f"a part is a {type(part).__name__}: the model reads text", param="messages"
                )


def _user_content(part: UserPromptPart) -> str | list[dict[str, Any]]:
    return part.content if isinstance(part.content, str) else [_user_part(item) for item in part.content]


def _user_part(item: UserContent) -> dict[str, Any]:
    text = item if isinstance(item, str) else getattr(item, "content", None)
    if isinstance(text, str):
        return {"type": "text", "text": text}
    return {"type": getattr(item, "kind", type(item).__name__)}


def _assistant_turn(message: ModelResponse) -> dict[str, Any]:
    text = "".join(part.content for part in message.parts if isinstance(part, TextPart))
    thinking = "".join(part.content for part in message.parts if isinstance(part, ThinkingPart))
    calls = [
        call_body(part.tool_call_id, part.tool_name, part.args_as_json_str())
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    return assistant_turn(text, thinking, calls)


def _tools(choice: Any, parameters: ModelRequestParameters) -> tuple[list[ToolDefinition], str]:
    """Return the tools that may be called, and the choice among them.

    ``choice`` is about the functions of the agent; the tools for its output are always offered.
    """
    functions, outputs = list(parameters.declared_function_tools), list(parameters.output_tools)
    free = "auto" if parameters.allow_text_output else "required"
    if choice in (None, "auto"):
        return functions + outputs, free
    if choice in ("none", []):
        return outputs, free if outputs else "none"
    if choice == "required":
        return functions + outputs, "required"
    if isinstance(choice, list):
        return [tool for tool in functions if tool.name in choice], "required"
    raise RequestError(
        f"tool_choice is {choice!r}; it is auto, none, required, or a list of names", param="tool_choice"
    )


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return tool_body(tool.name, tool.description or "", tool.parameters_json_schema)


def _parts(answer: ChatAnswer) -> Iterator[ModelResponsePart]:
    if answer.reasoning:
        yield ThinkingPart(answer.reasoning)
    if answer.content:
        yield TextPart(answer.content)
    for call in answer.tool_calls:
        yield ToolCallPart(call.name, call.arguments, call.id)


def _usage(end: ChatEnd) -> RequestUsage:
    return RequestUsage(
        input_tokens=end.num_prompt_tokens,
        cache_read_tokens=end.num_cached_tokens,
        output_tokens=end.num_tokens,
        details={"reasoning_tokens": end.num_reasoning_tokens},
    )
