"""One tree of drafts from all sources of next tokens.

Each source gives the likely next tokens at a position, with their chances. The tree takes the most likely
paths over all sources (greedy by the probability of a path: DySpec, arXiv 2410.11744; the union of what is
found in texts and what a model drafts: RASD, arXiv 2503.03434).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol, TypeAlias

from reason_spec.speculation.draft_calibration import DraftCalibration
from reason_spec.speculation.tree import ROOT, TokenTree
from reason_spec.suffix.base import Proposal

Path: TypeAlias = tuple[int, ...]
"""Drafted tokens, from the end of the text on."""


class NextTokens(NamedTuple):
    """Likely tokens of one position, and the chance of each."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()

    @property
    def highest(self) -> float:
        return max(self.chances, default=0.0)


class Source(Protocol):
    """Knows likely tokens after a text."""

    def after(self, path: Path) -> NextTokens:
        """Return the likely tokens after a path, each with its chance if the path is right."""

    def learn(self, generated: Sequence[int]) -> None:
        """Take the tokens that followed the text."""


class ChainRate(Protocol):
    """How likely chains of one kind are right."""

    def chance(self, num_tokens: int) -> float:
        """Return the chance that ``num_tokens`` tokens are all accepted."""

    def learn(self, chain: Sequence[int], generated: Sequence[int]) -> None:
        """Take a chain and the tokens that followed."""


class ChainSource:
    """A chain of tokens: a hint, or what prompt lookup found."""

    def __init__(self, chain: Sequence[int], rate: ChainRate) -> None:
        self._chain = tuple(chain)
        self._rate = rate

    def after(self, path: Path) -> NextTokens:
        done = len(path)
        if done >= len(self._chain) or path != self._chain[:done]:
            return NextTokens()
        before = self._rate.chance(done) if done else 1.0
        share = self._rate.chance(done + 1) / before if before > 0.0 else 0.0
        return NextTokens((self._chain[done],), (share,))

    def learn(self, generated: Sequence[int]) -> None:
        self._rate.learn(self._chain, generated)


class TreeSource:
    """A tree of tokens after a chain, whose chances are those of whole paths: what earlier texts hold."""

    def __init__(self, proposal: Proposal, calibration: DraftCalibration, prefix: Path = ()) -> None:
        self._proposal, self._calibration, self._prefix = proposal, calibration, prefix
        self._after: dict[Path, NextTokens] = {}
        paths: list[Path] = []
        chances: list[float] = []
        for token, parent, chance in zip(*proposal[:3], strict=True):
            path, before = (paths[parent], chances[parent]) if parent >= 0 else (prefix, 1.0)
            chances.append(min(calibration.corrected(chance), before))
            share = chances[-1] / before if before > 0.0 else 0.0
            tokens, shares = self._after.get(path, NextTokens())
            self._after[path] = NextTokens((*tokens, token), (*shares, share))
            paths.append((*path, token))
        self._chances = dict(zip(paths, chances, strict=True))
        self.paths = frozenset((*paths, *(prefix[:end] for end in range(1, len(prefix) + 1))))
        """Its paths, and those that lead to them along the chain."""

    def chance(self, num_tokens: int) -> float:
        """Return the chance that, after the chain, a path with ``num_tokens`` tokens in all is right."""
        return min(1.0, sum(chance for path, chance in self._chances.items() if len(path) == num_tokens))

    def after(self, path: Path) -> NextTokens:
        return self._after.get(path, NextTokens())

    def learn(self, generated: Sequence[int]) -> None:
        length = len(self._prefix)
        if tuple(generated[:length]) == self._prefix:
            self._calibration.learn(self._proposal, generated[length:])


class PredictedSource:
    """Tokens that a model predicted, at the position itself or at an earlier one like it.

    Args:
        find: the predicted tokens after a path.
        calibration: of the chance of a token whose path is right.
    """

    def __init__(self, find: Callable[[Path], NextTokens], calibration: DraftCalibration) -> None:
        self._find = find
        self._calibration = calibration
        self._offered: dict[Path, NextTokens] = {}

    def after(self, path: Path) -> NextTokens:
        if path not in self._offered:
            # What is found once the pass is over may be what it predicted.
            self._offered[path] = self._find(path)
        found = self._offered[path]
        return NextTokens(found.tokens, tuple(map(self._calibration.corrected, found.chances)))

    def learn(self, generated: Sequence[int]) -> None:
        outcomes: list[tuple[float, bool]] = []
        for position, right in enumerate(generated):
            offered = self._offered.get(tuple(generated[:position]), NextTokens())
            outcomes += [(chance, token == right) for token, chance in zip(*offered, strict=True)]
        self._calibration.add(outcomes)


def united(sources: Sequence[Source], budget: int, least: float, most: int, least_beyond: float) -> Proposal:
    """Return the most likely nodes of all sources as one tree, in descending order of chance.

    Where two sources differ, the surer one goes first, and a token of the other counts as often as the first
    is wrong. Where they agree, the token is wrong if both are.

    Args:
        budget: the most nodes with a chance of at least ``least``.
        most: the most nodes in all; those beyond ``budget`` have a chance of at least ``least_beyond``.
    """
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    open_nodes: list[tuple[float, int, int, Path]] = []
    found = 0

    def expand(parent: int, path: Path, chance: float) -> None:
        nonlocal found
        for token, share in combined([source.after(path) for source in sources]).items():
            # Nodes of one chance come in the order in which they were found.
            heappush(open_nodes, (-chance * share, found, parent, (*path, token)))
            found += 1

    expand(-1, (), 1.0)
    while open_nodes and len(tokens) < most:
        negative, _, parent, path = heappop(open_nodes)
        if -negative < (least if len(tokens) < budget else max(least, least_beyond)):
            break
        tokens.append(path[-1])
        parents.append(parent)
        chances.append(-negative)
        expand(len(tokens) - 1, path, -negative)
    return Proposal(tuple(tokens), tuple(parents), tuple(chances))


def combined(offers: Sequence[NextTokens]) -> dict[int, float]:
    """Return the chance of each token that one of several sources offers.

    They sum to 1 at most where those of each source do; corrected chances may not, and a source that comes
    after a sum of 1 has no share.
    """
    shares: dict[int, float] = {}
    for offer in sorted(offers, key=lambda offer: offer.highest, reverse=True):
        left = max(0.0, 1.0 - sum(shares.values()))
        for token, chance in zip(offer.tokens, offer.chances, strict=True):
            shares[token] = shares.get(token, 0.0) + left * chance
    return shares


def worthwhile(found: Proposal, least_chance: float, exempt: frozenset[Path]) -> TokenTree:
    """Return the nodes with at least that chance; the first one and those of exempt paths in any case."""
    paths: list[Path] = []
    kept: list[int] = []
    for node, (token, parent, chance) in enumerate(zip(*found[:3], strict=True)):
        paths.append((token,) if parent == ROOT else (*paths[parent], token))
        if (not node or chance >= least_chance or paths[node] in exempt) and parent in (ROOT, *kept):
            kept.append(node)
    return TokenTree(found.tokens, found.parents).restricted(kept)
