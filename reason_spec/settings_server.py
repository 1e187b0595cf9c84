"""What the server is told: where it listens, whom it lets in, and how much it takes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class ServerSettings(BaseModel):
    """How `reason-spec serve` meets its clients; no part of what names a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; beyond this machine it takes keys",
    )
    port: int = Field(default=8000, ge=0, le=65535, description="0: any that is free")
    served_models: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = Field(
        default=(), description="names that requests may call the model by; empty: the target's"
    )
    api_keys_file: Path | None = Field(
        default=None, description="hashes of keys with their tenants, as `reason-spec keys new` writes them"
    )
    api_key_variable: str = Field(
        default="REASON_SPEC_API_KEY", min_length=1, description="environment variable that may hold one key"
    )
    trusted: bool = Field(
        default=True,
        description="whether that one key, or without keys everybody on this machine, may send `reason_spec` "
        "and is told what speculation did",
    )
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = Field(
        default=(),
        description="names that a server without keys may be asked by (the header Host), beside those of "
        "this machine",
    )
    share_prefixes: bool = Field(
        default=False,
        description="whether tenants use what was computed for prompts of others that begin alike; how soon "
        "an answer comes then tells what others asked",
    )
    open_metrics: bool = Field(default=False, description="/metrics without a key")
    max_body_bytes: int = Field(default=4 << 20, ge=1024, description="a longer body is refused")
    max_connections: int | None = Field(
        default=None,
        ge=1,
        description="open connections (503); null: twice max_running_requests + max_queued_requests",
    )
    header_timeout: float = Field(
        default=10.0, gt=0, description="seconds for the headers of a request, from the connection's start on"
    )
    body_timeout: float = Field(default=30.0, gt=0, description="seconds for a body to arrive")
    max_n: int = Field(default=8, ge=1, description="answers to one request, at the most")
    max_prompt_tokens: int | None = Field(default=None, ge=1, description="null: the model's context")
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="a request may ask for no more; null: the model's context"
    )
    max_running_requests: int = Field(default=64, ge=1, description="answers written at once")
    max_queued_requests: int = Field(
        default=256, ge=0, description="requests that may wait; further ones are told to come back (503)"
    )
    max_requests_per_tenant: int | None = Field(
        default=None, ge=1, description="running and waiting requests of one tenant (429); null: no limit"
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="of one tenant (429); null: no limit"
    )
    shed_speculation_above: float | None = Field(
        default=0.75,
        ge=0,
        description="from this load on, running and waiting over max_running_requests, new answers are "
        "the target's alone; null: never",
    )
    request_timeout: float = Field(
        default=600.0, gt=0, description="seconds for a request with its wait (504)"
    )
    first_token_timeout: float = Field(
        default=300.0, gt=0, description="seconds until an answer's first words, its wait included (504)"
    )
    send_timeout: float = Field(
        default=60.0, gt=0, description="seconds that a client may leave what it is sent unread"
    )
    ping_seconds: float = Field(
        default=15.0, gt=0, description="a stream that is silent for so long sends a comment"
    )
    pace_streams: Literal["none", "untrusted", "all"] = Field(
        default="untrusted",
        description="whose streams are sent at an even pace, so that they do not show what was drafted",
    )
    stream_interval: float = Field(
        default=0.1, gt=0, le=10, description="seconds from one piece of a paced stream to the next"
    )
    stream_chars: int = Field(
        default=256, ge=1, description="characters of an answer in a piece of a paced stream, at the most"
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, description="for requests under way to end when the server is told to stop"
    )
    save_seconds: float = Field(
        default=60.0, gt=0, description="what the suffix cache learnt is kept so often, if suffix.path is set"
    )
    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = Field(
        default="reasoning", description="where thinking stands in answers"
    )
    log_prompts: bool = Field(default=False, description="write bodies of requests into the log")
