"""Choosing tokens and accepting drafts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from reason_spec.speculation.acceptance import (
    accept,
    choose_token,
    gumbel_noise,
    gumbel_noise_of,
    truncate,
    truncated_probabilities,
)
from reason_spec.speculation.tree import ROOT
from reason_spec.types import NoiseKey, Sampling
from tests.speculation.trees import merged

logit_lists = st.lists(
    st.floats(-20, 20, allow_nan=False, width=32), min_size=2, max_size=40
).map(lambda values: np.array(values, dtype=np.float32))  # fmt: skip
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.1, 3.0),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1.0),
    noise=st.builds(NoiseKey, st.integers(-3, 2**64 - 1), st.integers(0, 10**6), st.integers(0, 100)),
)


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert choose_token(np.array([1.0, 3.0, 3.0, 2.0]), Sampling(), 7) == 1


@given(logit_lists, samplings, st.integers(0, 10**6))
def test_a_choice_is_a_function_of_its_key_and_position(
    logits: np.ndarray, sampling: Sampling, position: int
) -> None:
    token = choose_token(logits, sampling, position)
    assert token == choose_token(logits.copy(), sampling, position)
    assert token in truncate(logits, sampling).ids


@given(st.integers(2, 50), st.integers(0, 100), st.integers(0, 10**9))
def test_padding_of_the_vocabulary_changes_no_noise(size: int, extra: int, position: int) -> None:
    key = NoiseKey(3, 4, 5)
    np.testing.assert_array_equal(
        gumbel_noise(key, position, size), gumbel_noise(key, position, size + extra)[:size]
    )


@given(
    st.lists(st.integers(0, 19_999), max_size=10),
    st.sampled_from([20_000, 151_936]),
    st.integers(0, 1000),
    st.integers(0, 9),
)
def test_the_noise_of_a_few_ids_is_that_of_the_whole_vocabulary(
    ids: list[int], size: int, position: int, seed: int
) -> None:
    key = NoiseKey(seed, problem=seed)
    few = gumbel_noise_of(ids, key, position, size)
    np.testing.assert_allclose(few, gumbel_noise(key, position, size)[ids], rtol=1e-12)


def test_every_part_of_the_key_changes_the_noise() -> None:
    keys = [NoiseKey(), NoiseKey(seed=1), NoiseKey(problem=1), NoiseKey(sample=1)]
    rows = [gumbel_noise(key, 0, 8) for key in keys] + [gumbel_noise(NoiseKey(), 1, 8)]
    assert len({row.tobytes() for row in rows}) == len(rows)


def test_noise_of_neighbouring_keys_is_uncorrelated() -> None:
    rows = np.array([gumbel_noise(NoiseKey(0, problem, sample), position, 200)
                     for problem in range(4) for sample in range(4) for position in range(4)])  # fmt: skip
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert np.abs(correlations).max() < 0.4
    assert abs(rows.mean() - 0.5772) < 0.03


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.6, top_k=5),
        Sampling(temperature=1.3, top_p=0.8),
        Sampling(temperature=0.7, top_k=6, top_p=0.9),
    ],
)
def test_choices_are_distributed_as_the_truncated_softmax(sampling: Sampling) -> None:
    logits = np.random.default_rng(0).normal(0, 1.5, 12)
    expected = truncated_probabilities(logits, sampling)
    keys = [NoiseKey(1, index // 50, index % 50) for index in range(8000)]
    draws = [
        choose_token(logits, Sampling(sampling.temperature, sampling.top_k, sampling.top_p, key), 11)
        for key in keys
    ]
    counts = np.bincount(draws, minlength=12)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert chisquare(counts[kept], expected[kept] * len(draws)).pvalue > 1e-4
    # The test can fail: the distribution without temperature and truncation is told apart.
    raw = truncated_probabilities(logits, Sampling(temperature=2.0))
    assert chisquare(counts, raw * len(draws)).pvalue < 1e-6


@given(logit_lists, st.integers(1, 12))
def test_top_k_keeps_k_and_their_equals(logits: np.ndarray, top_k: int) -> None:
    kept = truncate(logits, Sampling(temperature=1.0, top_k=top_k)).ids
    assert len(kept) >= min(top_k, len(logits))
    dropped = np.setdiff1d(np.arange(len(logits)), kept)
    if len(dropped):
        assert logits[dropped].max() < logits[kept].min()


@given(logit_lists, st.floats(0.05, 0.999))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits: np.ndarray, top_p: float) -> None:
    probabilities = truncated_probabilities(logits, Sampling(temperature=1.0))
    kept = truncate(logits, Sampling(temperature=1.0, top_p=top_p)).ids
    assert probabilities[kept].sum() >= top_p - 1e-9
    if len(kept) > 1:
        assert probabilities[kept].sum() - probabilities[kept].min() < top_p + 1e-9


def test_top_p_agrees_with_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.tensor(np.random.default_rng(2).normal(0, 2, (20, 50)), dtype=torch.float64)
    warped = TopPLogitsWarper(0.9)(None, TopKLogitsWarper(20)(None, logits / 0.6))
    for row, expected in zip(logits.numpy(), torch.softmax(warped, -1).numpy(), strict=True):
        np.testing.assert_allclose(truncated_probabilities(row, Sampling(0.6, 20, 0.9)), expected, atol=1e-9)


paths_of_drafts = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=4)


@given(paths_of_drafts, st.integers(0, 12), st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_what_is_accepted_is_what_plain_decoding_writes(
    paths: list[list[int]], budget: int, right: list[int]
) -> None:
    drafts = merged(paths, budget)
    asked: list[tuple[int, int]] = []

    def choose(node: int, depth: int) -> int:
        asked.append((node, depth))
        return right[depth]

    accepted = accept(drafts, choose)
    assert accepted.tokens == right[: len(accepted.tokens)]
    assert [drafts.tokens[node] for node in accepted.nodes] == accepted.tokens[:-1]
    assert asked == list(zip([ROOT, *accepted.nodes], range(len(accepted.tokens)), strict=True))
    # It goes as far as any path of the tree is right.
    agreed = [
        next((i for i, n in enumerate(path) if drafts.tokens[n] != right[i]), len(path))
        for path in drafts.paths()
    ]
    assert len(accepted.nodes) == max(agreed, default=0)


@pytest.mark.parametrize("temperature", [1e-300, 1e-308, 1e-320])
def test_a_tiny_temperature_draws_the_likeliest_token(temperature: float) -> None:
    logits = np.array([-1.0, 1.0, 20.0, 3.0], dtype=np.float32)
    for top_p in (1.0, 0.9):
        assert choose_token(logits, Sampling(temperature, top_p=top_p), 3) == 2
