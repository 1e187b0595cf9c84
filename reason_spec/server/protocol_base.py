"""Common parts of request bodies: refused fields, the session of a request, options of speculation.

Unknown fields are refused by name. So are known fields that cannot be honoured, unless their value asks for
nothing (``presence_penalty: 0``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from reason_spec.errors import did_you_mean
from reason_spec.server.unsupported_fields import Refusal
from reason_spec.settings import ExitRuleName
from reason_spec.types import LossClass

MAX_SESSION_CHARACTERS = 256
INT64 = 2**63


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
                raise named_error("unknown_field", name, f"unknown field{did_you_mean(name, known)}")
            elif not cls.refused[name].asks_for_nothing(value):
                raise named_error("refused_field", name, cls.refused[name].remedy)
        return kept


class FirstMistake(FailFast):
    """Ends the check of a list at its first mistake: each mistake of a large body takes its time."""

    # Unions of annotated types need one, and pydantic's class has none.
    __hash__ = object.__hash__


def named_error(
    kind: Literal["unknown_field", "refused_field"], name: str, message: str
) -> PydanticCustomError:
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
            raise named_error("refused_field", "session_id", "'evict' ends a session; name it here")
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
            raise named_error("refused_field", "session_id", "it differs from that of 'agent_hint'; give one")
        return self

    @property
    def session(self) -> str | None:
        return (self.agent_hint.session_id if self.agent_hint else None) or self.session_id


class ConversationBody(WholeBody):
    """The fields of every request body about a conversation."""

    parallel_tool_calls: bool | None = None
    thinking_token_budget: int | None = Field(
        default=None, ge=-1, lt=INT64, description="vLLM's: tokens of the thinking at most; -1: no limit"
    )
    max_thinking_steps: int | None = Field(
        default=None, ge=0, lt=INT64, description="this server's: steps of the thinking at most"
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
