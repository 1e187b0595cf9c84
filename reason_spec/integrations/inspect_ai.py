"""Inspect in process: a `ModelAPI`, named ``reason-spec/MODEL`` wherever Inspect takes a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from reason_spec.chat.base import ChatAnswer, ChatRequest
from reason_spec.errors import RequestError, SettingsError
from reason_spec.integrations.base import (
    OPTIONS,
    InProcess,
    assistant_turn,
    call_body,
    chat_request,
    missing,
    schema_format,
    tool_body,
)
from reason_spec.settings import load_settings

try:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageTool,
        Content,
        ContentReasoning,
        ContentText,
        GenerateConfig,
        Logprob,
        Logprobs,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        StopReason,
        modelapi,
    )
    from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo
except ModuleNotFoundError as error:
    raise missing(error, "inspect-ai", "inspect") from error

PROVIDER: Final = "reason-spec"
_HONOURED: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "stop_seqs": "stop",
    "logit_bias": "logit_bias",
    "parallel_tool_calls": "parallel_tool_calls",
    "reasoning_effort": "reasoning_effort",
    "reasoning_tokens": "thinking_token_budget",
}
"""Fields of GenerateConfig, and their names in `integrations.base.OPTIONS`."""

_PLACED: Final = frozenset({"logprobs", "response_schema", "extra_body"})
"""Fields with a form of their own."""

_NEUTRAL: Final = {"num_choices": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_logprobs": 0}
"""Values of unsupported fields that change nothing, and so are accepted."""

_INSPECTS_OWN: Final = frozenset(
    "max_retries timeout attempt_timeout stream_idle_timeout max_connections adaptive_connections batch "
    "system_message max_tool_output cache cache_prompt fail_on_refusal reasoning_history "
    "internal_tools".split()
)
"""Fields that Inspect handles itself, or that are about a connection."""

_STOP: Final[Mapping[str, StopReason]] = {
    "stop": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_calls",
}


class ReasonSpecAPI(ModelAPI):
    """The accelerator as a model of Inspect's.

    ``reason-spec/embedded`` is the demonstration pair, ``reason-spec/ID`` a target of that id or folder.
    Arguments of the model (``-M``) are:

    - options of every call by the names in `integrations.base.OPTIONS`, as ``strategy``;
    - settings with two underscores for the dot, as ``draft__model``;
    - ``config``, a settings file;
    - ``concurrency``, the number of answers written at once.

    Thinking is a ContentReasoning. The report about speculation is ``reason_spec`` in the output's metadata.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - the form that Inspect calls
        *,
        concurrency: int = 1,
        models: InProcess | None = None,
        **model_args: Any,
    ) -> None:
        """Args:
        model_name: the target: the part of the model's name after the provider.
        concurrency: answers written at once, unless Inspect's ``max_connections`` says; others wait.
        models: shared with other wrappers; they stay open.

        Raises:
            SettingsError: an argument has an unknown name or a value that does not fit.
            RequestError: as SettingsError, of options.
        """
        super().__init__(model_name, base_url, api_key, [], config)
        if base_url is not None:
            raise SettingsError(
                f"{PROVIDER} answers in process and has no base_url; name servers with "
                "-M target__remote__base_urls=..., or use Inspect's openai-api provider for a server"
            )
        self.options = {name: value for name, value in model_args.items() if name in OPTIONS}
        settings = {name: value for name, value in model_args.items() if name not in OPTIONS}
        self._owned = models is None
        self.models = models or _models(model_name, settings)
        self._concurrency = int(config.max_connections or concurrency)
        self._turns: asyncio.Semaphore | None = None

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002 - Inspect's name
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return the next message.

        Raises:
            RequestError: the configuration or a message cannot be followed; it is named.
            EngineError: a model failed.
        """
        request = self._request(input, tools, tool_choice, config)
        # Made here, where Inspect's event loop runs.
        self._turns = self._turns or asyncio.Semaphore(self._concurrency)
        async with self._turns:
            answer = await self.models.achat(request)
        return _output(self.model_name, answer, with_logprobs=bool(config.logprobs))

    def _request(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolInfo],
        choice: ToolChoice,
        config: GenerateConfig,
    ) -> ChatRequest:
        given = {name: value for name, value in config if value is not None}
        _refuse(given)
        options = {**self.options}
        options |= {ours: given[name] for name, ours in _HONOURED.items() if name in given}
        options |= given.get("extra_body", {})
        if config.response_schema is not None:
            schema = config.response_schema.json_schema.model_dump(exclude_none=True)
            options["response_format"] = schema_format(schema)
        options |= {
            "tools": [_tool(tool) for tool in tools],
            "tool_choice": _tool_choice(choice) if tools else None,
        }
        request = chat_request(map(_turn, messages), options)
        return replace(request, logprobs=bool(config.logprobs))

    def max_connections(self) -> int:
        """The number of answers written at once."""
        return self._concurrency

    def connection_key(self) -> str:
        """Models are not shared with others."""
        return f"{self.model_name} {id(self.models)}"

    def should_retry(self, ex: Exception) -> bool:
        """No failure here is temporary."""
        return False

    async def aclose(self) -> None:
        """Free the models."""
        if self._owned:
            await asyncio.to_thread(self.models.close)


@modelapi(name=PROVIDER)
def reason_spec() -> type[ModelAPI]:
    """The provider, as Inspect's registry finds it."""
    return ReasonSpecAPI


