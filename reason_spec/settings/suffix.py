"""The settings of the suffix cache."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from reason_spec.settings.base import Section


class SuffixSettings(Section):
    """Settings of the suffix cache: learning, proposals and storage."""

    use: Literal["none", "tokens", "steps", "both"] = Field(
        default="none", description="drafts from earlier texts: tokens, whole steps, or both"
    )
    rule: Literal["ours", "published"] = Field(
        default="ours",
        description="how tokens are drafted: ours, or SuffixDecoding as published (arXiv 2411.04975), for "
        "comparison",
    )
    max_spec_factor: float = Field(
        default=1.0,
        gt=0,
        description="published: draft tokens for each matched token (the paper's alpha, 1-4)",
    )
    min_score: float = Field(
        default=0.0,
        ge=0,
        description="published: other sources draft where the expected accepted tokens are no more (tau)",
    )
    path: Path | None = Field(default=None, description="folder of the cache; null: in memory only")
    tenant: str = Field(default="default", min_length=1, description="owner of the texts")
    reads: tuple[str, ...] = Field(
        default=(), description="other tenants of the folder whose texts are proposed too"
    )
    max_bytes: int = Field(
        default=256 << 20,
        ge=1 << 16,
        description="limit of a tenant's index in each process, and of its file",
    )
    max_total_bytes: int = Field(
        default=4 << 30,
        ge=1 << 16,
        description="limit of all tenants' indices in each process: the least recently used ones without an "
        "open conversation are dropped, saved ones after a save",
    )
    min_chance: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="minimum probability of a draft token; null: 0.1, down to 0.05 if a pass has room "
        "for 16 or more",
    )
