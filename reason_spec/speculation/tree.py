"""Drafted tokens as a tree: several continuations that are verified in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROOT = -1
"""The parent of the first drafted tokens: the last token of the text."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Drafted tokens; node i holds ``tokens[i]`` after node ``parents[i]``, which is smaller or `ROOT`.

    Children of one node have different tokens. The first nodes, of any number, are a tree too.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> TokenTree:
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)))

    def first(self, count: int) -> TokenTree:
        """Return the tree of the first ``count`` nodes."""
        return TokenTree(self.tokens[:count], self.parents[:count])

    def pruned(self, length_to_end: Callable[[Sequence[int]], int | None]) -> TokenTree:
        """Return the tree without the nodes after an end.

        ``length_to_end`` returns the length of a path up to its end; None if the path has none.
        """
        after_end: set[int] = set()
        for path in self.paths():
            if (length := length_to_end([self.tokens[node] for node in path])) is not None:
                after_end.update(path[length:])
        if not after_end:
            return self
        return self.restricted([node for node in range(len(self.tokens)) if node not in after_end])

    def restricted(self, kept: Sequence[int]) -> TokenTree:
        """Return the tree of some of its nodes, in ascending order and with the parents of each."""
        indices = {node: index for index, node in enumerate(kept)} | {ROOT: ROOT}
        parents = tuple(indices[self.parents[node]] for node in kept)
        return TokenTree(tuple(self.tokens[node] for node in kept), parents)

    def child(self, node: int, token: int) -> int | None:
        """Return the child of a node, or of `ROOT`, that holds ``token``."""
        for child in range(node + 1, len(self.tokens)):
            if self.parents[child] == node and self.tokens[child] == token:
                return child
        return None

    def children(self, node: int) -> list[int]:
        """Return the children of a node, or of `ROOT`, in ascending order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path_to(self, node: int) -> tuple[int, ...]:
        """Return the tokens from the root to a node, its own the last."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tuple(reversed(tokens))

    def has_children(self, node: int) -> bool:
        return node in self.parents

    def paths(self) -> list[list[int]]:
        """Return the nodes from the root to each leaf; a chain has one path, an empty tree none."""
        found: list[list[int]] = []
        inner = set(self.parents)
        for leaf in range(len(self.tokens)):
            if leaf in inner:
                continue
            path = [leaf]
            while self.parents[path[-1]] != ROOT:
                path.append(self.parents[path[-1]])
            found.append(path[::-1])
        return found
