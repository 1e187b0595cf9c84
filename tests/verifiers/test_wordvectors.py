"""Word vectors decide what lies far from the threshold, and only beside the model they come from."""

from __future__ import annotations

import asyncio

import pytest

from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import VerificationContext
from reason_spec.verifiers.encoder import SentenceEncoder
from reason_spec.verifiers.semantic import SemanticVerifier

A = "Next, we calculate the distance that the train travels in all."
REWORDED = "Now we calculate the distance that the train travels in all."
OTHER = "Bananas ripen in the sun while sailors sing."


def judge(encoder: SentenceEncoder, b: str, threshold: float | None = None) -> Verdict:
    steps = Step(A, (), "draft", "boundary"), Step(b, (), "target", "boundary")
    return asyncio.run(SemanticVerifier(encoder, threshold, 120).verify(VerificationContext(), *steps))


def test_the_estimate_follows_the_cosine_at_both_ends(minilm: SentenceEncoder) -> None:
    near, far = minilm.estimate(A, REWORDED), minilm.estimate(A, OTHER)
    assert near is not None
    assert far is not None
    assert near > 0.9 > 0.6 > far
    assert minilm.estimate(A, A) == pytest.approx(1.0)
    assert minilm.estimate(A, "") == 0.0


def test_what_the_words_decide_is_not_encoded(minilm: SentenceEncoder) -> None:
    before = minilm.num_encoded_texts
    assert judge(minilm, REWORDED).accepted
    assert judge(minilm, OTHER).decision == "unknown"
    assert minilm.num_encoded_texts == before


def test_a_stricter_threshold_is_left_to_the_model(minilm: SentenceEncoder) -> None:
    assert "cosine" in judge(minilm, REWORDED, 0.9).reason


def test_a_model_that_is_not_loaded_estimates_nothing() -> None:
    assert SentenceEncoder().estimate(A, REWORDED) is None
