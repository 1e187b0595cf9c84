"""Constrained texts in the torch engine: they fit, with and without drafts, and change nothing beside them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from reason_spec.engines.base import GenerationResult, Request
from reason_spec.types import Constraint, NoiseKey, Prefix, Sampling
from tests.engines.tiny_models import LENGTH, NUM_PROMPTS, Served, drain, prompt, spoiled, write


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Point(Strict):
    x: int = Field(ge=0, le=99)
    label: Literal["the", "123", "é"]


class Shape(Strict):
    points: list[Point] = Field(min_length=1, max_length=3)
    closed: bool
    name: str | None = Field(default=None, max_length=6)


TYPES = [
    TypeAdapter(Point),
    TypeAdapter(Shape),
    TypeAdapter(Literal["yes", "no", "the"]),
    TypeAdapter(list[float]),
]


def constraint_of(adapter: TypeAdapter) -> Constraint:
    return Constraint(json_schema=json.dumps(adapter.json_schema()))


requests = st.builds(
    lambda which, schema, temperature, seed: Request(
        Prefix(prompt(which)),
        150,
        sampling=Sampling(temperature, noise=NoiseKey(seed)),
        constraint=constraint_of(TYPES[schema]),
    ),
    st.integers(0, NUM_PROMPTS - 1),
    st.integers(0, len(TYPES) - 1),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 1000),
)


def assert_fits(result: GenerationResult, constraint: Constraint) -> None:
    adapter = next(adapter for adapter in TYPES if constraint_of(adapter) == constraint)
    if result.finish == "length":
        assert len(result.tokens) == 150
    else:
        assert result.finish == "eos"
        adapter.validate_json(result.text, strict=True)


@settings(max_examples=15)
@given(st.lists(requests, min_size=1, max_size=5), st.integers(0, 60))
def test_every_text_fits_its_schema_or_is_cut_and_no_draft_changes_it(
    qwen: Served, mix: list[Request], place: int
) -> None:
    scheduler = qwen.scheduler()
    for number, request in enumerate(mix):
        scheduler.submit(number, replace(request, num_draft_tokens=0))
    plain = drain(scheduler)
    for result, request in zip(plain.values(), mix, strict=True):
        assert isinstance(result, GenerationResult)
        assert request.constraint is not None
        assert_fits(plain[mix.index(request)], request.constraint)  # type: ignore[arg-type]
    scheduler = qwen.scheduler(kept_prediction_bytes=0)
    for number, request in enumerate(mix):
        hint = spoiled(plain[number].tokens, place)  # type: ignore[union-attr]
        scheduler.submit(number, replace(request, hint=hint, token_drafter="prompt_lookup"))
    for number, result in drain(scheduler).items():
        assert result.tokens == plain[number].tokens  # type: ignore[union-attr]
