"""Samples of one problem draft for each other, in fewer passes and with the same tokens; no one else does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.generation import EngineRequest, GenerationResult, Score
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.pair import SAMPLE_PATH, embedded_path
from reason_spec.segment import Boundary
from reason_spec.settings import EngineSettings
from reason_spec.types import NoiseKey, Prefix, Sampling
from tests.engines.tiny_models import drain

QUESTIONS = [json.loads(line)["question"] for line in SAMPLE_PATH.read_text().splitlines()][:2]
NUM_SAMPLES = 4


class Constant(PassTimes):
    """Drafts cost nothing, so the number of passes does not depend on the machine."""

    @property
    def least_chance(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def target() -> tuple[Model, Tokenizer]:
    torch.set_num_threads(1)
    folder = str(embedded_path("target"))
    return load_model(EngineSettings(model=folder, cache_tokens=4096)), load_tokenizer(folder, None)


def samples(tokenizer: Tokenizer, question: str, siblings: str = "", tenant: str = "") -> list[EngineRequest]:
    prefix = Prefix(tokenizer.encode_chat([{"role": "user", "content": question}]), owner=tenant)
    return [
        EngineRequest(
            prefix,
            80,
            sampling=Sampling(temperature=0.8, noise=NoiseKey(sample=number)),
            siblings=siblings,
            cache_key=(tenant, ""),
        )
        for number in range(NUM_SAMPLES)
    ]


def write(scheduler: Scheduler, requests: Sequence[EngineRequest]) -> list[GenerationResult]:
    """Write requests at once."""
    for number, request in enumerate(requests):
        scheduler.submit(number, request)
    results = drain(scheduler)
    found = [results[number] for number in range(len(requests))]
    assert all(isinstance(one, GenerationResult) for one in found)
    return found  # type: ignore[return-value]


def num_passes(results: Sequence[GenerationResult]) -> int:
    return sum(result.usage.num_passes for result in results)


def scheduler_of(target: tuple[Model, Tokenizer]) -> Scheduler:
    return Scheduler(*target, num_slots=4096, pass_times=Constant(), debug=True)


def test_running_samples_draft_for_each_other(target: tuple[Model, Tokenizer]) -> None:
    alone = write(scheduler_of(target), samples(target[1], QUESTIONS[0]))
    apart = samples(target[1], QUESTIONS[0])
    apart = [replace(request, siblings=f"problem {number}") for number, request in enumerate(apart)]
    own = write(scheduler_of(target), apart)
    shared = write(scheduler_of(target), samples(target[1], QUESTIONS[0], "problem"))
    assert [one.tokens for one in shared] == [one.tokens for one in own] == [one.tokens for one in alone]
    assert num_passes(shared) < num_passes(own) <= num_passes(alone)


def test_finished_samples_draft_for_later_ones_of_their_tenant_alone(target: tuple[Model, Tokenizer]) -> None:
    first, second, *_ = samples(target[1], QUESTIONS[1], "problem", "a")
    _, of_another, *_ = samples(target[1], QUESTIONS[1], "problem", "b")
    (cold,) = write(scheduler_of(target), [second])
    scheduler = scheduler_of(target)
    write(scheduler, [first])
    (foreign,) = write(scheduler, [of_another])
    (warm,) = write(scheduler, [second])
    assert cold.tokens == foreign.tokens == warm.tokens
    assert foreign.usage == cold.usage
    assert warm.usage.num_passes < cold.usage.num_passes


def test_long_contexts_of_siblings_are_those_of_their_texts(target: tuple[Model, Tokenizer]) -> None:
    scheduler = scheduler_of(target)
    requests = samples(target[1], QUESTIONS[0], "problem")
    results = write(scheduler, requests)
    assert sum(result.usage.num_drafted_tokens > result.usage.num_accepted_draft_tokens for result in results)
    texts = [
        (*request.prefix.to_tuple(), *result.tokens)
        for request, result in zip(requests, results, strict=True)
    ]
    pieces = {text[end - 8 : end] for text in texts for end in range(8, len(text) + 1)}
    (table,) = scheduler._siblings.values()
    assert set(table._seen[8]) <= pieces


@pytest.mark.parametrize("num_samples", [1, 2, NUM_SAMPLES])
def test_samples_that_start_together_compute_their_prompt_once(
    target: tuple[Model, Tokenizer], num_samples: int
) -> None:
    requests = [
        replace(request, prefix=Prefix(request.prefix.to_tuple()))
        for request in samples(target[1], QUESTIONS[0])[:num_samples]
    ]
    num_prompt_tokens = len(requests[0].prefix)
    scheduler = scheduler_of(target)
    for number, request in enumerate(requests):
        scheduler.submit(number, request)
    scheduler.step()
    assert scheduler.num_tokens_run == num_prompt_tokens
    results = [result for result in drain(scheduler).values() if isinstance(result, GenerationResult)]
    prefilled = [result.usage.num_prefilled_tokens for result in results]
    assert sorted(prefilled) == [*[0] * (num_samples - 1), num_prompt_tokens]


def test_a_prompt_longer_than_a_pass_is_computed_once(target: tuple[Model, Tokenizer]) -> None:
    requests = samples(target[1], QUESTIONS[0])
    scheduler = Scheduler(*target, num_slots=4096, prefill_chunk=24, pass_times=Constant(), debug=True)
    results = write(scheduler, requests)
    assert sum(result.usage.num_prefilled_tokens for result in results) == len(requests[0].prefix)
    assert [one.tokens for one in results] == [one.tokens for one in write(scheduler_of(target), requests)]


def test_the_entropy_before_a_step_is_that_of_the_models_distribution(
    target: tuple[Model, Tokenizer],
) -> None:
    request = replace(samples(target[1], QUESTIONS[0])[0], boundary=Boundary())
    scheduler = scheduler_of(target)
    (first,) = write(scheduler, [request])
    # The second time the prediction of the prompt is kept, and no pass computes it.
    (again,) = write(scheduler, [replace(request, sampling=Sampling())])
    (whole,) = write(scheduler, [replace(request, boundary=None)])
    vocabulary = range(target[0].vocab_size)
    prompt = request.prefix.to_tuple()
    for number, token in enumerate(vocabulary):
        scheduler.score(number, Prefix(prompt), (token,))
    scores = [score for _, score in sorted(drain(scheduler).items()) if isinstance(score, Score)]
    logprobs = torch.tensor([score.logprobs[0] for score in scores])
    assert len(logprobs) == target[0].vocab_size
    expected = float(-(logprobs.exp() * logprobs).sum())
    assert first.first_entropy == pytest.approx(expected, abs=1e-4)
    assert again.first_entropy == pytest.approx(expected, abs=1e-4)
    assert whole.first_entropy is None
