"""Other ways than `united` to choose the nodes of a draft tree, over the same sources.

- ``chain``: the most likely token at each position, one path.
- ``eagle2``: a beam, level by level, and then the most likely of all its nodes (EAGLE-2, Li et al.,
  arXiv 2406.16858).
- ``sequoia``: one shape for all positions, by dynamic programming over the measured acceptance of the first,
  the second, ... child (Sequoia, Chen et al., arXiv 2402.12374).

All return the nodes in descending order of chance, and no more than the budget, which `united` may exceed
where nodes are likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from reason_spec.speculation.draft_tree import NextTokens, Path, Source, combined
from reason_spec.suffix.base import Proposal

DraftTreeName: TypeAlias = Literal["greedy", "chain", "eagle2", "sequoia"]
"""How the nodes of a draft tree are chosen; ``greedy`` is `united`."""
BEAM_WIDTH: Final = 10
"""Nodes of a level that are expanded, and children of each; EAGLE-2's program."""
BEAM_DEPTH: Final = 6
"""Levels after the first one (EAGLE-2, section 5)."""
MAX_RANK: Final = 8
"""Children of a node in a fixed shape, at most."""
_FIRST_RATE, _LATER_SHARE, _PRIOR_WEIGHT = 0.5, 0.3, 16.0
"""Prior acceptance of the first child, factor for each later one, and their weight in positions."""
_DECAY: Final = 0.995
_STEP: Final = 0.02
"""Rates are rounded to this before a shape is computed, so that few shapes are."""

Rates: TypeAlias = tuple[float, ...]
Shape: TypeAlias = tuple[int, ...]
"""The number of nodes of each child with all below it."""


class RankRates:
    """How often the text continued with the first, the second, ... of the offered tokens of a position."""

    def __init__(self) -> None:
        self._right = [_PRIOR_WEIGHT * _FIRST_RATE * _LATER_SHARE**rank for rank in range(MAX_RANK)]
        self._count = _PRIOR_WEIGHT

    def learn(self, sources: Sequence[Source], generated: Sequence[int]) -> None:
        """Take the tokens that followed the text."""
        for position, token in enumerate(generated):
            ranked = [offered for offered, _ in _children(sources, tuple(generated[:position]))]
            if not ranked:
                break
            self._count = self._count * _DECAY + 1.0
            self._right = [
                right * _DECAY + (ranked[rank : rank + 1] == [token])
                for rank, right in enumerate(self._right)
            ]

    @property
    def rates(self) -> Rates:
        """The acceptance rate of each rank, never rising; they sum to 1 at most."""
        found = [round(right / self._count / _STEP) * _STEP for right in self._right]
        return tuple(min(found[: rank + 1]) for rank in range(len(found)))


def chain(sources: Sequence[Source], budget: int, least: float) -> Proposal:
    """Return the most likely token after the most likely token, and so on."""
    tokens: list[int] = []
    chances: list[float] = []
    chance = 1.0
    while len(tokens) < budget and (found := _children(sources, tuple(tokens))):
        token, share = found[0]
        chance *= share
        if chance < least:
            break
        tokens.append(token)
        chances.append(chance)
    return Proposal(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(chances))


def beam(sources: Sequence[Source], budget: int, least: float) -> Proposal:
    """Return the most likely nodes of a beam search of `BEAM_WIDTH` and `BEAM_DEPTH`."""
    found: dict[Path, float] = {}
    level: dict[Path, float] = {(): 1.0}
    for _ in range(1 + BEAM_DEPTH):
        grown = {
            (*path, token): chance * share
            for path, chance in level.items()
            for token, share in _children(sources, path)[:BEAM_WIDTH]
            if chance * share >= least
        }
        found |= grown
        level = dict(sorted(grown.items(), key=lambda node: -node[1])[:BEAM_WIDTH])
    return _proposal(found, budget)


def fixed_shape(sources: Sequence[Source], budget: int, least: float, rates: Rates) -> Proposal:
    """Return the best shape for the rates of the ranks, filled with the tokens of the sources.

    A position of the shape for which the sources offer no token stays empty: the shape does not depend on the
    text. The chance of a node is that of its position.
    """
    found: dict[Path, float] = {}

    def fill(path: Path, chance: float, num_nodes: int) -> None:
        shape = best_shape(rates, num_nodes)
        for (token, _), rate, below in zip(_children(sources, path), rates, shape, strict=False):
            if chance * rate >= least:
                found[*path, token] = chance * rate
                fill((*path, token), chance * rate, below)

    fill((), 1.0, 1 + budget)
    return _proposal(found, budget)


@lru_cache(maxsize=4096)
def best_shape(rates: Rates, num_nodes: int) -> Shape:
    """Return how a tree of ``num_nodes``, its root included, divides them among the root's children."""
    _, splits = _best_trees(rates, num_nodes)
    shape: list[int] = []
    left = num_nodes - 1
    for rank in range(len(rates)):
        taken = splits[rank][left]
        if not taken:
            break
        shape.append(taken)
        left -= taken
    return tuple(shape)


@lru_cache(maxsize=64)
def _best_trees(rates: Rates, num_nodes: int) -> tuple[tuple[float, ...], tuple[tuple[int, ...], ...]]:
    """Return the most expected tokens of trees by size, and the part that each child takes.

    The first: F(m) = 1 + G_0(m - 1) for a tree of m nodes, whose root is always accepted. The second, by rank
    b and nodes n left for this and later children: the y at which G_b(n) = max_y p_b F(y) + G_{b+1}(n - y) is
    largest. The paper bounds the depth as well, by the time of a draft pass; sources have no such time.
    """
    count = len(rates)
    trees = [0.0]
    rest = [[0.0] for _ in range(count + 1)]
    splits: list[list[int]] = [[0] for _ in range(count)]
    for size in range(1, num_nodes + 1):
        trees.append(1.0 + rest[0][size - 1])
        rest[count].append(0.0)
        for rank in reversed(range(count)):
            options = [rates[rank] * trees[part] + rest[rank + 1][size - part] for part in range(size + 1)]
            best = max(range(size + 1), key=lambda part: (options[part], part))
            splits[rank].append(best)
            rest[rank].append(options[best])
    return tuple(trees), tuple(map(tuple, splits))


def _children(sources: Sequence[Source], path: Path) -> list[tuple[int, float]]:
    """Return the tokens that the sources offer after a path with their chances, the most likely first."""
    offers: list[NextTokens] = [source.after(path) for source in sources]
    return sorted(combined(offers).items(), key=lambda child: -child[1])


def _proposal(nodes: dict[Path, float], budget: int) -> Proposal:
    """Return the most likely nodes; parents are as likely as their children at least, and come first."""
    kept = sorted(nodes.items(), key=lambda node: (-node[1], len(node[0])))[:budget]
    positions = {path: position for position, (path, _) in enumerate(kept)} | {(): -1}
    return Proposal(
        tuple(path[-1] for path, _ in kept),
        tuple(positions[path[:-1]] for path, _ in kept),
        tuple(chance for _, chance in kept),
    )
