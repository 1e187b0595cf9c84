"""Relaxed rules: exact at their strict ends, and at what distance from the target beyond them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from reason_spec.speculation.acceptance import accept, choose_token, truncated_probabilities
from reason_spec.speculation.relaxed_acceptance import OWN_STREAM, accept_relaxed
from reason_spec.speculation.tree import ROOT, TokenTree
from reason_spec.types import Acceptance, NoiseKey, Sampling
from tests.speculation.trees import merged

VOCAB = 12
trees = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8), min_size=1, max_size=4).map(
    lambda paths: merged(paths, 20)
)
seeds = st.integers(0, 1000)


def predictions(seed: int) -> Callable[[int], np.ndarray]:
    """Return logits by node."""
    logits = np.random.default_rng(seed).normal(0, 1.5, (25, VOCAB))
    return lambda node: logits[node]


def greedy_relaxed(drafts: TokenTree, seed: int, acceptance: Acceptance) -> tuple[list[int], list[int]]:
    logits = predictions(seed)
    found = accept_relaxed(
        drafts,
        lambda node, _: int(np.argmax(logits(node))),
        lambda node: truncated_probabilities(logits(node), Sampling(temperature=1.0)),
        acceptance,
        greedy=True,
    )
    return found.tokens, found.nodes


@pytest.mark.parametrize(
    ("acceptance", "is_exact"),
    [
        (Acceptance(), True),
        (Acceptance("exact", 0.7, 3), True),
        (Acceptance("cascade", 0.0), True),
        (Acceptance("cascade", 0.01), False),
        (Acceptance("lenient", 1.0, 0), True),
        (Acceptance("lenient", 0.99, 0), False),
    ],
)
def test_the_strict_end_of_a_rule_is_exact(acceptance: Acceptance, is_exact: bool) -> None:
    assert acceptance.is_exact is is_exact


@given(trees, seeds)
def test_near_its_strict_end_a_greedy_rule_accepts_what_is_accepted_exactly(
    drafts: TokenTree, seed: int
) -> None:
    logits = predictions(seed)
    exact = accept(drafts, lambda node, _: int(np.argmax(logits(node))))
    for acceptance in (Acceptance("cascade", 1e-12), Acceptance("lenient", 1 - 1e-12, 0)):
        assert greedy_relaxed(drafts, seed, acceptance) == (exact.tokens, exact.nodes)


@given(trees, seeds, st.sets(st.integers(0, 19)))
def test_a_copied_token_is_accepted_only_if_it_is_the_targets_choice(
    drafts: TokenTree, seed: int, copied: set[int]
) -> None:
    logits = predictions(seed)
    for acceptance in (Acceptance("cascade", 1.0), Acceptance("lenient", 0.0, 0), Acceptance("judge", 0.0)):
        tokens, nodes = accept_relaxed(
            drafts,
            lambda node, _: int(np.argmax(logits(node))),
            lambda node: truncated_probabilities(logits(node), Sampling(temperature=1.0)),
            acceptance,
            greedy=True,
            judged=lambda _: 0.5,
            is_copied=lambda node: node in copied,
        )
        for before, node, token in zip([ROOT, *nodes], nodes, tokens, strict=False):
            assert node not in copied or token == int(np.argmax(logits(before)))
        last = nodes[-1] if nodes else ROOT
        assert all(child in copied for child in drafts.children(last))


@given(trees, seeds, st.floats(0.01, 1.0))
def test_a_cascade_takes_the_targets_token_or_a_drafted_one_that_is_likely_enough(
    drafts: TokenTree, seed: int, alpha: float
) -> None:
    tokens, nodes = greedy_relaxed(drafts, seed, Acceptance("cascade", alpha))
    logits = predictions(seed)
    for node, token in zip([ROOT, *nodes], tokens, strict=True):
        chances = truncated_probabilities(logits(node), Sampling(temperature=1.0))
        children = [drafts.tokens[child] for child in drafts.children(node)]
        likely = [one for one in children if chances[one] >= (1 - alpha) * chances.max()]
        best = int(np.argmax(chances))
        assert token == (best if best in children or not likely else likely[0])


@given(trees, seeds, st.floats(0.0, 0.99), st.integers(0, 3))
def test_a_lenient_rule_needs_an_uncertain_target_and_right_tokens_after_the_wrong_one(
    drafts: TokenTree, seed: int, theta: float, window: int
) -> None:
    tokens, nodes = greedy_relaxed(drafts, seed, Acceptance("lenient", theta, window))
    logits = predictions(seed)
    wrong = 0
    for place, (node, token) in enumerate(zip([ROOT, *nodes], tokens, strict=True)):
        if token == int(np.argmax(logits(node))):
            continue
        wrong += 1
        chances = truncated_probabilities(logits(node), Sampling(temperature=1.0))
        assert -(chances * np.log(chances)).sum() >= theta * np.log(VOCAB) - 1e-9
        following = list(zip(nodes[place:], tokens[place + 1 :], strict=True))[:window]
        assert len(following) == window
        assert all(token == int(np.argmax(logits(node))) for node, token in following)
    assert wrong < len(tokens)


def test_a_lenient_rule_rejects_a_draft_that_ends_within_the_window() -> None:
    logits = np.zeros((5, VOCAB))
    logits[:, 1] = 0.1
    drafts = TokenTree.chain([5, 1, 1, 1])

    def accepted(window: int) -> int:
        found = accept_relaxed(
            drafts,
            lambda node, _: int(np.argmax(logits[node])),
            lambda node: truncated_probabilities(logits[node], Sampling(temperature=1.0)),
            Acceptance("lenient", 0.3, window),
            greedy=True,
        )
        return len(found.nodes)

    assert (accepted(3), accepted(4)) == (4, 0)


def chooser(logits: np.ndarray, sampling: Sampling, start: int, stream: int) -> Callable[[int, int], int]:
    """Return the target's choice with the same logits after every node."""
    return lambda _, depth: choose_token(logits, sampling, start + depth, stream)


