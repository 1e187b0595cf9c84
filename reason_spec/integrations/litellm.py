"""LiteLLM in process: a `CustomLLM`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager
from dataclasses import asdict
from typing import Any, TypeAlias

from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatEvent, ChatRequest, TextDelta, ToolCallDelta
from reason_spec.errors import RequestError
from reason_spec.integrations.base import InProcess, call_body, chat_request, check_options, missing

try:
    import litellm
    from litellm import CustomLLM, ModelResponse, ModelResponseStream
    from litellm.exceptions import BadRequestError
    from litellm.types.utils import (
        Choices,
        CompletionTokensDetailsWrapper,
        Delta,
        GenericStreamingChunk,
        Message,
        PromptTokensDetailsWrapper,
        StreamingChoices,
        Usage,
    )
    from litellm.utils import custom_llm_setup
except ModuleNotFoundError as error:
    raise missing(error, "litellm", "litellm") from error

PROVIDER = "reason-spec"
Chunk: TypeAlias = ModelResponseStream | GenericStreamingChunk
_NOT_OURS = frozenset({"stream", "stream_options", "max_retries", "extra_body", "user"})
"""Parameters that LiteLLM adds or handles itself."""


class ReasonSpecLLM(CustomLLM):
    """A provider for LiteLLM: ``litellm.completion("reason-spec/embedded", ...)`` once it is registered.

    Thinking is ``reasoning_content`` of a response, the report about speculation ``reason_spec``. A call
    takes options in ``extra_body``, as ``{"strategy": "autoregressive"}``.
    """

    def __init__(self, models: InProcess | None = None, **options: Any) -> None:
        """Args:
        models: shared with other wrappers; None: those of the default settings.
        options: of every call, by the names in `integrations.base.OPTIONS`; those of a call go first.

        Raises:
            RequestError: an option has an unknown name.
        """
        check_options(options)
        super().__init__()
        self.models = models or InProcess()
        self.options = options

    def completion(self, *_: Any, **call: Any) -> ModelResponse:
        """Return a whole answer."""
        with _refusals(call["model"]):
            return _response(self.models.chat(self._request(call)), call)

    async def acompletion(self, *_: Any, **call: Any) -> ModelResponse:
        """Return a whole answer."""
        with _refusals(call["model"]):
            return _response(await self.models.achat(self._request(call)), call)

    def streaming(self, *_: Any, **call: Any) -> Iterator[Chunk]:
        """Yield an answer in pieces."""
        with _refusals(call["model"]), closing(self.models.stream(self._request(call))) as events:
            for event in events:
                yield from _chunks(event)

    async def astreaming(self, *_: Any, **call: Any) -> AsyncIterator[Chunk]:
        """Yield an answer in pieces."""
        with _refusals(call["model"]):
            async with aclosing(self.models.astream(self._request(call))) as events:
                async for event in events:
                    for chunk in _chunks(event):
                        yield chunk

    def _request(self, call: Mapping[str, Any]) -> ChatRequest:
        given: dict[str, Any] = dict(call["optional_params"])
        own = {name: value for name, value in given.items() if name not in _NOT_OURS}
        if (most := own.pop("max_completion_tokens", None)) is not None:
            own["max_tokens"] = most
        return chat_request(call["messages"], {**self.options, **own, **(given.get("extra_body") or {})})


def register(models: InProcess | None = None, *, provider: str = PROVIDER, **options: Any) -> ReasonSpecLLM:
    """Register a provider with LiteLLM, in the place of one of that name: models are ``reason-spec/...``.

    Args:
        models, options: as in ReasonSpecLLM.
        provider: the part of a model's name before the slash.
    """
    handler = ReasonSpecLLM(models, **options)
    others = [known for known in litellm.custom_provider_map if known["provider"] != provider]
    litellm.custom_provider_map = [*others, {"provider": provider, "custom_handler": handler}]
    custom_llm_setup()
    return handler


@contextmanager
def _refusals(model: str) -> Iterator[None]:
    """Raise LiteLLM's error for a refused request."""
    try:
        yield
    except RequestError as error:
        raise BadRequestError(message=str(error), model=model, llm_provider=PROVIDER) from error


def _response(answer: ChatAnswer, call: Mapping[str, Any]) -> ModelResponse:
    calls = [call_body(made.id, made.name, made.arguments) for made in answer.tool_calls]
    message = Message(content=answer.content, reasoning_content=answer.reasoning, tool_calls=calls or None)
    response: ModelResponse = call["model_response"]
    response.model = call["model"]
    response.choices = [Choices(index=0, message=message, finish_reason=answer.end.finish)]
    response.usage = _usage(answer.end)
    response.reason_spec = asdict(answer.end.report)
    return response


def _chunks(event: ChatEvent) -> Iterator[Chunk]:
    match event:
        case TextDelta("reasoning", text) if text:
            yield _chunk(Delta(role="assistant", reasoning_content=text))
        case TextDelta("content", text) if text:
            yield _chunk(Delta(role="assistant", content=text))
        case ToolCallDelta(index, arguments, id_, name):
            function = {"name": name, "arguments": arguments}
            piece = {"index": index, "id": id_, "type": "function", "function": function}
            yield _chunk(Delta(role="assistant", tool_calls=[piece]))
        case ChatEnd():
            # In its own form LiteLLM would ignore the usage and count tokens itself.
            yield GenericStreamingChunk(
                text="",
                tool_use=None,
                is_finished=True,
                finish_reason=event.finish,
                usage=_usage(event).model_dump(),
                provider_specific_fields={"reason_spec": asdict(event.report)},
            )


def _chunk(delta: Delta) -> ModelResponseStream:
    return ModelResponseStream(choices=[StreamingChoices(index=0, delta=delta)])


def _usage(end: ChatEnd) -> Usage:
    return Usage(
        prompt_tokens=end.num_prompt_tokens,
        completion_tokens=end.num_tokens,
        total_tokens=end.num_prompt_tokens + end.num_tokens,
        prompt_tokens_details=PromptTokensDetailsWrapper(cached_tokens=end.num_cached_tokens),
        completion_tokens_details=CompletionTokensDetailsWrapper(reasoning_tokens=end.num_reasoning_tokens),
    )
