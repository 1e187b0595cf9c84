"""Request bodies of chats and completions: OpenAI's fields, vLLM's and those of this server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from reason_spec.server.protocol_base import (
    INT64,
    ConversationBody,
    FirstMistake,
    Loose,
    Part,
    WholeBody,
    named_error,
)
from reason_spec.server.unsupported_fields import CHAT_REFUSED, COMPLETION_REFUSED, Refusal

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256


class TextPart(Loose):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(Loose):
    """The function of an earlier call; ``arguments`` is JSON text."""

    name: str
    arguments: str


class EarlierCall(Loose):
    """A call of an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Part):
    """One turn of the conversation."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        "function_call": Refusal("the old form of a call is not taken; give 'tool_calls'"),
        "audio": Refusal("only text is read"),
    }

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], FirstMistake()] | None = None
    name: str | None = None
    tool_calls: Annotated[list[EarlierCall], FirstMistake()] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = Field(default=None, description="thinking of an earlier turn, as vLLM names it")
    reasoning_content: str | None = Field(default=None, description="the same in its other spelling")
    refusal: str | None = Field(default=None, description="ignored")
    annotations: list[Any] | None = Field(default=None, description="ignored")
    id: str | None = Field(default=None, description="ignored")
    provider_specific_fields: dict[str, Any] | None = Field(
        default=None, description="ignored; LiteLLM puts it into its messages"
    )

    @model_validator(mode="after")
    def _user_has_content(self) -> ChatMessage:
        if self.role == "user" and (self.content is None or self.content == []):
            raise named_error("refused_field", "content", "a user's message has no content; give its text")
        return self

    def to_message(self) -> dict[str, Any]:
        """Return the turn in the form of the chat."""
        ignored = {"refusal", "annotations", "id", "provider_specific_fields"}
        return {"content": None, **self.model_dump(exclude_none=True, exclude=ignored)}


class Function(Part):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(default=None, description="ignored: arguments are read as they are written")
    annotations: dict[str, Any] | None = Field(
        default=None,
        description="MCP's; calls of tools with readOnlyHint may be predicted. The model does not see them",
    )


class Tool(Part):
    """A function that the model may call, in OpenAI's form."""

    type: Literal["function"]
    function: Function


class FunctionName(Part):
    """The name of a function."""

    name: str


class NamedTool(Part):
    """The one function to call."""

    type: Literal["function"]
    function: FunctionName


class StreamOptions(Part):
    """Additions to a stream."""

    include_usage: bool | None = Field(default=None, description="a last chunk with the usage")
    include_obfuscation: bool | None = Field(default=None, description="ignored: nothing is padded")
    # GuideLLM always sends it, and does without.
    continuous_usage_stats: bool | None = Field(default=None, description="ignored: usage comes at the end")


class TextFormat(Part):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(Part):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Part):
    """A JSON schema and its name."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(default=None, description="ignored: the schema always binds")


class JsonSchemaFormat(Part):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat: TypeAlias = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(Part):
    """vLLM's constraints of the answer; exactly one of the fields is given."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json", description="a JSON schema")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1)
    grammar: str | None = Field(default=None, description="in Lark's syntax, as llguidance reads it")
    json_object: bool | None = None


class Body(WholeBody):
    """The common fields of chats and completions."""

    max_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    n: int | None = Field(default=None, ge=1, lt=INT64, description="answers; the operator sets the most")
    top_k: int | None = Field(default=None, ge=-1, lt=INT64, description="vLLM's; 0 and -1: off")
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = Field(
        default=None, max_length=64, description="vLLM's: ids at which the answer ends"
    )
    ignore_eos: bool | None = Field(default=None, description="vLLM's: write on to the last token")
    logit_bias: dict[str, float] | None = Field(default=None, description="token id to what is added")
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = Field(default=None, description="vLLM's")
    cache_salt: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="vLLM's; prefixes are shared under one salt alone",
    )
    priority: int | None = Field(default=None, description="ignored")
    request_id: str | None = Field(default=None, description="ignored: the server gives its own")

    @model_validator(mode="after")
    def _stops_are_few_and_short(self) -> Body:
        stops = self.stops
        if len(stops) > MAX_STOPS:
            raise named_error("refused_field", "stop", f"{len(stops)} stop strings; give at most {MAX_STOPS}")
        if any(not 1 <= len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
            message = f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters"
            raise named_error("refused_field", "stop", message)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatBody(Body, ConversationBody):
    """Body of ``POST /v1/chat/completions``."""

    refused: ClassVar[Mapping[str, Refusal]] = CHAT_REFUSED

    messages: Annotated[list[ChatMessage], FirstMistake()] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], FirstMistake()] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="vLLM's")
    reasoning_effort: str | None = Field(
        default=None, description="passed to the chat template, else a budget of the thinking; none: off"
    )
    add_generation_prompt: bool | None = Field(default=None, description="vLLM's")
    continue_final_message: bool | None = Field(default=None, description="vLLM's: the last turn goes on")
    include_reasoning: bool | None = Field(default=None, description="vLLM's; false leaves the thinking out")
    prediction: dict[str, Any] | None = Field(default=None, description="ignored")

    @property
    def most_tokens(self) -> int | None:
        """Tokens of an answer, under the newer name or the older one."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Body):
    """Body of ``POST /v1/completions``."""

    refused: ClassVar[Mapping[str, Refusal]] = COMPLETION_REFUSED

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="text, or tokens of the target; several are continued at once"
    )
    logprobs: int | None = Field(default=None, ge=0, le=0, description="0: those of the chosen tokens")
    response_format: ResponseFormat | None = Field(default=None, description="vLLM's")

    @property
    def prompts(self) -> list[str | tuple[int, ...]]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        tokens = tuple(one for one in prompt if isinstance(one, int))
        texts = [one if isinstance(one, str) else tuple(one) for one in prompt if not isinstance(one, int)]
        return [tokens] if tokens else texts
