"""Which tokens an answer has: sampling, where steps end, how questions are asked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from reason_spec.segment import AUTO, Boundary
from reason_spec.settings.base import Section
from reason_spec.types import NoiseKey, Sampling


class SamplingSettings(Section):
    """How tokens are chosen."""

    temperature: float = Field(default=0.0, ge=0, le=5, description="0: greedy")
    top_k: int = Field(default=0, ge=0, description="0: off")
    top_p: float = Field(default=1.0, gt=0, le=1, description="1: off")
    seed: int = Field(default=0, description="seed of samples and of the order of strategies")
    max_tokens: int = Field(default=1024, ge=1, description="maximum number of tokens of one answer")
    stop: tuple[str, ...] = Field(default=(), description="texts that end the answer; not part of it")

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if any(not item for item in stop):
            raise ValueError("a stop string is empty")
        return stop

    def for_sample(self, problem: int, sample: int) -> Sampling:
        """Return the sampling of one problem's sample, with noise of its own."""
        return Sampling(self.temperature, self.top_k, self.top_p, NoiseKey(self.seed, problem, sample))


class ThinkingSettings(Section):
    """Limits of the thinking before an answer, for models that think."""

    token_budget: int | None = Field(
        default=None, ge=0, description="tokens of the thinking at most, without its tags; null: no limit"
    )
    max_steps: int | None = Field(
        default=None, ge=0, description="steps of the thinking at most; null: no limit"
    )
    effort: str | None = Field(
        default=None,
        description="effort of the thinking: passed to a chat template that has `reasoning_effort`, else a "
        "budget by `effort_tokens`; none: no thinking",
    )
    effort_tokens: dict[str, Annotated[int, Field(ge=0)] | None] = Field(
        default={
            "minimal": 512,
            "low": 1024,
            "medium": 4096,
            "high": 16384,
            "xhigh": 32768,
            "max": None,
        },
        description="token budget of each effort; null: no limit",
    )
    answer_prompt: str = Field(
        default="", description="text inserted after the closing tag where a limit ends the thinking"
    )
    answer_tokens: int = Field(
        default=256,
        ge=1,
        description="tokens of `sampling.max_tokens` that a limit keeps for the answer, at most half of them",
    )


class BoundarySettings(Section):
    """Where a step ends."""

    delimiter: str = Field(
        default=AUTO,
        min_length=1,
        description="text that ends a step; auto: a blank line; in a long paragraph a line, then a sentence",
    )

    def to_boundary(self) -> Boundary:
        return Boundary(self.delimiter)


class TaskSettings(Section):
    """How questions are read and asked."""

    name: str = Field(
        default="auto",
        description="auto, gsm8k, aime, math500, amc, svamp, multiarith, spec_bench, speed_bench",
    )
    prompt: Literal["auto", "plain", "boxed", "examples"] = Field(
        default="auto",
        description="auto: plain for the demonstration pair, examples without a chat template, else boxed",
    )
    system: str | None = Field(default=None, description="a system message before the question")
