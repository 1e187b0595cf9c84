"""Trees of recycled tokens: what passes found likely, the likeliest path first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.recycling import RecycledTokens, Seen

tokens = st.integers(0, 6)
shares = st.lists(st.floats(0.01, 0.4), min_size=1, max_size=4).map(
    lambda values: sorted(values, reverse=True)
)


@st.composite
def tables(draw: st.DrawFn) -> RecycledTokens:
    table = RecycledTokens()
    for before, token in draw(st.lists(st.tuples(st.none() | tokens, tokens), max_size=20)):
        chances = draw(shares)
        following = draw(st.lists(tokens, min_size=len(chances), max_size=len(chances), unique=True))
        table.learn(before, token, Seen(tuple(following), tuple(chances)))
    return table


@given(tables(), st.lists(tokens, max_size=3), st.integers(0, 12))
def test_a_proposal_is_a_tree_of_the_likeliest_nodes_within_its_budget(
    table: RecycledTokens, text: list[int], budget: int
) -> None:
    found = table.propose(text, budget)
    assert len(found.tokens) == len(found.parents) == len(found.chances) <= budget
    assert all(parent < node for node, parent in enumerate(found.parents))
    assert list(found.chances) == sorted(found.chances, reverse=True)
    assert all(
        found.chances[p] >= chance for p, chance in zip(found.parents, found.chances, strict=True) if p >= 0
    )
    edges = list(zip(found.parents, found.tokens, strict=True))
    assert len(set(edges)) == len(edges), "children of one node are different"
    smaller = table.propose(text, max(0, budget - 1))
    assert found.tokens[: len(smaller.tokens)] == smaller.tokens


def test_a_pair_of_tokens_knows_better_than_its_last_one() -> None:
    table = RecycledTokens()
    table.learn(1, 2, Seen((3,), (0.9,)))
    table.learn(7, 2, Seen((4,), (0.6,)))
    assert table.propose([1, 2], 1).tokens == (3,)
    assert table.propose([7, 2], 1).tokens == (4,)
    assert table.propose([5, 2], 1).tokens == (4,), "of an unknown pair, what came last after the token"
    assert table.propose([2], 1).tokens == (4,)


def test_the_newest_prediction_replaces_older_ones() -> None:
    table = RecycledTokens()
    table.learn(None, 2, Seen((3, 4), (0.5, 0.4)))
    table.learn(None, 2, Seen((5,), (0.7,)))
    assert table.propose([2], 8).tokens == (5,)


def test_paths_go_on_through_what_followed_the_drafted_tokens() -> None:
    table = RecycledTokens()
    table.learn(None, 1, Seen((2, 3), (0.6, 0.3)))
    table.learn(1, 2, Seen((4,), (0.9,)))
    found = table.propose([1], 3)
    assert found.tokens == (2, 4, 3)
    assert found.parents == (-1, 0, -1)
    assert found.chances[1] == pytest.approx(0.6 * 0.9, rel=0.2)
    assert found.chances[1] < 0.6


def test_what_was_seen_least_recently_is_forgotten() -> None:
    table = RecycledTokens(max_contexts=3)
    for token in range(5):
        table.learn(None, token, Seen((9,), (0.5,)))
    assert len(table) == 3
    assert not table.propose([1], 4).tokens
    assert table.propose([4], 4).tokens == (9,)
