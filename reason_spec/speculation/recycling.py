"""Token Recycling: the likely tokens that passes computed and did not use are drafts of later passes.

After Luo et al., arXiv 2408.08696. Their table holds the 8 likeliest next tokens of each token, and a fixed
tree of 80 nodes reads it. Here the table also keeps how likely each was, and knows the token before, where
that pair came up; a tree takes the likeliest nodes, up to the chance at which a token of a pass stops paying
(DySpec, arXiv 2410.11744: greedy by the probability of the path).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from reason_spec.suffix.base import Proposal

WIDTH: Final = 8
"""Next tokens that are kept for each token."""
MAX_CONTEXTS: Final = 1 << 14
"""Tokens, and pairs of tokens, whose next tokens are kept; the least recently seen go first."""
_DEPTH_DECAY: Final = 0.9
"""Factor of a chance for each level: what followed in another context fits less and less."""


class Seen(NamedTuple):
    """The likeliest tokens at one place of a pass, and their probabilities, both in descending order."""

    tokens: tuple[int, ...]
    chances: tuple[float, ...]


class RecycledTokens:
    """The likeliest next tokens after a token, and after a pair of tokens, as a pass last computed them."""

    def __init__(self, max_contexts: int = MAX_CONTEXTS) -> None:
        self._max_contexts = max_contexts
        self._seen: OrderedDict[tuple[int, ...], Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def learn(self, before: int | None, token: int, seen: Seen) -> None:
        """Take the prediction after ``token``, which follows ``before``; None at the beginning of a text."""
        self._keep((token,), seen)
        if before is not None:
            self._keep((before, token), seen)

    def propose(self, text: Sequence[int], budget: int) -> Proposal:
        """Return a tree of at most ``budget`` tokens after a text, the likeliest first.

        Args:
            text: its last two tokens are read.
        """
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        open_nodes: list[tuple[float, int, int, int]] = []

        def expand(parent: int, before: int | None, token: int, chance: float) -> None:
            seen = self._find(before, token)
            for other, share in zip(seen.tokens, seen.chances, strict=True):
                # Nodes of one chance come in the order in which they were found.
                heappush(open_nodes, (-chance * share, len(tokens), parent, other))

        if not text or budget < 1:
            return Proposal()
        expand(-1, text[-2] if len(text) > 1 else None, text[-1], 1.0)
        while open_nodes and len(tokens) < budget:
            negative, _, parent, token = heappop(open_nodes)
            tokens.append(token)
            parents.append(parent)
            chances.append(-negative)
            expand(
                len(tokens) - 1, tokens[parent] if parent >= 0 else text[-1], token, -negative * _DEPTH_DECAY
            )
        return Proposal(tuple(tokens), tuple(parents), tuple(chances))

    def _keep(self, context: tuple[int, ...], seen: Seen) -> None:
        self._seen[context] = seen
        self._seen.move_to_end(context)
        if len(self._seen) > self._max_contexts:
            self._seen.popitem(last=False)

    def _find(self, before: int | None, token: int) -> Seen:
        found = None if before is None else self._seen.get((before, token))
        return found or self._seen.get((token,)) or Seen((), ())
