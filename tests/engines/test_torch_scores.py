"""Scores of a continuation are the model's log-probabilities, and share cached keys and values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest, Score
from reason_spec.engines.torch import scheduler as scheduler_module
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.types import Prefix
from tests.engines.tiny_models import (
    Counting,
    Served,
    drain,
    prompt,
    write,
)


@settings(max_examples=25)
@given(st.integers(1, 80), st.integers(0, 60), st.sampled_from([16, 64]), st.booleans(), st.booleans())
def test_scores_are_the_modules_log_softmax(
    qwen: Served, num_prefix: int, num_continuation: int, chunk: int, warm: bool, crowded: bool
) -> None:
    text = tuple(np.random.default_rng(num_prefix).integers(0, 260, num_prefix + num_continuation).tolist())
    prefix, continuation = text[:num_prefix], text[num_prefix:]
    scheduler = qwen.scheduler(prefill_chunk=chunk)
    if warm:
        write(scheduler, EngineRequest(Prefix(text[: num_prefix + num_continuation // 2]), 1), 7)
    if crowded:
        scheduler.submit(8, EngineRequest(Prefix(prompt(3)), 6))
    scheduler.score(1, Prefix(prefix), continuation)
    score = drain(scheduler)[1]
    assert isinstance(score, Score)
    logprobs = torch.log_softmax(qwen.logits(text), -1)[num_prefix - 1 : -1]
    np.testing.assert_allclose(
        score.logprobs, logprobs[torch.arange(num_continuation), list(continuation)], atol=2e-4
    )
    assert score.best == tuple(logprobs.argmax(-1).tolist())
    assert score.usage.num_scored_tokens == num_continuation
    if warm and num_continuation:
        # The prediction behind the prefix is kept only where the prefix was a whole prompt.
        whole_prompt = num_continuation // 2 == 0
        assert score.usage.num_cached_prompt_tokens == num_prefix - (not whole_prompt)


def test_scored_tokens_are_not_run_again_when_they_are_accepted(qwen: Served) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    scheduler.score(0, Prefix(prompt(3)), prompt(4))
    drain(scheduler)
    assert counting.num_run == len(prompt(3) + prompt(4)) - 1
    result = write(scheduler, EngineRequest(Prefix(prompt(3) + prompt(4)), 1), 1)
    assert result.usage.num_cached_prompt_tokens == len(prompt(3) + prompt(4)) - 1
    assert counting.num_run == len(prompt(3) + prompt(4))


def test_a_prefix_scored_again_is_not_run_again(qwen: Served) -> None:
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, debug=True)
    exact = torch.log_softmax(qwen.logits(prompt(3)), -1)[-1]
    for number, token in enumerate([5, 6, 7]):
        scheduler.score(number, Prefix(prompt(3)), (token, 9))
        score = drain(scheduler)[number]
        assert isinstance(score, Score)
        np.testing.assert_allclose(score.logprobs[0], exact[token], atol=2e-4)
    assert counting.times_run[prompt(3)] == 1
    assert counting.num_run == len(prompt(3)) + 3


def test_only_scored_tokens_are_read_in_small_chunks(qwen: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "_MAX_SCORE_LOGITS", 0)
    counting = Counting(qwen)
    scheduler = Scheduler(counting, qwen.tokenizer, num_slots=2048, prefill_chunk=64, debug=True)
    text = tuple(range(100, 180))
    scheduler.score(0, Prefix(text[:50]), text[50:])
    score = drain(scheduler)[0]
    assert isinstance(score, Score)
    assert len(score.logprobs) == 30
    # 49 tokens without predictions and 15 with, then 15 more.
    assert [len(layout.tokens) for layout in counting.layouts] == [64, 15]


def test_a_score_that_does_not_fit_says_why(qwen: Served) -> None:
    scheduler = qwen.scheduler()
    scheduler.score(0, Prefix((1,) * 200), (2,) * 100)
    assert "no room" in str(drain(scheduler)[0])
