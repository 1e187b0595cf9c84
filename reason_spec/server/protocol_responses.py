"""The request body of ``POST /v1/responses`` and the items of a conversation as it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from reason_spec.server.protocol import JsonObjectFormat, Part, SpeculationOptions, TextFormat, refuse_no_text
from reason_spec.server.unsupported_fields import RESPONSES_REFUSED, Refusal

_INT64 = 2**63


class _Item(BaseModel):
    """An item as a client was given it or writes it; further fields are of no meaning here."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class TextContent(_Item):
    """A piece of text; pictures, sounds and files are not read."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


Texts: TypeAlias = str | list[TextContent]


class MessageItem(_Item):
    """A turn of somebody."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts


class CallItem(_Item):
    """A call that the model made; ``arguments`` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(_Item):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ReasoningItem(_Item):
    """Thinking that came before the turn behind it."""

    type: Literal["reasoning"]
    summary: list[TextContent] = []
    content: list[TextContent] | None = None


def _kind_of(item: Any) -> Any:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind or "message"


InputItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind_of,
        custom_error_type="unknown_item",
        custom_error_message="items are message, function_call, function_call_output or reasoning",
    ),
]


class FunctionTool(Part):
    """A function that the model may call; the server has no tools of its own."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        "defer_loading": Refusal("all tools are told to the model; leave it out", (False,))
    }

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(default=None, description="ignored: arguments are read as they are written")


class NamedFunction(Part):
    """The one function to call."""

    type: Literal["function"]
    name: str


class SchemaFormat(Part):
    """JSON of a schema."""

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(default=None, description="ignored: the schema always binds")


class TextOptions(Part):
    """What the answer's text has to be."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        "verbosity": Refusal("the models know no verbosity; say it in the instructions", ("medium",))
    }

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None


class ReasoningOptions(Part):
    """How the model thinks; ``effort`` is told to the chat template."""

    effort: str | None = None
    summary: str | None = Field(default=None, description="ignored: thinking is given as it is")
    generate_summary: str | None = Field(default=None, description="ignored")


class ResponseStreamOptions(Part):
    """What a stream has beside its events."""

    include_obfuscation: bool | None = Field(default=None, description="ignored: nothing is padded")


class ResponsesBody(Part):
    """Body of ``POST /v1/responses``."""

    refused: ClassVar[Mapping[str, Refusal]] = RESPONSES_REFUSED

    model: str
    input: str | list[InputItem] = Field(min_length=1)
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=_INT64)
    temperature: float | None = Field(default=None, ge=0, le=5)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: dict[str, str] | None = Field(default=None, description="given back")
    reason_spec: SpeculationOptions | None = None
    include: list[str] | None = Field(default=None, description="ignored: everything there is comes")
    store: bool | None = Field(default=None, description="ignored: nothing is stored")
    user: str | None = Field(default=None, description="ignored")
    service_tier: str | None = Field(default=None, description="ignored")
    safety_identifier: str | None = Field(default=None, description="ignored")
    prompt_cache_key: str | None = Field(default=None, description="ignored: prompts are known by content")
    prompt_cache_retention: str | None = Field(default=None, description="ignored")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, body: Any) -> Any:
        return refuse_no_text(body)
