"""Tables of predictions: what is found for the end of a text, and what noise makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.acceptance import choose_token
from reason_spec.speculation.draft_tree import NextTokens
from reason_spec.speculation.recycling import WIDTH, RecycledTokens, with_noise
from reason_spec.types import NoiseKey, Sampling


def test_the_longest_known_end_of_a_text_decides() -> None:
    table = RecycledTokens((2, 1))
    table.learn([1, 2], NextTokens((3,), (0.9,)))
    table.learn([7, 2], NextTokens((4,), (0.6,)))
    assert table.find([5, 1, 2]).tokens == (3,)
    assert table.find([7, 2]).tokens == (4,)
    assert table.find([5, 2]).tokens == (4,), "of an unknown pair, what came last after the token"
    assert table.find([2]).tokens == (4,)
    assert not table.find([9]).tokens
    assert not table.find([]).tokens


def test_the_newest_prediction_replaces_older_ones() -> None:
    table = RecycledTokens()
    table.learn([2], NextTokens((3, 4), (0.5, 0.4)))
    table.learn([2], NextTokens((5,), (0.7,)))
    assert table.find([2]) == NextTokens((5,), (0.7,))


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=WIDTH, unique=True), min_size=1, max_size=12)
)
def test_an_average_is_the_mean_of_all_predictions_that_fit(rounds: list[list[int]]) -> None:
    table = RecycledTokens((2,), averages=True)
    for tokens in rounds:
        table.learn([1, 2], NextTokens(tuple(tokens), (1.0 / len(tokens),) * len(tokens)))
    found = table.find([1, 2])
    assert len(found.tokens) <= WIDTH
    assert sum(found.chances) <= 1.0 + 1e-9
    assert list(found.chances) == sorted(found.chances, reverse=True)
    if len({token for tokens in rounds for token in tokens}) <= WIDTH:
        for token, chance in zip(*found, strict=True):
            mean = sum((token in tokens) / len(tokens) for tokens in rounds) / len(rounds)
            assert chance == pytest.approx(mean)


def test_what_was_used_least_recently_is_forgotten() -> None:
    table = RecycledTokens(max_contexts=3)
    for token in range(5):
        table.learn([token], NextTokens((9,), (0.5,)))
    assert len(table) == 3
    assert not table.find([1]).tokens
    assert table.find([2]).tokens == (9,)
    table.learn([5], NextTokens((9,), (0.5,)))
    assert table.find([2]).tokens, "it was found again"
    assert not table.find([3]).tokens


def test_rejected_drafts_replace_no_context_of_a_text() -> None:
    table = RecycledTokens((4, 2, 1), max_contexts=3, vocab_size=100)
    table.learn([1, 2, 3, 4], NextTokens((5,), (0.9,)))
    for token in range(10, 60):
        table.learn([1, 2, 3, token], NextTokens((6,), (0.5,)), is_rejected=True)
    assert table.find([1, 2, 3, 4]).tokens == table.find([3, 4]).tokens == (5,)
    assert table.find([3, 59]).tokens == (6,), "the last ones are kept beside them"
    assert len(table) == 3 + 50 + 2
    assert all(table.find([token]).tokens == (6,) for token in range(10, 60))


def test_each_length_has_its_own_room_and_single_tokens_that_of_the_vocabulary() -> None:
    table = RecycledTokens((2, 1), max_contexts=3, vocab_size=20)
    for token in range(20):
        table.learn([token, token], NextTokens((9,), (0.5,)))
    assert len(table) == 3 + 20
    assert all(table.find([token]).tokens for token in range(20))


@given(st.integers(0, 500), st.floats(0.2, 1.5))
def test_the_likeliest_token_with_noise_is_the_one_that_the_target_chooses(
    position: int, temperature: float
) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    sampling = Sampling(temperature, noise=NoiseKey(5))
    found = with_noise(NextTokens((0, 1, 2, 3), (0.4, 0.3, 0.2, 0.1)), sampling, position, 4)
    assert found.tokens[0] == choose_token(logits, sampling, position)
    assert list(found.chances) == sorted(found.chances, reverse=True)
    assert sum(found.chances) == pytest.approx(1.0)


def test_a_greedy_text_takes_predictions_as_they_are() -> None:
    predicted = NextTokens((3, 1), (0.6, 0.2))
    assert with_noise(predicted, Sampling(), 7, 4) == predicted
    assert with_noise(NextTokens(), Sampling(0.7), 7, 4) == NextTokens()
