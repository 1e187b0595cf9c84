"""Acceptance of draft tokens that the target would not choose itself: fewer passes, another text.

``cascade`` is the token-specific rule V3 of Speculative Cascades (arXiv 2405.19261, equation 15). With the
target's distribution p, a draft token v is accepted if p(v) >= (1 - alpha) max p; otherwise the token is
drawn from p. With alpha 0 only the target's own choices are accepted. Let a(v) be the probability that v is
drafted at a position and accepted. The token of the position is v with probability

    a(v) + p(v) (1 - sum of a).

Where every position has a draft token from the draft's distribution q, a(v) is q(v) on the tokens that the
rule accepts, and this is equation 15. Here a draft ends where its tokens become unlikely, so a is smaller and
the text is closer to the target's. The formula needs a draw from p that is independent of the draft, so it
takes noise of its own (`OWN_STREAM`). At temperature 0 the target's choice is its most likely token, and the
rule compares the probabilities of temperature 1.

``lenient`` is FLy (arXiv 2511.22972). A draft token that is not the target's choice is accepted if the target
is uncertain at its position, H(p) / log |V| >= theta, and the next ``window`` draft tokens are all the
target's choices. A draft that ends earlier is rejected. With theta 1 only the target's own choices are
accepted. The paper has temperature 0 alone; above it the rule works on the sampled choices, and no formula is
known for the distribution of the text.

``judge`` is Judge Decoding (arXiv 2501.19309). A draft token that is not the target's choice is accepted if a
linear head on the target's last hidden state at the token gives it a probability above the threshold. With
threshold 1 only the target's own choices are accepted. No formula is known for the distribution.

Under every rule a token that is only copied is accepted only if it is the target's own choice: by prompt
lookup or the suffix cache from a text, by token recycling from predictions at other places. No model
predicted it there, and a text that accepts what it copies from itself soon repeats itself
(docs/measurements/strategies.md).

The text depends on which drafts were ready in time, so the same request may give another text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, TypeAlias

import numpy as np

from reason_spec.speculation.acceptance import Accepted, FloatArray, accept
from reason_spec.speculation.tree import TokenTree
from reason_spec.types import Acceptance

OWN_STREAM: Final = 1
"""The stream of noise of the target's choices under `cascade`; those of drafts are in stream 0."""

Choose: TypeAlias = Callable[[int, int], int]
"""The target's token after a node at a depth, as in `accept`. It has no effect beside that."""


def accept_relaxed(
    drafts: TokenTree,
    choose: Choose,
    distribution: Callable[[int], FloatArray],
    acceptance: Acceptance,
    *,
    greedy: bool,
    judged: Callable[[int], float] = lambda _: 0.0,
    is_copied: Callable[[int], bool] = lambda _: False,
) -> Accepted:
    """Return the accepted path and one token more, under a rule that is not exact.

    Args:
        distribution: ``distribution(node)`` returns p [vocabulary] after a node; at temperature 0 that of
            temperature 1.
        greedy: the temperature is 0.
        judged: ``judged(node)`` returns the judge's probability that a draft token is right.
        is_copied: ``is_copied(node)`` returns whether a draft token is only copied, not predicted by a model.
    """
    assert not acceptance.is_exact
    choose = cache(choose)

    def choose_leniently(node: int, depth: int) -> int:
        own = choose(node, depth)
        children = drafts.children(node)
        if own in (drafts.tokens[child] for child in children):
            return own
        confirmed = (
            child
            for child in children
            if not is_copied(child) and _agrees(drafts, choose, child, depth + 1, acceptance)
        )
        child = next(confirmed, None)
        if child is None or _relative_entropy(distribution(node)) < acceptance.threshold:
            return own
        return drafts.tokens[child]

    def choose_or_judge(node: int, depth: int) -> int:
        own = choose(node, depth)
        children = drafts.children(node)
        if own in (drafts.tokens[child] for child in children):
            return own
        right = (child for child in children if not is_copied(child) and judged(child) > acceptance.threshold)
        return next((drafts.tokens[child] for child in right), own)

    def choose_or_defer(node: int, depth: int) -> int:
        own = choose(node, depth)
        children = drafts.children(node)
        if greedy and own in (drafts.tokens[child] for child in children):
            return own
        tokens = [drafts.tokens[child] for child in children if not is_copied(child)]
        if not tokens:
            return own
        chances = distribution(node)
        least = (1.0 - acceptance.threshold) * chances.max()
        # The draft model's own token is the first; a cut-off token is never accepted.
        return next((token for token in tokens if chances[token] >= least and chances[token] > 0.0), own)

    chosen = {"cascade": choose_or_defer, "lenient": choose_leniently, "judge": choose_or_judge}
    return accept(drafts, chosen[acceptance.rule])


def _agrees(drafts: TokenTree, choose: Choose, node: int, depth: int, acceptance: Acceptance) -> bool:
    """Return whether the target's choices after a node are drafted, for the whole window."""
    after: int | None = node
    for further in range(acceptance.window):
        assert after is not None
        after = drafts.child(after, choose(after, depth + further))
        if after is None:
            return False
    return True


def _relative_entropy(chances: FloatArray) -> float:
    """Return the entropy of a distribution relative to that of the uniform one, from 0 to 1."""
    positive = chances[chances > 0.0]
    return float(-(positive * np.log(positive)).sum() / np.log(len(chances)))
