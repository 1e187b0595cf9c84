"""The request body of ``POST /v1/responses`` and the items of a conversation as it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from reason_spec.server.protocol import Function, FunctionName, JsonObjectFormat, NamedSchema, TextFormat
from reason_spec.server.protocol_base import INT64, ConversationBody, FirstMistake, Loose, Part
from reason_spec.server.unsupported_fields import RESPONSES_REFUSED, Refusal


class TextContent(Loose):
    """A text part; pictures, sounds and files are refused."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


Texts: TypeAlias = str | Annotated[list[TextContent], FirstMistake()]


class MessageItem(Loose):
    """A turn of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts


class CallItem(Loose):
    """A call that the model made; ``arguments`` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Loose):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ReasoningItem(Loose):
    """The thinking before the next turn."""

    type: Literal["reasoning"]
    summary: list[TextContent] = Field(default=[])
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


class _FunctionType(Part):
    """Its own class, so that a wrong type is the first error that is reported."""

    type: Literal["function"]


class FunctionTool(Function, _FunctionType):
    """A function that the model may call; the server has no tools of its own."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        "defer_loading": Refusal("the model sees all tools; leave it out", (False,))
    }


class NamedFunction(FunctionName):
    """The one function to call."""

    type: Literal["function"]


class SchemaFormat(NamedSchema):
    """JSON of a schema."""

    type: Literal["json_schema"]


class TextOptions(Part):
    """The form of the answer's text."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        "verbosity": Refusal("the models know no verbosity; say it in the instructions", ("medium",))
    }

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None


class ReasoningOptions(Part):
    """How the model thinks; ``effort`` goes to the chat template, or sets a budget."""

    effort: str | None = None
    summary: str | None = Field(default=None, description="ignored: thinking is given as it is")
    generate_summary: str | None = Field(default=None, description="ignored")


class ResponseStreamOptions(Part):
    """Additions to a stream."""

    include_obfuscation: bool | None = Field(default=None, description="ignored: nothing is padded")


class ResponsesBody(ConversationBody):
    """Body of ``POST /v1/responses``."""

    refused: ClassVar[Mapping[str, Refusal]] = RESPONSES_REFUSED

    input: str | Annotated[list[InputItem], FirstMistake()] = Field(min_length=1)
    instructions: str | None = None
    tools: Annotated[list[FunctionTool], FirstMistake()] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    stream_options: ResponseStreamOptions | None = None
    include: list[str] | None = Field(default=None, description="ignored: the answer is always complete")
