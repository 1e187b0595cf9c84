"""Token trees of given paths."""

from __future__ import annotations

from collections.abc import Sequence

from reason_spec.speculation.tree import ROOT, TokenTree


def merged(paths: Sequence[Sequence[int]], budget: int) -> TokenTree:
    """Join continuations into one tree of at most ``budget`` nodes.

    Common beginnings share their nodes. Nodes are taken level by level, and within a level path by path,
    so a short budget keeps the beginning of each path.
    """
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    ends = [ROOT] * len(paths)
    for depth in range(max(map(len, paths), default=0)):
        for index, path in enumerate(paths):
            if depth >= len(path):
                continue
            place = ends[index], path[depth]
            if place not in nodes:
                if len(tokens) == budget:
                    return TokenTree(tuple(tokens), tuple(parents))
                nodes[place] = len(tokens)
                tokens.append(path[depth])
                parents.append(ends[index])
            ends[index] = nodes[place]
    return TokenTree(tuple(tokens), tuple(parents))
