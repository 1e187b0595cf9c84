"""How a token is chosen from logits, and how drafted tokens are verified without loss.

The token at a position is a function of the logits there, the sampling settings and the noise. The noise is a
function of (seed, problem, sample, position, vocabulary id) alone. A sampled token is ``argmax(logits / T +
g)`` over the tokens that truncation leaves, where g are Gumbel variables from a counter-based generator. By
the Gumbel-max trick it is distributed as the softmax of ``logits / T``. Nothing depends on the rest of the
batch, nor on when the token is chosen.

So a drafted token is verified by a comparison: choose the token of its position, and see whether it is the
drafted one. By induction over positions the accepted tokens are those of plain decoding with the same key, at
any temperature: the output is not only equally distributed, as with rejection sampling (arXiv 2211.17192),
but the same. The price is a lower acceptance rate than the overlap of the two distributions. A drafter that
shares the noise comes near to it: with total variation distance d it agrees with a chance of at least (1 - d)
/ (1 + d) (Gumbel coupling, arXiv 2408.07978), against 1 - d.

Rejection sampling would not be exact here. It needs the decision to verify a draft to be independent of the
draft's tokens, but a draft ends where its own tokens become unlikely, and is verified only if it is in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from reason_spec.speculation.tree import ROOT, TokenTree
from reason_spec.types import NoiseKey, Sampling

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_WORD = (1 << 64) - 1
_SMALLEST_UNIFORM = 2.0**-54
_KEPT_POSITIONS = 48
"""Positions whose noise is kept: drafts take it first, the target later. 58 MB at 151,000 vocabulary ids."""
_SMALL_VOCABULARY = 8192
"""Noise of so many ids takes no longer than that of a few, each drawn for itself."""
_PHILOX_WORDS = 4
"""Words that Philox draws at each step of its counter."""


@lru_cache(maxsize=_KEPT_POSITIONS)
def gumbel_noise(key: NoiseKey, position: int, vocab_size: int, stream: int = 0) -> FloatArray:
    """Return the standard Gumbel variables of a position, one for each vocabulary id; they are read only.

    Streams are independent of each other; drafts take stream 0.

    Philox turns (key, counter) into random words without a state. The lowest word of its counter runs over
    the vocabulary, so id v has the same noise in models whose embeddings are padded to different sizes.
    """
    uniform = np.random.Generator(_philox(key, position, stream)).random(vocab_size)
    noise = _gumbel(uniform)
    noise.flags.writeable = False
    return noise


def gumbel_noise_of(ids: Sequence[int], key: NoiseKey, position: int, vocab_size: int) -> FloatArray:
    """Return `gumbel_noise` of a few vocabulary ids, without that of all others."""
    if vocab_size <= _SMALL_VOCABULARY:
        return gumbel_noise(key, position, vocab_size)[list(ids)]
    philox = _philox(key, position, 0)
    generator = np.random.Generator(philox)
    uniform = np.empty(len(ids))
    reached = 0
    for place in np.argsort(ids, kind="stable").tolist():
        step, word = divmod(ids[place], _PHILOX_WORDS)
        if step >= reached:
            philox.advance(step - reached)
            words, reached = generator.random(_PHILOX_WORDS), step + 1
        uniform[place] = words[word]
    return _gumbel(uniform)


def _philox(key: NoiseKey, position: int, stream: int) -> np.random.Philox:
    return np.random.Philox(
        key=np.array([key.seed & _WORD, stream], dtype=np.uint64),
        counter=np.array([0, position & _WORD, key.sample & _WORD, key.problem & _WORD], dtype=np.uint64),
    )


def _gumbel(uniform: FloatArray) -> FloatArray:
    """Turn uniform variables into Gumbel variables, in place."""
    np.maximum(uniform, _SMALLEST_UNIFORM, out=uniform)
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    return uniform


class Accepted(NamedTuple):
    """``tokens``: the accepted drafts, which are at ``nodes``, and one token more."""

    tokens: list[int]
    nodes: list[int]


_LEAST_TEMPERATURE: Final = 1e-300
"""Divided by less a logit would be infinite."""


class Candidates(NamedTuple):
    """Tokens that may be drawn: ascending ``ids``, and their ``logits`` divided by the temperature."""

    ids: IntArray
    logits: FloatArray


def truncate(logits: npt.NDArray[np.floating], sampling: Sampling) -> Candidates:
    """Return the candidates that top-k and top-p leave.

    Top-k keeps every token as likely as the k-th. Top-p keeps the smallest set of the most likely tokens
    whose probability, after temperature and top-k, reaches ``top_p``; ties go to lower ids.
    """
    assert not sampling.greedy
    scaled = logits.astype(np.float64) / max(sampling.temperature, _LEAST_TEMPERATURE)
    if 0 < sampling.top_k < len(scaled):
        threshold = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        kept = np.flatnonzero(scaled >= threshold)
    else:
        kept = np.arange(len(scaled))
    if sampling.top_p < 1.0:
        values = scaled[kept]
        order = np.argsort(-values, kind="stable")
        probabilities = np.exp(values[order] - values[order[0]])
        cumulative = np.cumsum(probabilities / probabilities.sum())
        # The token that crosses the threshold belongs to the set.
        num_kept = int(np.searchsorted(cumulative, sampling.top_p)) + 1
        kept = np.sort(kept[order[:num_kept]])
    return Candidates(kept, scaled[kept])


def truncated_probabilities(logits: npt.NDArray[np.floating], sampling: Sampling) -> FloatArray:
    """Return the distribution that ``choose_token`` draws from, [vocabulary]."""
    probabilities = np.zeros(len(logits))
    if sampling.greedy:
        probabilities[int(np.argmax(logits))] = 1.0
        return probabilities
    candidates = truncate(logits, sampling)
    weights = np.exp(candidates.logits - candidates.logits.max())
    probabilities[candidates.ids] = weights / weights.sum()
    return probabilities


def choose_token(logits: npt.NDArray[np.floating], sampling: Sampling, position: int, stream: int = 0) -> int:
    """Return the token at ``position``, counted from the start of the text, prompt included.

    ``logits`` [vocabulary] are the prediction for that position. Ties go to the lowest id.
    """
    if sampling.greedy:
        return int(np.argmax(logits))
    candidates = truncate(logits, sampling)
    noise = gumbel_noise(sampling.noise, position, len(logits), stream)
    return int(candidates.ids[np.argmax(candidates.logits + noise[candidates.ids])])


def accept(drafts: TokenTree, choose: Callable[[int, int], int]) -> Accepted:
    """Return the accepted path and one token more: the correction or the bonus token.

    Args:
        drafts: the drafted tokens; a chain is a tree with one path.
        choose: ``choose(node, depth)`` returns the token after an accepted node. The first call is for `ROOT`
            at depth 0, and each next one is a level deeper.
    """
    tokens: list[int] = []
    nodes: list[int] = []
    node: int | None = ROOT
    while node is not None:
        tokens.append(choose(node, len(nodes)))
        node = drafts.child(node, tokens[-1])
        if node is not None:
            nodes.append(node)
    return Accepted(tokens, nodes)
