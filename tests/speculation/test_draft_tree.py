"""One tree of all sources: the likeliest paths, with chances that are chances."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.draft_calibration import DraftCalibration, HintRate, LookupRate
from reason_spec.speculation.draft_tree import (
    ChainSource,
    NextTokens,
    Path,
    PredictedSource,
    TreeSource,
    combined,
    united,
    worthwhile,
)
from reason_spec.suffix.base import Proposal


class Told:
    """Offers the same tokens at every place."""

    def __init__(self, offered: NextTokens) -> None:
        self.offered = offered

    def after(self, path: Path) -> NextTokens:
        return self.offered

    def learn(self, came: Sequence[int]) -> None:
        raise AssertionError


@st.composite
def offers(draw: st.DrawFn) -> NextTokens:
    tokens = draw(st.lists(st.integers(0, 6), max_size=4, unique=True))
    weights = [draw(st.floats(0.01, 1.0)) for _ in tokens]
    total = max(1.0, sum(weights))
    return NextTokens(tuple(tokens), tuple(weight / total for weight in weights))


@given(st.lists(offers(), max_size=4), st.integers(0, 10), st.integers(0, 20), st.floats(0.0, 0.3))
def test_a_union_is_a_tree_in_descending_order_within_its_budget(
    offered: list[NextTokens], budget: int, more: int, least: float
) -> None:
    sources = [Told(one) for one in offered]
    found = united(sources, budget, least, budget + more, 0.5)
    assert len(found.tokens) == len(found.parents) == len(found.chances) <= budget + more
    assert list(found.chances) == sorted(found.chances, reverse=True)
    assert all(parent < node for node, parent in enumerate(found.parents))
    edges = list(zip(found.parents, found.tokens, strict=True))
    assert len(set(edges)) == len(edges), "children of one node are different"
    assert all(chance >= least for chance in found.chances)
    assert all(chance >= 0.5 for chance in found.chances[budget:])
    for node in {-1, *range(len(found.tokens))}:
        of_node = found.chances[node] if node >= 0 else 1.0
        below = sum(c for c, parent in zip(found.chances, found.parents, strict=True) if parent == node)
        assert below <= of_node + 1e-9


@given(st.lists(offers(), min_size=1, max_size=4))
def test_a_token_of_several_sources_is_at_least_as_likely_as_by_the_surest(offered: list[NextTokens]) -> None:
    shares = combined(offered)
    surest = max(offered, key=lambda offer: offer.highest)
    for token, chance in zip(*surest, strict=True):
        assert shares[token] >= chance - 1e-9
    assert sum(shares.values()) <= 1.0 + 1e-9


def test_sources_that_agree_are_surer_and_others_go_behind_the_surest() -> None:
    shares = combined([NextTokens((1,), (0.5,)), NextTokens((2,), (0.9,)), NextTokens((2,), (0.4,))])
    assert shares[2] == pytest.approx(0.9 + 0.1 * 0.4 * 0.95, rel=0.05)
    assert shares[1] == pytest.approx(0.1 * 0.5)


def test_a_chain_is_followed_as_far_as_the_path_keeps_to_it() -> None:
    chain = ChainSource((4, 5, 6), LookupRate())
    assert chain.after(()).tokens == (4,)
    assert chain.after((4, 5)).tokens == (6,)
    assert not chain.after((4, 5, 6)).tokens
    assert not chain.after((4, 9)).tokens
    rate = HintRate()
    for length in range(3):
        (share,) = ChainSource((4, 5, 6), rate).after((4, 5, 6)[:length]).chances
        assert share == pytest.approx(rate.chance(1))


def test_a_tree_after_a_chain_has_the_shares_of_its_paths() -> None:
    calibration = DraftCalibration()
    found = Proposal((1, 2, 3), (-1, 0, 0), (0.85, 0.55, 0.25), 4)
    tree = TreeSource(found, calibration, (7,))
    assert not tree.after(()).tokens
    assert tree.after((7,)).tokens == (1,)
    assert list(tree.after((7,)).chances) == pytest.approx([0.85])
    assert tree.after((7, 1)).tokens == (2, 3)
    assert list(tree.after((7, 1)).chances) == pytest.approx([0.55 / 0.85, 0.25 / 0.85])
    assert tree.paths == {(7,), (7, 1), (7, 1, 2), (7, 1, 3)}
    assert [tree.chance(length) for length in (2, 3, 4)] == pytest.approx([0.85, 0.8, 0.0])
    for _ in range(50):
        tree.learn((8, 1, 2))
    assert calibration.corrected(0.85) == pytest.approx(0.85), "another text went on than the tree's"
    for _ in range(50):
        tree.learn((7, 9))
    assert calibration.corrected(0.85) < 0.1


def test_unlikely_tokens_are_left_out_but_for_the_first_and_those_of_exempt_paths() -> None:
    found = Proposal((1, 2, 3, 4, 5), (-1, -1, 0, 1, 1), (0.5, 0.4, 0.3, 0.2, 0.1))
    assert worthwhile(found, 0.25, frozenset()).tokens == (1, 2, 3)
    assert worthwhile(found, 0.9, frozenset()).tokens == (1,)
    kept = worthwhile(found, 0.9, frozenset({(2,), (2, 5)}))
    assert (kept.tokens, kept.parents) == ((1, 2, 5), (-1, -1, 1))
    assert worthwhile(found, 0.9, frozenset({(2, 5)})).tokens == (1,), "its parent is missing"


def test_predictions_are_worth_what_became_of_them_where_the_text_went() -> None:
    calibration = DraftCalibration()
    for _ in range(60):
        source = PredictedSource(lambda path: NextTokens((len(path), 9), (0.85, 0.15)), calibration)
        united([source], 6, 0.0, 6, 1.0)
        source.learn((0, 5))
    assert calibration.corrected(0.85) == pytest.approx(0.5, abs=0.1), "right at the first place, not then"
    assert calibration.corrected(0.15) < 0.05
