"""Samples of one problem draft for each other, in fewer passes and with the same tokens; no one else does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from reason_spec.engines.base import EngineRequest, GenerationResult, Tokenizer
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.pair import SAMPLE_PATH, embedded_path
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
