"""Shapes of draft trees: within their budget, prefix-closed, and optimal by what each optimises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.draft_calibration import DraftCalibration
from reason_spec.speculation.draft_tree import NextTokens, Path, PredictedSource, Source, united
from reason_spec.speculation.tree_shapes import (
    BEAM_DEPTH,
    RankRates,
    Rates,
    _best_trees,
    beam,
    best_shape,
    chain,
    fixed_shape,
)
from reason_spec.suffix.base import Proposal


class Told:
    """Offers tokens by the last one of the path: what follows token t is ``rows[t]``."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self._rows = rows

    def after(self, path: Path) -> NextTokens:
        row = self._rows[path[-1] if path else 0]
        return NextTokens(tuple(range(len(row))), tuple(row))

    def learn(self, came: Sequence[int]) -> None:
        raise AssertionError


@st.composite
def sources(draw: st.DrawFn) -> list[Source]:
    def row() -> list[float]:
        weights = [draw(st.floats(0.01, 1.0)) for _ in range(3)]
        return [weight / sum(weights) for weight in weights]

    return [Told([row() for _ in range(3)])]


RATES: Rates = (0.5, 0.2, 0.1)
SHAPES: dict[str, Callable[[Sequence[Source], int, float], Proposal]] = {
    "chain": chain,
    "eagle2": beam,
    "sequoia": lambda sources, budget, least: fixed_shape(sources, budget, least, RATES),
}


@pytest.mark.parametrize("name", SHAPES)
@given(sources(), st.integers(0, 20), st.floats(0.0, 0.2))
def test_a_shape_is_a_tree_in_descending_order_within_its_budget(
    name: str, found: list[Source], budget: int, least: float
) -> None:
    tree = SHAPES[name](found, budget, least)
    assert len(tree.tokens) <= budget
    assert list(tree.chances) == sorted(tree.chances, reverse=True)
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree.tokens)
    assert all(chance >= least for chance in tree.chances)


@given(sources(), st.integers(1, 12))
def test_no_shape_is_expected_to_be_accepted_more_than_the_greedy_one(
    found: list[Source], budget: int
) -> None:
    greedy = sum(united(found, budget, 0.0, budget, 1.0).chances)
    assert sum(chain(found, budget, 0.0).chances) <= greedy + 1e-9
    assert sum(beam(found, budget, 0.0).chances) <= greedy + 1e-9


@given(sources(), st.integers(1, 6))
def test_a_beam_that_is_wide_and_deep_enough_is_the_greedy_tree(found: list[Source], budget: int) -> None:
    assert budget <= BEAM_DEPTH
    expected = united(found, budget, 0.0, budget, 1.0).chances
    assert beam(found, budget, 0.0).chances == pytest.approx(expected)


def trees(num_nodes: int, num_children: int) -> Iterator[tuple[object, ...]]:
    """Yield every tree of so many nodes as the trees of its children; ``()`` is a leaf, None no child."""
    if num_nodes == 1:
        yield ()
        return
    for sizes in product(range(num_nodes), repeat=num_children):
        if sum(sizes) == num_nodes - 1:
            options = [list(trees(size, num_children)) if size else [None] for size in sizes]
            yield from product(*options)


def value(tree: tuple[object, ...], rates: Rates) -> float:
    """Return the expected tokens of a pass with a tree."""
    below = (
        rate * value(child, rates)
        for rate, child in zip(rates, tree, strict=False)
        if isinstance(child, tuple)
    )
    return 1.0 + sum(below)


@given(st.lists(st.integers(0, 20), min_size=2, max_size=2), st.integers(1, 6))
def test_the_fixed_shape_is_the_best_of_all(weights: list[int], num_nodes: int) -> None:
    first, second = sorted((weight / 40 for weight in weights), reverse=True)
    rates = (first, second)
    best = max(value(tree, rates) for tree in trees(num_nodes, 2))
    assert _best_trees(rates, num_nodes)[0][num_nodes] == pytest.approx(best)


@given(st.integers(1, 40))
def test_a_fixed_shape_uses_its_whole_budget_and_gives_the_first_child_the_most(num_nodes: int) -> None:
    shape = best_shape(RATES, num_nodes)
    assert sum(shape) == num_nodes - 1
    assert list(shape) == sorted(shape, reverse=True)


def test_ranks_learn_from_what_was_offered_and_not_from_what_the_pass_predicted() -> None:
    ranks, calibration = RankRates(), DraftCalibration()
    known: dict[Path, NextTokens] = {}
    for _ in range(200):
        source = PredictedSource(lambda path: known.get(path, NextTokens()), calibration)
        known[()] = NextTokens((1,), (0.95,))
        fixed_shape([source], 4, 0.0, ranks.rates)
        known[()] = NextTokens((2,), (0.95,))
        ranks.learn([source], (2,))
        source.learn((2,))
    assert ranks.rates[0] < 0.1
    assert calibration.corrected(0.95) < 0.3


def test_ranks_are_worth_what_became_of_them() -> None:
    ranks = RankRates()
    assert list(ranks.rates) == sorted(ranks.rates, reverse=True)
    assert sum(ranks.rates) <= 1.0
    found: list[Source] = [Told([[0.5, 0.3, 0.2]] * 3)]
    for _ in range(400):
        ranks.learn(found, (0, 1))
    assert list(ranks.rates[:2]) == pytest.approx([0.5, 0.5], abs=0.06)
    assert ranks.rates[2] < 0.06
    wide = fixed_shape(found, 4, 0.0, ranks.rates)
    assert sorted(wide.parents)[:2] == [-1, -1], "both children of the root are likely"
