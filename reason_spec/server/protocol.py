"""Request bodies of chats and completions: OpenAI's fields, vLLM's and those of this server.

Unknown fields are refused by name. So are known fields that cannot be honoured, unless their value asks for
nothing (``presence_penalty: 0``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from reason_spec.errors import did_you_mean
from reason_spec.server.unsupported_fields import CHAT_REFUSED, COMPLETION_REFUSED, Refusal
from reason_spec.settings import ExitRuleName
from reason_spec.types import LossClass

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_SESSION_CHARACTERS = 256
_INT64 = 2**63


class Part(BaseModel):
    """A JSON object of a request; unknown fields are refused, with the nearest known name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    refused: ClassVar[Mapping[str, Refusal]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        known = {field.alias or name: name for name, field in cls.model_fields.items()}
        kept = {}
        for name, value in body.items():
            if name in known:
                kept[name] = value
            elif name not in cls.refused:
                raise _named("unknown_field", name, f"unknown field{did_you_mean(name, known)}")
            elif not cls.refused[name].asks_for_nothing(value):
                raise _named("refused_field", name, cls.refused[name].remedy)
        return kept


def _named(kind: Literal["unknown_field", "refused_field"], name: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message, "name": name})


class SpeculationOptions(Part):
    """How the answer is accelerated; only for trusted clients."""

    strategy: str | None = None
    verifier: str | None = None
    depth: int | None = Field(default=None, ge=0, le=64)
    width: int | None = Field(default=None, ge=1, le=8)
    loss_class: LossClass | None = None
    off: bool = False
    exit: ExitRuleName | None = None
    exit_threshold: float | None = Field(default=None, ge=0, le=1)
    read_only_tools: list[str] | None = Field(
        default=None,
        max_length=256,
        description="tools that only read, whose calls may be predicted: NAME or NAME(ARGUMENT=VALUE)",
    )


class CacheControl(Part):
    """How long a text should stay cached; accepted without effect."""

    type: Literal["ephemeral"] = "ephemeral"
    ttl: float | None = Field(default=None, ge=0, le=3600)
    block_offset: int | None = Field(default=None, ge=0)


class ContextEdit(Part):
    """What becomes of the session's cached texts after the answer."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        "block_start": Refusal("texts are released as a whole; leave it out"),
        "block_end": Refusal("texts are released as a whole; leave it out"),
    }

    type: Literal["evict"]


class ContextManagement(Part):
    """Edits of the session's cached texts."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        "manage_request": Refusal(
            "every request is answered; to end a session ask DELETE /v1/sessions/NAME", (False,)
        )
    }

    edits: list[ContextEdit] = Field(default=[], max_length=8)


SessionName: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_CHARACTERS)]


class AgentHint(Part):
    """The agent's session, in the form that is proposed for vLLM (RFC 52113)."""

    session_id: SessionName | None = None
    parent_session_id: SessionName | None = Field(default=None, description="ignored")
    cache_control: CacheControl | None = Field(default=None, description="ignored")
    context_management: ContextManagement | None = None

    @model_validator(mode="after")
    def _names_what_it_ends(self) -> AgentHint:
        if self.ends_session and self.session_id is None:
            raise _named("refused_field", "session_id", "'evict' ends a session; name it here")
        return self

    @property
    def ends_session(self) -> bool:
        return bool(self.context_management and self.context_management.edits)


class WholeBody(Part):
    """The fields of every request body."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=5)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None
    reason_spec: SpeculationOptions | None = None
    session_id: SessionName | None = Field(default=None, description="vLLM's: names the conversation")
    agent_hint: AgentHint | None = None
    user: str | None = Field(default=None, description="ignored")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, body: Any) -> Any:
        """Refuse halves of surrogate pairs: no tokenizer and no answer can hold them."""
        if isinstance(body, bytes):
            return body  # It was not sent as JSON; it is refused as no object.
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError("not_text", "the body holds half of a surrogate pair") from None
        return body

    @model_validator(mode="after")
    def _is_of_one_session(self) -> WholeBody:
        hinted = self.agent_hint.session_id if self.agent_hint else None
        if None not in (hinted, self.session_id) and hinted != self.session_id:
            raise _named("refused_field", "session_id", "it differs from that of 'agent_hint'; give one")
        return self

    @property
    def session(self) -> str | None:
        return (self.agent_hint.session_id if self.agent_hint else None) or self.session_id


class ConversationBody(WholeBody):
    """The fields of every request body about a conversation."""

    parallel_tool_calls: bool | None = None
    thinking_token_budget: int | None = Field(
        default=None, ge=-1, lt=_INT64, description="vLLM's: tokens of the thinking at most; -1: no limit"
    )
    max_thinking_steps: int | None = Field(
        default=None, ge=0, lt=_INT64, description="this server's: steps of the thinking at most"
    )
    metadata: dict[str, str] | None = Field(default=None, description="given back by responses alone")
    store: bool | None = Field(default=None, description="ignored: nothing is stored")
    service_tier: str | None = Field(default=None, description="ignored")
    safety_identifier: str | None = Field(default=None, description="ignored")
    prompt_cache_key: str | None = Field(default=None, description="ignored: prompts are known by content")
    prompt_cache_retention: str | None = Field(default=None, description="ignored")


class Loose(BaseModel):
    """A JSON object whose other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


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
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[EarlierCall] | None = None
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
            raise _named("refused_field", "content", "a user's message has no content; give its text")
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

    max_tokens: int | None = Field(default=None, ge=1, lt=_INT64)
    n: int | None = Field(default=None, ge=1, lt=_INT64, description="answers; the operator sets the most")
    top_k: int | None = Field(default=None, ge=-1, lt=_INT64, description="vLLM's; 0 and -1: off")
    seed: int | None = Field(default=None, ge=-_INT64, lt=_INT64)
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
            raise _named("refused_field", "stop", f"{len(stops)} stop strings; give at most {MAX_STOPS}")
        if any(not 1 <= len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
            message = f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters"
            raise _named("refused_field", "stop", message)
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

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=_INT64)
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
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
