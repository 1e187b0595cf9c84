"""Trees of drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.tree import ROOT, TokenTree

paths_of_drafts = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=4)


def texts(tree: TokenTree) -> list[list[int]]:
    return [[tree.tokens[node] for node in path] for path in tree.paths()]


@given(st.lists(st.integers(0, 3), max_size=8))
def test_a_chain_is_a_tree_with_one_path(tokens: list[int]) -> None:
    tree = TokenTree.chain(tokens)
    assert texts(tree) == ([tokens] if tokens else [])
    assert tree == TokenTree.merge([tokens], 100)


@given(paths_of_drafts)
def test_a_tree_holds_every_path_and_nothing_else(paths: list[list[int]]) -> None:
    tree = TokenTree.merge(paths, 100)
    beginnings = {tuple(path[:length]) for path in paths for length in range(1, len(path) + 1)}
    held = {tuple(text[:length]) for text in texts(tree) for length in range(1, len(text) + 1)}
    assert held == beginnings
    assert len(tree) == len(beginnings), "what paths have in common is held once"


@given(paths_of_drafts, st.integers(0, 10))
def test_a_budget_keeps_the_beginning_of_every_path(paths: list[list[int]], budget: int) -> None:
    whole, tree = TokenTree.merge(paths, 100), TokenTree.merge(paths, budget)
    assert tree == whole.first(budget)
    assert len(tree) == min(budget, len(whole))
    assert all(ROOT <= parent < node for node, parent in enumerate(tree.parents))
    depths: dict[int, int] = {ROOT: 0}
    for node, parent in enumerate(whole.parents):
        depths[node] = depths[parent] + 1
    levels = [depths[node] for node in range(len(whole))]
    assert levels == sorted(levels), "no path goes deeper before all have come as far"


@given(paths_of_drafts, st.integers(0, 3))
def test_a_child_is_found_by_its_token(paths: list[list[int]], token: int) -> None:
    tree = TokenTree.merge(paths, 100)
    for node in range(ROOT, len(tree)):
        children = [i for i, parent in enumerate(tree.parents) if parent == node and tree.tokens[i] == token]
        assert len(children) <= 1
        assert tree.child(node, token) == (children[0] if children else None)


@given(st.lists(st.integers(0, 3), max_size=5), paths_of_drafts)
def test_a_chain_before_a_tree_begins_each_of_its_paths(chain: list[int], paths: list[list[int]]) -> None:
    tree = TokenTree.merge(paths, 100)
    expected = [chain + text for text in texts(tree)] or ([chain] if chain else [])
    assert texts(tree.with_prefix(chain)) == expected


@given(paths_of_drafts, st.integers(0, 3))
def test_nothing_is_left_behind_the_end_of_a_text(paths: list[list[int]], last: int) -> None:
    tree = TokenTree.merge(paths, 100)

    def ends_behind(tokens: Sequence[int]) -> int | None:
        return list(tokens).index(last) + 1 if last in tokens else None

    cut = [path[: path.index(last) + 1] if last in path else path for path in texts(tree)]
    kept = tree.pruned(ends_behind)
    assert set(map(tuple, texts(kept))) == set(map(tuple, cut))
    assert all(parent < node for node, parent in enumerate(kept.parents))


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.integers(0, 9))
def test_a_path_is_added_to_a_tree_as_far_as_the_budget_goes(
    first: list[int], path: list[int], budget: int
) -> None:
    tree = TokenTree.chain(first).with_path(path, max(budget, len(first)))
    assert tree.first(len(first)) == TokenTree.chain(first)
    assert len(tree) <= max(budget, len(first))
    written = [[tree.tokens[node] for node in nodes] for nodes in tree.paths()]
    if budget >= len(first) + len(path) and path:
        assert any(tokens[: len(path)] == path for tokens in written)
    edges = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(set(edges)) == len(edges)
