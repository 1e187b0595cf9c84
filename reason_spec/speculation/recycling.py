"""Predictions that passes computed and did not use are drafts of later passes.

Token Recycling (Luo et al., arXiv 2408.08696) keeps the most likely next tokens of each token as a pass last
computed them; here a pair of tokens has an entry of its own. STAND (arXiv 2506.04708) keeps the mean
prediction after the last two to four tokens. Both kept tokens alone, or drew from them; here a sampled text
takes the noise that the target itself will take at that position, as drafts of a model do (`acceptance`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from reason_spec.speculation.acceptance import gumbel_noise_of
from reason_spec.speculation.draft_tree import NextTokens
from reason_spec.types import Sampling

WIDTH: Final = 8
"""Next tokens that are kept for each context."""
MAX_CONTEXTS: Final = 1 << 14
"""Contexts of each length whose next tokens are kept, 0.9 kB each; the least recently used go first."""

MAX_SIBLING_TABLES: Final = 16
"""Problems whose samples draft for each other, up to 70 MB each and 0.9 kB for each token beyond
`MAX_CONTEXTS`; the least recently asked go first."""


class _Seen(NamedTuple):
    """The next tokens of a context, and how many predictions there were."""

    predicted: NextTokens = NextTokens()
    times: int = 0


_Contexts: TypeAlias = OrderedDict[tuple[int, ...], _Seen]


class RecycledTokens:
    """The most likely next tokens after the last few tokens of a text.

    Args:
        lengths: of the contexts, the longest first.
        averages: whether a context keeps the mean of its predictions, not the last one.
        max_contexts: of each length, in texts.
        vocab_size: as many contexts of one token are kept at least. 0: unknown.
    """

    def __init__(
        self,
        lengths: Sequence[int] = (2, 1),
        *,
        averages: bool = False,
        max_contexts: int = MAX_CONTEXTS,
        vocab_size: int = 0,
    ) -> None:
        self._lengths = tuple(sorted(lengths, reverse=True))
        self._averages = averages
        self._max_contexts = dict.fromkeys(self._lengths, max_contexts)
        if 1 in self._max_contexts:
            self._max_contexts[1] = max(max_contexts, vocab_size)
        self._seen: dict[int, _Contexts] = {length: OrderedDict() for length in self._lengths}
        self._rejected: dict[int, _Contexts] = {length: OrderedDict() for length in self._lengths}

    def __len__(self) -> int:
        return sum(map(len, (*self._seen.values(), *self._rejected.values())))

    @property
    def num_read(self) -> int:
        """How many of a text's last tokens are read."""
        return self._lengths[0]

    def learn(self, text: Sequence[int], seen: NextTokens, *, is_rejected: bool = False) -> None:
        """Take the prediction after the last tokens of a text.

        Args:
            is_rejected: the last token is a rejected draft. Such contexts are many and few come again, so
                they have room of their own, a quarter of that of texts; single tokens have all the same.
        """
        for length in self._lengths:
            if length <= len(text):
                self._keep(tuple(text[len(text) - length :]), seen, is_rejected=is_rejected and length > 1)

    def find(self, text: Sequence[int]) -> NextTokens:
        """Return the prediction after the longest known end of a text."""
        for length in self._lengths:
            context = tuple(text[len(text) - length :])
            for kept in (self._seen[length], self._rejected[length]):
                if length <= len(text) and (found := kept.get(context)):
                    kept.move_to_end(context)
                    return found.predicted
        return NextTokens()

    def _keep(self, context: tuple[int, ...], seen: NextTokens, *, is_rejected: bool) -> None:
        length = len(context)
        kept, most = self._seen[length], self._max_contexts[length]
        if is_rejected and context not in kept:
            kept, most = self._rejected[length], max(1, most // 4)
        old = kept.pop(context, None) or self._rejected[length].pop(context, _Seen())
        times = old.times + 1
        kept[context] = _Seen(_mean(old.predicted, seen, 1.0 / times) if self._averages else seen, times)
        if len(kept) > most:
            kept.popitem(last=False)


def sibling_table(vocab_size: int = 0) -> RecycledTokens:
    """Return the table that samples of one problem share.

    Multi-sample consensus (arXiv 2503.05330) weighs the paths of the samples that ran through equal tokens.
    Here their predictions are averaged, after contexts that are longer than STAND's: all samples answer one
    question, so long contexts recur, and predict better.
    """
    return RecycledTokens((8, 4, 2, 1), averages=True, vocab_size=vocab_size)


def _mean(old: NextTokens, new: NextTokens, weight: float) -> NextTokens:
    chances = {token: (1.0 - weight) * chance for token, chance in zip(old.tokens, old.chances, strict=True)}
    for token, chance in zip(new.tokens, new.chances, strict=True):
        chances[token] = chances.get(token, 0.0) + weight * chance
    kept = sorted(chances.items(), key=lambda item: -item[1])[:WIDTH]
    return NextTokens(tuple(token for token, _ in kept), tuple(chance for _, chance in kept))


def with_noise(found: NextTokens, sampling: Sampling, position: int, vocab_size: int) -> NextTokens:
    """Return the chances of predicted tokens once the noise of a position is known (Gumbel-max trick).

    Args:
        position: of the token, counted from the start of the text, prompt included.
        vocab_size: as in `choose_token`, whose noise this is.
    """
    if sampling.greedy or not found.tokens:
        return found
    noise = gumbel_noise_of(found.tokens, sampling.noise, position, vocab_size)
    chances = np.maximum(found.chances, 1e-12)
    # In the order of log(p) / T + g, which is that of the target's choice if it predicts the same.
    scores = np.log(chances) + sampling.temperature * noise
    weights = np.exp(scores - scores.max())
    shares = weights / weights.sum() * min(1.0, float(chances.sum()))
    order = np.argsort(-shares, kind="stable")
    return NextTokens(tuple(found.tokens[index] for index in order), tuple(shares[order].tolist()))
