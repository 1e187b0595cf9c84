"""LangChain and LangGraph in process: a `BaseChatModel`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import asdict
from operator import itemgetter
from typing import Any

from pydantic import ConfigDict, Field

from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatEvent, ChatRequest, TextDelta, ToolCallDelta
from reason_spec.errors import RequestError
from reason_spec.integrations.base import (
    InProcess,
    call_body,
    chat_request,
    check_options,
    missing,
    schema_format,
)

try:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import (
        AIMessage,
        AIMessageChunk,
        BaseMessage,
        InvalidToolCall,
        convert_to_openai_messages,
    )
    from langchain_core.messages import ToolCall as LangChainToolCall
    from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
    from langchain_core.messages.tool import tool_call_chunk
    from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
    from langchain_core.output_parsers.openai_tools import parse_tool_call
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
    from langchain_core.tools import BaseTool
    from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
    from langchain_core.utils.pydantic import is_basemodel_subclass
except ModuleNotFoundError as error:
    raise missing(error, "langchain-core", "langchain") from error

_REASONING = "reasoning_content"
"""The place of thinking in LangChain's messages; content blocks are made from it."""


class ChatReasonSpec(BaseChatModel):
    """A chat model for chains and graphs.

    Thinking is in ``additional_kwargs["reasoning_content"]``, and a block of ``content_blocks``; the model
    reads it again in later turns. The report about speculation is ``response_metadata["reason_spec"]``.

    ::

        with InProcess() as models:
            model = ChatReasonSpec(models=models, options={"strategy": "lookahead"})
            graph.add_node("speak", lambda state: {"messages": [model.invoke(state["messages"])]})

    ``options`` are of every call, by the names in `integrations.base.OPTIONS`; those of a call or of ``bind``
    go first.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    models: InProcess = Field(default_factory=InProcess, exclude=True)
    options: dict[str, Any] = Field(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Refuse options with unknown names (RequestError)."""
        super().model_post_init(context)
        check_options(self.options)

    @property
    def _llm_type(self) -> str:
        return "reason-spec"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model": self.models.model_name, **self.options}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(self.models.chat(self._request(messages, stop, kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(await self.models.achat(self._request(messages, stop, kwargs)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with closing(self.models.stream(self._request(messages, stop, kwargs))) as events:
            for event in events:
                if (chunk := self._chunk(event)) is not None:
                    if run_manager is not None:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self.models.astream(self._request(messages, stop, kwargs))) as events:
            async for event in events:
                if (chunk := self._chunk(event)) is not None:
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with tools. ``any`` and True as ``tool_choice`` mean ``required``."""
        if tool_choice in ("any", True):
            tool_choice = "required"
        return self.bind(
            tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=tool_choice or None, **kwargs
        )

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Return this model with its answer restricted to a schema.

        Args:
            schema: a pydantic class, a TypedDict, or a JSON schema.
            kwargs: ``method`` is ``json_schema`` (the default) or ``function_calling``.
        """
        if kwargs.pop("method", "json_schema") == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        json_schema = convert_to_json_schema(schema)
        model = self.bind(
            response_format=schema_format(json_schema),
            ls_structured_output_format={"kwargs": {"method": "json_schema"}, "schema": json_schema},
        )
        parser: Any = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser(pydantic_object=schema)
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]
    ) -> ChatRequest:
        given = {**self.options, **kwargs}
        # Only tracers read it.
        given.pop("ls_structured_output_format", None)
        return chat_request(map(_turn, messages), {**given, "stop": stop or given.get("stop")})

    def _result(self, answer: ChatAnswer) -> ChatResult:
        calls: list[LangChainToolCall] = []
        invalid: list[InvalidToolCall] = []
        for call in answer.tool_calls:
            try:
                raw = call_body(call.id, call.name, call.arguments)
                calls.append(parse_tool_call(raw, return_id=True))
            except Exception as error:
                invalid.append(
                    InvalidToolCall(name=call.name, args=call.arguments, id=call.id, error=str(error))
                )
        message = AIMessage(
            content=answer.content or "",
            additional_kwargs={_REASONING: answer.reasoning} if answer.reasoning else {},
            tool_calls=calls,
            invalid_tool_calls=invalid,
            usage_metadata=_usage(answer.end),
            response_metadata=self._metadata(answer.end),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _chunk(self, event: ChatEvent) -> ChatGenerationChunk | None:
        match event:
            case TextDelta("reasoning", text) if text:
                message = AIMessageChunk(content="", additional_kwargs={_REASONING: text})
            case TextDelta("content", text) if text:
                message = AIMessageChunk(content=text)
            case ToolCallDelta(index, arguments, id_, name):
                chunk = tool_call_chunk(name=name, args=arguments, id=id_, index=index)
                message = AIMessageChunk(content="", tool_call_chunks=[chunk])
            case ChatEnd():
                message = AIMessageChunk(
                    content="",
                    usage_metadata=_usage(event),
                    response_metadata=self._metadata(event),
                    chunk_position="last",
                )
            case _:
                return None
        return ChatGenerationChunk(message=message)

    def _metadata(self, end: ChatEnd) -> dict[str, Any]:
        return {
            "model_name": self.models.model_name,
            "finish_reason": end.finish,
            "reason_spec": asdict(end.report),
        }


def _turn(message: BaseMessage) -> dict[str, Any]:
    turn = convert_to_openai_messages(message)
    if not isinstance(turn, dict):
        raise RequestError(f"a message is {message!r}; it is no message of a chat", param="messages")
    if reasoning := message.additional_kwargs.get(_REASONING):
        turn[_REASONING] = reasoning
    return turn


def _usage(end: ChatEnd) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=end.num_prompt_tokens,
        output_tokens=end.num_tokens,
        total_tokens=end.num_prompt_tokens + end.num_tokens,
        input_token_details=InputTokenDetails(cache_read=end.num_cached_tokens),
        output_token_details=OutputTokenDetails(reasoning=end.num_reasoning_tokens),
    )
