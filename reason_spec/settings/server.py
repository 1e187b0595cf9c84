"""The settings of the HTTP server: its address, who may use it, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from reason_spec.settings.base import Names, Section

API_KEY_VARIABLE = "REASON_SPEC_API_KEY"
"""Environment variable that may hold one key; the one variable with the prefix that is no setting."""


class PredictedCallsSettings(Section):
    """Calls that `reason-spec serve` predicts and sends to trusted clients before the model writes them."""

    model_config = ConfigDict(allow_inf_nan=False)

    use: bool = Field(
        default=False, description="predict calls to tools that only read, and send them to trusted clients"
    )
    read_only: Names = Field(
        default=(),
        description="tools that only read, beside those that a request marks: NAME or NAME(ARGUMENT=VALUE)",
    )
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="least probability of a call that is sent; null: the model's"
    )
    max_conversations: int = Field(
        default=64, ge=1, description="past conversations of a tenant that are learned from"
    )
    model: Path | None = Field(
        default=None,
        description="file of `benchmarks/agent_replay.py --save-model`; null: the one that ships",
    )


class ServerSettings(Section):
    """How `reason-spec serve` treats its clients; not part of the hash that names a run."""

    model_config = ConfigDict(allow_inf_nan=False)

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on; others than localhost need keys"
    )
    port: int = Field(default=8000, ge=0, le=65535, description="0: any free port")
    served_models: Names = Field(default=(), description="names of the model; empty: that of the target")
    api_keys_file: Path | None = Field(
        default=None, description="hashes of keys and their tenants, from `reason-spec keys new`"
    )
    trusted: bool = Field(
        default=True,
        description="clients without a key, or with the key of REASON_SPEC_API_KEY, may send `reason_spec` "
        "and get the speculation report",
    )
    allowed_hosts: Names = Field(
        default=(), description="additional Host headers that a server without keys accepts"
    )
    share_prefixes: bool = Field(
        default=False,
        description="tenants share the KV cache of equal prefixes; response times then reveal the prompts "
        "of others",
    )
    open_metrics: bool = Field(
        default=False, description="/metrics needs no key, instead of that of a trusted client"
    )
    max_body_bytes: int = Field(default=4 << 20, ge=1024, description="maximum size of a body (413)")
    body_timeout: float = Field(default=30.0, gt=0, description="seconds for a body to arrive (408)")
    max_n: int = Field(default=8, ge=1, description="maximum number of answers to one request")
    max_prompt_tokens: int | None = Field(default=None, ge=1, description="null: the model's context")
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="maximum of max_tokens in a request; null: the model's context"
    )
    max_running_requests: int = Field(default=64, ge=1, description="answers at once")
    max_queued_requests: int = Field(default=256, ge=0, description="waiting requests (503)")
    max_requests_per_tenant: int | None = Field(
        default=None, ge=1, description="running and waiting requests of one tenant (429); null: no limit"
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="requests of one tenant (429); null: no limit"
    )
    request_timeout: float = Field(
        default=600.0, gt=0, description="seconds for a request, waiting included (504)"
    )
    first_token_timeout: float = Field(
        default=300.0, gt=0, description="seconds until the first token, waiting included (504)"
    )
    pace_streams: Literal["none", "untrusted", "all"] = Field(
        default="untrusted",
        description="clients whose streams are sent at an even pace, which hides the timing of drafts",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, description="seconds for running requests to end when the server stops"
    )
    save_seconds: float = Field(
        default=60.0, gt=0, description="interval at which the suffix cache is saved, if suffix.path is set"
    )
    learn_folder: Path | None = Field(
        default=None,
        description="folder in which answers are kept, as tokens, for `draft adapt`; the server then tries "
        "the versions of the draft that it makes; null: neither",
    )
    learn_excludes: Names = Field(
        default=(), description="tenants whose answers are not kept; earlier ones are deleted"
    )
    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = Field(
        default="reasoning", description="response field of the thinking"
    )
    log_prompts: bool = Field(default=False, description="log the bodies of requests")
    predicted_calls: PredictedCallsSettings = PredictedCallsSettings()