SAMPLED = [Sampling(1.0), Sampling(0.7, top_k=6), Sampling(1.2, top_p=0.8)]


@pytest.mark.parametrize("sampling", SAMPLED)
@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_tokens_of_a_cascade_have_the_distribution_of_equation_15(sampling: Sampling, alpha: float) -> None:
    """A draft token is sampled from q with the noise of its place, as the engine's drafts are."""
    rng = np.random.default_rng(4)
    of_target = rng.normal(0, 1.2, VOCAB)
    of_draft = of_target + rng.normal(0, 1.0, VOCAB)
    p, q = (truncated_probabilities(logits, sampling) for logits in (of_target, of_draft))
    accepted = p >= (1 - alpha) * p.max()
    expected = q * accepted + p * q[~accepted].sum()

    def draws(stream: int) -> np.ndarray:
        counts = np.zeros(VOCAB)
        for index in range(8000):
            keyed = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, NoiseKey(2, index))
            drafted = choose_token(of_draft, keyed, 7)
            found = accept_relaxed(
                TokenTree.chain([drafted]),
                chooser(of_target, keyed, 7, stream),
                lambda _: p,
                Acceptance("cascade", alpha),
                greedy=False,
            )
            counts[found.tokens[0]] += 1
        return counts

    counts = draws(OWN_STREAM)
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert chisquare(counts[kept], expected[kept] * counts.sum()).pvalue > 1e-4
    # The test can fail: it rejects the target's distribution, and a redraw with the draft's noise.
    assert chisquare(counts[p > 0], p[p > 0] * counts[p > 0].sum()).pvalue < 1e-6
    assert chisquare(draws(0)[kept], expected[kept] * counts.sum()).pvalue < 1e-3


def test_second_choices_of_a_tree_move_the_distribution_by_what_was_accepted() -> None:
    """Two draft tokens at a place: a(v) is the probability that v is the first accepted one."""
    sampling, alpha = Sampling(1.0), 0.6
    rng = np.random.default_rng(9)
    logits = rng.normal(0, 1.0, VOCAB)
    p = truncated_probabilities(logits, sampling)
    likely = p >= (1 - alpha) * p.max()
    offers = [(first, second) for first in range(4) for second in range(4, 8)]
    taken = [next((token for token in offer if likely[token]), None) for offer in offers]
    a = np.bincount([token for token in taken if token is not None], minlength=VOCAB) / len(offers)
    expected = a + p * (1 - a.sum())
    counts = np.zeros(VOCAB)
    for index in range(8000):
        keyed = Sampling(noise=NoiseKey(5, index), temperature=1.0)
        found = accept_relaxed(
            TokenTree(offers[index % len(offers)], (ROOT, ROOT)),
            chooser(logits, keyed, 0, OWN_STREAM),
            lambda _: p,
            Acceptance("cascade", alpha),
            greedy=False,
        )
        counts[found.tokens[0]] += 1
    assert 0 < a.sum() < 1
    assert chisquare(counts, expected * counts.sum()).pvalue > 1e-4