def _models(target: str, arguments: Mapping[str, Any]) -> InProcess:
    flags = {name.replace("__", "."): value for name, value in arguments.items()}
    config = flags.pop("config", None)
    if (named := flags.setdefault("target.model", target)) != target:
        raise SettingsError(f"target.model is {named!r} in -M and {target!r} in the model's name")
    return InProcess(load_settings(None if config is None else Path(config), flags))


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse fields that cannot be honoured."""
    known = _HONOURED.keys() | _INSPECTS_OWN | _PLACED
    for name, value in given.items():
        if name not in known and value != _NEUTRAL.get(name):
            raise RequestError(f"{PROVIDER} does not honour {name} ({value!r}); leave it out", param=name)


def _turn(message: ChatMessage) -> dict[str, Any]:
    text = _text(message)
    if isinstance(message, ChatMessageAssistant):
        parts = () if isinstance(message.content, str) else message.content
        thinking = "".join(part.reasoning for part in parts if isinstance(part, ContentReasoning))
        calls = [
            call_body(call.id, call.function, json.dumps(call.arguments)) for call in message.tool_calls or ()
        ]
        return assistant_turn(text, thinking, calls)
    turn: dict[str, Any] = {"role": message.role, "content": text}
    if isinstance(message, ChatMessageTool):
        turn |= {"tool_call_id": message.tool_call_id, "name": message.function}
        if message.error is not None:
            turn["content"] = message.error.message
    return turn


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if not isinstance(part, ContentText | ContentReasoning):
            raise RequestError(f"a message holds {part.type}: the model reads text", param="messages")
    return "\n".join(part.text for part in message.content if isinstance(part, ContentText))


def _tool(tool: ToolInfo) -> dict[str, Any]:
    return tool_body(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True))


def _tool_choice(choice: ToolChoice) -> str:
    if isinstance(choice, ToolFunction):
        return str(choice.name)
    return "required" if choice == "any" else choice


def _output(model: str, answer: ChatAnswer, *, with_logprobs: bool) -> ModelOutput:
    end = answer.end
    content: str | list[Content] = answer.content or ""
    if answer.reasoning:
        content = [ContentReasoning(reasoning=answer.reasoning), ContentText(text=answer.content or "")]
    message = ChatMessageAssistant(
        content=content,
        tool_calls=[_tool_call(call.id, call.name, call.arguments) for call in answer.tool_calls] or None,
        source="generate",
        model=model,
    )
    logprobs = None
    if with_logprobs:
        # An answer of calls alone, or one that ended within its thinking, has none.
        if answer.logprobs is None and answer.content:
            raise RequestError(
                f"logprobs are not known under strategy {end.report.strategy}; leave them out, or take "
                "-M strategy=autoregressive",
                param="logprobs",
            )
        logprobs = Logprobs(
            content=[
                Logprob(
                    token=item.content.decode(errors="replace"),
                    logprob=item.logprob,
                    bytes=list(item.content),
                )
                for item in answer.logprobs or ()
            ]
        )
    return ModelOutput(
        model=model,
        choices=[
            ChatCompletionChoice(message=message, stop_reason=_STOP[end.finish], logprobs=logprobs),
        ],
        usage=ModelUsage(
            input_tokens=end.num_prompt_tokens - end.num_cached_tokens,
            input_tokens_cache_read=end.num_cached_tokens,
            output_tokens=end.num_tokens,
            reasoning_tokens=end.num_reasoning_tokens,
            total_tokens=end.num_prompt_tokens + end.num_tokens,
        ),
        time=end.report.seconds,
        metadata={"reason_spec": asdict(end.report)},
    )


def _tool_call(id_: str, name: str, arguments: str) -> ToolCall:
    try:
        parsed = json.loads(arguments)
        if not isinstance(parsed, dict):
            raise ValueError("the arguments are no object")
    except ValueError as error:
        return ToolCall(id=id_, function=name, arguments={}, parse_error=f"{error}: {arguments}")
    return ToolCall(id=id_, function=name, arguments=parsed)
