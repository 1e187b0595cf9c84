"""Trees of drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.tree import ROOT, TokenTree
from tests.speculation.trees import merged

paths_of_drafts = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=4)


def texts(tree: TokenTree) -> list[list[int]]:
    return [[tree.tokens[node] for node in path] for path in tree.paths()]


@given(st.lists(st.integers(0, 3), max_size=8))
def test_a_chain_is_a_tree_with_one_path(tokens: list[int]) -> None:
    tree = TokenTree.chain(tokens)
    assert texts(tree) == ([tokens] if tokens else [])
    assert tree == merged([tokens], 100)


@given(paths_of_drafts, st.integers(0, 3))
def test_a_child_is_found_by_its_token(paths: list[list[int]], token: int) -> None:
    tree = merged(paths, 100)
    for node in range(ROOT, len(tree)):
        children = [i for i, parent in enumerate(tree.parents) if parent == node and tree.tokens[i] == token]
        assert len(children) <= 1
        assert tree.child(node, token) == (children[0] if children else None)


@given(paths_of_drafts)
def test_the_path_to_a_node_is_the_beginning_of_each_path_through_it(paths: list[list[int]]) -> None:
    tree = merged(paths, 100)
    for path in tree.paths():
        for end, node in enumerate(path, start=1):
            assert tree.path_to(node) == tuple(tree.tokens[one] for one in path[:end])


@given(paths_of_drafts, st.integers(0, 3))
def test_nothing_is_left_behind_the_end_of_a_text(paths: list[list[int]], last: int) -> None:
    tree = merged(paths, 100)

    def ends_behind(tokens: Sequence[int]) -> int | None:
        return list(tokens).index(last) + 1 if last in tokens else None

    cut = [path[: path.index(last) + 1] if last in path else path for path in texts(tree)]
    kept = tree.pruned(ends_behind)
    assert set(map(tuple, texts(kept))) == set(map(tuple, cut))
    assert all(parent < node for node, parent in enumerate(kept.parents))
