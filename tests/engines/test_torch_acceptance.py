"""Relaxed acceptance in the step loop: exact at its strict ends and under constraints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from reason_spec.engines.generation import EngineRequest
from reason_spec.speculation.acceptance import truncated_probabilities
from reason_spec.types import Acceptance, Constraint, NoiseKey, Prefix, Sampling, TokenDrafterName
from tests.engines.tiny_models import LENGTH, NUM_PROMPTS, Served, prompt, spoiled, write

STRICT = [Acceptance("cascade", 0.0), Acceptance("lenient", 1.0, 0)]
LOOSE = [Acceptance("cascade", 1.0), Acceptance("lenient", 0.0, 0)]


def request_of(index: int, **options: Any) -> EngineRequest:
    return replace(EngineRequest(Prefix(prompt(index)), LENGTH), **options)


@settings(max_examples=10)
@given(
    st.integers(0, NUM_PROMPTS - 1),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from(["none", "prompt_lookup", "recycling"]),
)
def test_at_the_strict_end_wrong_drafts_change_nothing(
    qwen: Served, index: int, place: int, temperature: float, drafter: str
) -> None:
    sampling = Sampling(temperature, noise=NoiseKey(7, index))
    plain = write(qwen.scheduler(), request_of(index, sampling=sampling))
    for acceptance in STRICT:
        drafted = request_of(
            index,
            sampling=sampling,
            hint=spoiled(plain.tokens, place),
            token_drafter=drafter,
            acceptance=acceptance,
        )
        assert write(qwen.scheduler(kept_prediction_bytes=0), drafted).tokens == plain.tokens


@pytest.mark.parametrize("acceptance", LOOSE)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_at_the_loose_end_a_hint_is_taken_as_it_is(
    qwen: Served, acceptance: Acceptance, temperature: float
) -> None:
    sampling = Sampling(temperature, noise=NoiseKey(3))
    plain = write(qwen.scheduler(), request_of(0, sampling=sampling))
    hint = spoiled(plain.tokens, 2)[:12]
    drafted = request_of(0, sampling=sampling, hint=hint, acceptance=acceptance)
    found = write(qwen.scheduler(), drafted)
    assert hint != plain.tokens[:12]
    assert found.tokens[:12] == hint
    # The keys and values of accepted tokens are right: the log-probabilities are those of the plain forward.
    logits = qwen.logits([*prompt(0), *found.tokens])[len(prompt(0)) - 1 : -1]
    expected = torch.log_softmax(logits.float(), -1)[range(len(found.tokens)), list(found.tokens)]
    np.testing.assert_allclose(found.logprobs, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("drafter", ["prompt_lookup", "recycling", "stand"])
@pytest.mark.parametrize("acceptance", LOOSE)
def test_copied_tokens_are_accepted_exactly(
    qwen: Served, acceptance: Acceptance, drafter: TokenDrafterName
) -> None:
    period = prompt(0)[:4]
    repeating = replace(request_of(0), prefix=Prefix((*period, *period, *period)))
    plain = write(qwen.scheduler(), repeating)
    copying = replace(repeating, token_drafter=drafter, acceptance=acceptance)
    copied = write(qwen.scheduler(), copying)
    assert copied.usage.num_drafted_tokens > copied.usage.num_accepted_draft_tokens
    assert copied.tokens == plain.tokens
    hinted = write(qwen.scheduler(), replace(copying, hint=tuple(period)))
    assert hinted.tokens[:4] == tuple(period), "a hint that a lookup repeats is a model's"


@pytest.mark.parametrize("acceptance", LOOSE)
def test_a_constraint_keeps_acceptance_exact(qwen: Served, acceptance: Acceptance) -> None:
    constrained = request_of(1, constraint=Constraint(regex="[a-f]{8,20}"))
    plain = write(qwen.scheduler(), constrained)
    hint = tuple(97 + token % 6 for token in range(8))
    assert hint != plain.tokens[:8]
    drafted = replace(constrained, hint=hint, acceptance=acceptance)
    assert write(qwen.scheduler(), drafted).tokens == plain.tokens


def test_a_biased_token_is_accepted_by_its_biased_probability(qwen: Served) -> None:
    banned = write(qwen.scheduler(), request_of(2)).tokens[0]
    drafted = request_of(
        2, hint=(banned,), logit_bias=((banned, -1000.0),), acceptance=Acceptance("cascade", 0.9)
    )
    assert write(qwen.scheduler(), drafted).tokens[0] != banned


def test_sampled_tokens_of_a_cascade_are_distributed_as_its_rule_says(qwen: Served) -> None:
    """The hint is the same token each time: its probability is one where the rule takes it, else p's."""
    logits = qwen.logits(prompt(0))[-1].numpy()
    sampling = Sampling(1.0, top_k=8)
    p = truncated_probabilities(logits, sampling)
    ranked = np.argsort(-p)
    alpha = 1.0 - float(p[ranked[2]] + p[ranked[3]]) / 2 / float(p[ranked[0]])
    scheduler = qwen.scheduler(kept_prediction_bytes=0)

    def draws(hinted: int) -> np.ndarray:
        counts = np.zeros(len(p))
        for number in range(400):
            keyed = replace(sampling, noise=NoiseKey(11, number))
            one = EngineRequest(
                Prefix(prompt(0)), 2, sampling=keyed, hint=(hinted,), acceptance=Acceptance("cascade", alpha)
            )
            counts[write(scheduler, one, number).tokens[0]] += 1
        return counts

    accepted = int(ranked[2])
    assert draws(accepted)[accepted] == 400
    counts = draws(int(ranked[3]))
    assert chisquare(counts[p > 0], p[p > 0] * 400).pvalue > 1e-4
