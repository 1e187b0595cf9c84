"""LiteLLM in process: a `CustomLLM`, for whatever calls models through LiteLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, closing
from typing import Any

from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatEvent, ChatRequest, TextDelta, ToolCallDelta
from reason_spec.errors import RequestError
from reason_spec.integrations.base import InProcess, chat_request, check_options, missing, shown_report

try:
    import litellm
    from litellm import CustomLLM, ModelResponse, ModelResponseStream
    from litellm.exceptions import BadRequestError
    from litellm.types.utils import (
        Choices,
        CompletionTokensDetailsWrapper,
        Delta,
        Message,
        PromptTokensDetailsWrapper,
        StreamingChoices,
        Usage,
    )
    from litellm.utils import custom_llm_setup
except ModuleNotFoundError as error:
    raise missing(error, "litellm", "litellm") from error

PROVIDER = "reason-spec"
_PLACED = frozenset({"tools", "tool_choice", "response_format", "max_completion_tokens"})
# What LiteLLM adds by itself, or handles by itself.
_NOT_OURS = frozenset({"stream", "stream_options", "max_retries", "extra_body", "user"})


class ReasonSpecLLM(CustomLLM):
    """A provider for LiteLLM: ``litellm.completion("reason-spec/embedded", ...)`` once it is registered.

    Thinking is ``reasoning_content``; what speculation did is ``reason_spec`` of a response. ``extra_body`` of a
    call takes options of that call, as ``{"strategy": "autoregressive"}``.
    """

    def __init__(self, models: InProcess | None = None, **options: Any) -> None:
        """Args:
        models: shared with other wrappers; None: those of the default settings.
        options: of every call, by the names in `reason_spec.integrations.base.OPTIONS`; a call's own go first.

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

    def streaming(self, *_: Any, **call: Any) -> Iterator[ModelResponseStream]:
        """Yield an answer in pieces."""
        with _refusals(call["model"]), closing(self.models.stream(self._request(call))) as events:
            for event in events:
                yield from _chunks(event)

    async def astreaming(self, *_: Any, **call: Any) -> AsyncIterator[ModelResponseStream]:
        """Yield an answer in pieces."""
        with _refusals(call["model"]):
            async with aclosing(self.models.astream(self._request(call))) as events:
                async for event in events:
                    for chunk in _chunks(event):
                        yield chunk

    def _request(self, call: Mapping[str, Any]) -> ChatRequest:
        given: dict[str, Any] = dict(call["optional_params"])
        own = {name: value for name, value in given.items() if name not in _PLACED | _NOT_OURS}
        if given.get("max_completion_tokens") is not None:
            own["max_tokens"] = given["max_completion_tokens"]
        return chat_request(
            call["messages"],
            {**self.options, **own, **(given.get("extra_body") or {})},
            tools=given.get("tools") or (),
            tool_choice=given.get("tool_choice"),
            response_format=given.get("response_format"),
        )
