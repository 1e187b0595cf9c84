"""Constrained texts in the torch engine: they fit, drafted or not, and change nothing beside them."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from reason_spec.engines import constraints
from reason_spec.engines.constraints import BackgroundCompiler, ConstraintCompiler
from reason_spec.engines.factory import create_engine
from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.errors import ConstraintError
from reason_spec.settings import EngineSettings
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


TYPES: list[TypeAdapter[Any]] = [
    TypeAdapter(Point),
    TypeAdapter(Shape),
    TypeAdapter(Literal["yes", "no", "the"]),
    TypeAdapter(list[float]),
]
LONGEST = 150


def constraint_of(adapter: TypeAdapter[Any]) -> Constraint:
    return Constraint(json_schema=json.dumps(adapter.json_schema()))


requests = st.builds(
    lambda which, schema, temperature, seed, priority: EngineRequest(
        Prefix(prompt(which)),
        LONGEST,
        sampling=Sampling(temperature, noise=NoiseKey(seed)),
        constraint=constraint_of(TYPES[schema]),
        priority=priority,
    ),
    st.integers(0, NUM_PROMPTS - 1),
    st.integers(0, len(TYPES) - 1),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 1000),
    st.integers(0, 1),
)


def run(scheduler: Scheduler, mix: list[EngineRequest]) -> list[GenerationResult]:
    for number, request in enumerate(mix):
        scheduler.submit(number, request)
    results = drain(scheduler)
    return [result for number in range(len(mix)) if isinstance(result := results[number], GenerationResult)]


def assert_fits(result: GenerationResult, request: EngineRequest) -> None:
    adapter = next(adapter for adapter in TYPES if constraint_of(adapter) == request.constraint)
    if result.finish == "length":
        assert len(result.tokens) == LONGEST
    else:
        assert result.finish == "eos"
        adapter.validate_json(result.text, strict=True)


@settings(max_examples=12)
@given(st.lists(requests, min_size=1, max_size=4), st.integers(0, 60), st.sampled_from([256, 600]))
def test_every_text_fits_its_schema_or_is_cut_and_no_draft_changes_it(
    qwen: Served, mix: list[EngineRequest], place: int, num_slots: int
) -> None:
    """Whatever is drafted, right or wrong, and whether requests wait for slots and are suspended or not."""
    plain = run(qwen.scheduler(), [replace(request, num_draft_tokens=0) for request in mix])
    for result, request in zip(plain, mix, strict=True):
        assert_fits(result, request)
    drafted = [
        replace(request, hint=spoiled(result.tokens, place), token_drafter="prompt_lookup")
        for result, request in zip(plain, mix, strict=True)
    ]
    again = run(qwen.scheduler(num_slots, kept_prediction_bytes=0, max_running=3), drafted)
    assert [result.tokens for result in again] == [result.tokens for result in plain]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_expressions_choices_and_grammars_are_kept_to(qwen: Served, temperature: float) -> None:
    pattern = r"[a-f]{3,5}(12)?\."
    kinds = [
        Constraint(regex=pattern),
        Constraint(choice=("the 123", "é", "no")),
        Constraint(grammar='start: ("ab" | "c")~3 "!"'),
    ]
    mix = [
        EngineRequest(Prefix(prompt(index % NUM_PROMPTS)), 40, Sampling(temperature, noise=NoiseKey(index)),
                constraint=kinds[index % 3])
        for index in range(18)
    ]  # fmt: skip
    results = run(qwen.scheduler(), mix)
    assert len(results) == 18
    for result, request in zip(results, mix, strict=True):
        assert result.finish == "eos"
        assert result.tokens[-1] in qwen.tokenizer.eos_ids
        match request.constraint:
            case Constraint(regex=str()):
                assert re.fullmatch(pattern, result.text)
            case Constraint(choice=(*choices,)) if choices:
                assert result.text in choices
            case _:
                assert re.fullmatch(r"(ab|c){3}!", result.text)


def test_a_text_that_is_cut_says_so_and_is_a_beginning_of_one_that_fits(qwen: Served) -> None:
    constraint = Constraint(regex="(12){6}")
    whole = write(qwen.scheduler(), EngineRequest(Prefix(prompt(1)), 30, constraint=constraint))
    cut = write(qwen.scheduler(), EngineRequest(Prefix(prompt(1)), 3, constraint=constraint))
    assert (whole.text, whole.finish) == ("12" * 6, "eos")
    assert (cut.tokens, cut.finish) == (whole.tokens[:3], "length")


def test_what_the_constraint_leaves_no_choice_about_takes_one_pass(qwen: Served) -> None:
    constraint = Constraint(choice=("This is all there is to say about it.",))
    results = [
        write(
            qwen.scheduler(),
            EngineRequest(Prefix(prompt(1)), 60, constraint=constraint, num_draft_tokens=drafts),
        )
        for drafts in (0, 60)
    ]
    assert results[0].tokens == results[1].tokens
    assert results[0].usage.num_passes == len(results[0].tokens)
    assert results[1].usage.num_passes <= 3


def test_drafts_that_break_the_constraint_are_not_run(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    request = EngineRequest(Prefix(prompt(1)), 9, constraint=Constraint(regex="[0-9]{8}"), num_draft_tokens=8)
    plain = write(qwen.scheduler(), request)
    hinted = write(qwen.scheduler(), replace(request, hint=plain.tokens[:4] + expected[1]))
    assert hinted.tokens == plain.tokens
    assert hinted.usage.num_drafted_tokens == hinted.usage.num_accepted_draft_tokens == 4


def test_neighbours_of_a_constrained_text_are_what_they_are_alone(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    """In the same pass, and behind the same prompt, whose prediction is shared."""
    constraint = constraint_of(TYPES[0])
    sampled = Sampling(0.9, 20, 0.95, NoiseKey(3))
    alone = write(qwen.scheduler(), EngineRequest(Prefix(prompt(2)), LENGTH, sampled))
    mix = [
        EngineRequest(Prefix(prompt(0)), LENGTH, constraint=constraint),
        EngineRequest(Prefix(prompt(0)), LENGTH),
        EngineRequest(Prefix(prompt(2)), LENGTH, sampled, constraint=constraint, logit_bias=((7, 50.0),)),
        EngineRequest(Prefix(prompt(2)), LENGTH, sampled),
        EngineRequest(Prefix(prompt(0)), LENGTH, constraint=Constraint(json_schema="[]")),
    ]
    scheduler = qwen.scheduler()
    for _ in range(2):
        results = run(scheduler, mix)
        assert results[1].tokens == expected[0]
        assert results[3].tokens == alone.tokens
        assert results[0].tokens != expected[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_large_bias_forces_a_token_and_its_opposite_forbids_it(qwen: Served, temperature: float) -> None:
    plain = EngineRequest(Prefix(prompt(3)), LENGTH, Sampling(temperature, noise=NoiseKey(5)))
    free = write(qwen.scheduler(), plain)
    forced = write(qwen.scheduler(), replace(plain, logit_bias=((65, 100.0),), hint=free.tokens))
    assert set(forced.tokens) == {65}
    banned = tuple((token, -100.0) for token in set(free.tokens))
    other = write(qwen.scheduler(), replace(plain, logit_bias=banned))
    assert not set(other.tokens) & set(free.tokens)
    under = replace(plain, logit_bias=((free.tokens[0], 100.0),), constraint=Constraint(regex="[0-9]{5}"))
    assert re.fullmatch("[0-9]{5}", write(qwen.scheduler(), under).text)


def test_log_probabilities_are_those_of_the_model(qwen: Served) -> None:
    request = EngineRequest(
        Prefix(prompt(4)), 20, constraint=Constraint(regex="[a-z]{12}"), logit_bias=((70, 5.0),)
    )
    result = write(qwen.scheduler(), request)
    rows = torch.log_softmax(qwen.logits(prompt(4) + result.tokens[:-1])[len(prompt(4)) - 1 :], -1)
    exact = [float(row[token]) for row, token in zip(rows, result.tokens, strict=True)]
    assert result.logprobs == pytest.approx(exact, abs=1e-3)


def test_a_request_that_cannot_be_kept_to_fails_alone(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    bad = EngineRequest(Prefix(prompt(0)), LENGTH, constraint=Constraint(json_schema='{"type": "objekt"}'))
    scheduler = qwen.scheduler()
    assert "Invalid type: objekt" in (write(scheduler, bad).error or "")
    biased = replace(bad, constraint=None, logit_bias=((999, 1.0),))
    results = run(scheduler, [bad, EngineRequest(Prefix(prompt(0)), LENGTH), biased])
    assert [result.finish for result in results] == ["failed", "length", "failed"]
    assert results[1].tokens == expected[0]
    assert "names token 999" in (results[2].error or "")
    with pytest.raises(ValueError, match="finite"):
        replace(bad, logit_bias=((1, float("nan")),))


def test_a_constraint_beyond_its_limits_fails_its_text_alone(
    qwen: Served, expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(constraints._LIMITS, "step_max_items", 60)
    words = " | ".join(f'"{chr(97 + i % 26)}" x{i}' for i in range(100))
    rules = "\n".join(f'x{i}: "{i}"' for i in range(100))
    heavy = Constraint(grammar=f"start: /[0-9]{{9}}/ word\nword: {words}\n{rules}")
    mix = [
        EngineRequest(Prefix(prompt(0)), LENGTH, constraint=heavy),
        EngineRequest(Prefix(prompt(0)), LENGTH),
    ]
    failed, beside = run(qwen.scheduler(), mix)
    assert failed.finish == "failed"
    assert "oo many items" in (failed.error or "")
    assert beside.tokens == expected[0]


def test_a_request_may_be_cancelled_while_its_constraint_is_compiled(qwen: Served) -> None:
    release = threading.Event()

    def make() -> ConstraintCompiler:
        release.wait()
        return ConstraintCompiler(qwen.tokenizer, qwen.model.vocab_size)

    scheduler = qwen.scheduler(constraints=BackgroundCompiler(make))
    constraint = Constraint(regex="[0-9]{3}")
    try:
        for number in (0, 1):
            scheduler.submit(number, EngineRequest(Prefix(prompt(0)), LENGTH, constraint=constraint))
        assert not scheduler.step().results
        scheduler.cancel(0)
        ((number, result),) = scheduler.step().results
        assert isinstance(result, GenerationResult)
        assert (number, result.finish) == (0, "cancelled")
        scheduler.submit(3, EngineRequest(Prefix(prompt(0)), 4))
        finished = [n for _ in range(8) for n, _ in scheduler.step().results]
        assert finished == [3], "others do not wait for it"
    finally:
        release.set()
    result = drain(scheduler)[1]
    assert isinstance(result, GenerationResult)
    assert re.fullmatch("[0-9]{3}", result.text)


async def test_the_embedded_target_answers_in_the_form_it_is_asked_for() -> None:
    schema = {
        "type": "object",
        "properties": {
            "answer": {"type": "integer", "minimum": 0, "maximum": 99},
            "sure": {"type": "boolean"},
        },
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    constraint = Constraint(json_schema=json.dumps(schema))
    engine = create_engine("target", EngineSettings(cache_tokens=2048))
    assert engine.takes_constraints
    await engine.start()
    try:
        question = "Ana has 3 apples. Tom has 4 more apples than Ana. How many apples does Tom have?"
        prefix = Prefix(engine.tokenizer.encode_chat([{"role": "user", "content": question}]))
        await engine.check_constraint(constraint)
        with pytest.raises(ConstraintError, match="Invalid type"):
            await engine.check_constraint(Constraint(json_schema='{"type": "number?"}'))
        samplings = [Sampling(), *(Sampling(1.0, noise=NoiseKey(seed)) for seed in range(4))]
        writing = [engine.submit(EngineRequest(prefix, 200, s, constraint=constraint)) for s in samplings]
        plain = engine.submit(EngineRequest(prefix, 200))
        results = [await generation.result() for generation in writing]
        assert sum(result.finish == "eos" for result in results) >= 3
        for result in results:
            if result.finish != "length":
                found = json.loads(result.text)
                assert set(found) == {"answer", "sure"}
                assert 0 <= found["answer"] <= 99
        beside = await plain.result()
        assert beside.tokens == (await engine.submit(EngineRequest(prefix, 200)).result()).tokens
    finally:
        await engine.close()
