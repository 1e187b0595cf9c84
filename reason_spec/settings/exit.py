"""Settings of early exit: by which rule the thinking may end, and how trial answers are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

from pydantic import Field, model_validator

from reason_spec.settings.base import Section

ExitRuleName: TypeAlias = Literal["none", "policy", "probes", "deer", "dynasor"]


class ExitSettings(Section):
    """When the thinking ends before the model ends it; loss class ``shortened``."""

    rule: ExitRuleName = Field(
        default="none",
        description="policy: what the text says; probes: that and trial answers; deer, dynasor: trial "
        "answers as published; none: the model ends its thinking",
    )
    policy: Path | None = Field(
        default=None, description="policy, probes: file of `exit train` or `tune exit`; null: the shipped one"
    )
    read_along: bool = Field(
        default=False,
        description="policy, probes: use the shipped policy for which a small model reads along; it saves "
        "more, and takes `models:smollm2-gsm8k` and some 40 ms of two cores for each statement",
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="policy, probes: least chance of the answer without a trial; null: the policy's",
    )
    answer_prompt: str | None = Field(
        default=None,
        min_length=1,
        description="begins the answer of a model that does not mark its thinking, such as `The answer is`; "
        "null: a box, or the words of the demonstration pair",
    )
    probe_prompt: str | None = Field(
        default=None,
        min_length=1,
        description="text after which a trial answer is written; null: that of the rule",
    )
    probe_by: Literal["target", "draft_first"] = Field(
        default="target",
        description="draft_first: the target is asked only where the draft is confident of its trial answer",
    )
    probe_tokens: int = Field(default=20, ge=1, le=256, description="most tokens of a trial answer")
    probe_every: int = Field(default=64, ge=1, description="dynasor: tokens between two trials")
    most_probes: int = Field(
        default=10, ge=1, description="deer, probes: trials of one answer; after these only the text decides"
    )
    agreeing: int | None = Field(
        default=None,
        ge=1,
        description="probes, dynasor: trials in a row that must agree; null: probes 2, dynasor 5",
    )
    confidence: float = Field(
        default=0.95,
        ge=0,
        le=1,
        description="deer, probes: least geometric mean of the probabilities of a trial answer's tokens",
    )
    least_chance: float = Field(
        default=0.8, ge=0, le=1, description="probes: least chance of the answer beside agreeing trials"
    )
    deadline: float = Field(
        default=5.0, gt=0, description="seconds for one trial; then its answer is unknown"
    )

    @model_validator(mode="after")
    def _has_one_policy(self) -> ExitSettings:
        if self.read_along and self.policy is not None:
            raise ValueError(
                "exit.read_along chooses a policy that ships: leave out it or exit.policy, whose file says "
                "itself whether a model reads along"
            )
        return self

    @property
    def is_on(self) -> bool:
        return self.rule != "none"


NO_EXIT: Final = ExitSettings()
"""The model ends its thinking itself."""
